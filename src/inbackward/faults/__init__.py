"""Wrong implementations, one mistake each, that the suite must catch, and right ones that it must not accuse.

A verification suite is worth what it catches. ``inbackward selfcheck`` runs all of these on the machine at hand.
"""

from inbackward.faults import (  # noqa: F401  (each enters its own)
    backwards,
    calls,
    checkpoint,
    ddp,
    hyperparameters,
    instances,
    loading,
    loop,
    memory,
    numbers,
    parameters,
    ranks,
    unused,
)
from inbackward.faults.fault import ENTERED, Fault
from inbackward.faults.ways import RIGHT

__all__ = ["GALLERY", "RIGHT", "Fault"]

GALLERY: tuple[Fault, ...] = tuple(ENTERED)
