"""The two training loops, the implementation under test, checkpoint routes, and the trace."""

from inbackward.training.implementation import Implementation, Moment, as_implementation
from inbackward.training.in_backward import train_in_backward, train_plain
from inbackward.training.intervention import Act, Intervention, Iteration, Parameters, Together
from inbackward.training.leaks import find_leak
from inbackward.training.parallel import local
from inbackward.training.reference import train_reference, train_unwatched
from inbackward.training.setting import NotRun, optimizer_class
from inbackward.training.trace import Record, SavedState, Trace, empty
from inbackward.training.world import ALONE, PATIENCE, World

__all__ = [
    "ALONE",
    "PATIENCE",
    "Act",
    "Implementation",
    "Intervention",
    "Iteration",
    "Moment",
    "NotRun",
    "Parameters",
    "Record",
    "SavedState",
    "Together",
    "Trace",
    "World",
    "as_implementation",
    "empty",
    "find_leak",
    "local",
    "optimizer_class",
    "train_in_backward",
    "train_plain",
    "train_reference",
    "train_unwatched",
]
