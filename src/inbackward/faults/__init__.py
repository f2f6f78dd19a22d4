"""Wrong implementations, one mistake each, that the suite must catch, and right ones that it must not accuse.

A verification suite is worth what it catches. ``inbackward selfcheck`` runs all of these on the machine at hand.
"""

from inbackward.faults import (  # noqa: F401  (each enters its own)
    calls,
    checkpoint,
    hyperparameters,
    loading,
    loop,
    memory,
    numbers,
    parameters,
    unused,
)
from inbackward.faults.fault import ENTERED, Fault

__all__ = ["GALLERY", "Fault"]

GALLERY: tuple[Fault, ...] = tuple(ENTERED)
