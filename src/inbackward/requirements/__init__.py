"""The catalogue: one file a family, each entry reading like its row in the list of requirements."""

from inbackward.requirements import checkpoint, loop, memory, numbers, parameters, ranks  # noqa: F401  (fill it)
from inbackward.requirements.arms import Arm, arms_of, default_arms
from inbackward.requirements.catalogue import CATALOGUE, FAMILIES, Requirement, checkable, require_known
from inbackward.requirements.documentation import page

__all__ = [
    "CATALOGUE",
    "FAMILIES",
    "Arm",
    "Requirement",
    "arms_of",
    "checkable",
    "default_arms",
    "page",
    "require_known",
]
