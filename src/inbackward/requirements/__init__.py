"""The catalogue: one file a family, each entry reading like its row in the list of requirements."""

from inbackward.requirements import checkpoint, loop, memory, numbers, parameters, ranks  # noqa: F401  (fill it)
from inbackward.requirements.across_ranks import Item, items
from inbackward.requirements.arms import Arm, arms_of, default_arms
from inbackward.requirements.catalogue import CATALOGUE, FAMILIES, Requirement, require_known
from inbackward.requirements.documentation import page

__all__ = [
    "CATALOGUE",
    "FAMILIES",
    "Arm",
    "Item",
    "Requirement",
    "arms_of",
    "default_arms",
    "items",
    "page",
    "require_known",
]
