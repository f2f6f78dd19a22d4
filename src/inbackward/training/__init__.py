"""The two training loops, the implementation under test, checkpoint routes, and the trace."""

from inbackward.training.implementation import Implementation, Moment, as_implementation
from inbackward.training.in_backward import train_in_backward
from inbackward.training.intervention import Intervention, Together
from inbackward.training.leaks import find_leak
from inbackward.training.reference import train_reference, train_unwatched
from inbackward.training.setting import NotRun, optimizer_class
from inbackward.training.trace import Record, SavedState, Trace

__all__ = [
    "Implementation",
    "Intervention",
    "Moment",
    "NotRun",
    "Record",
    "SavedState",
    "Together",
    "Trace",
    "as_implementation",
    "find_leak",
    "optimizer_class",
    "train_in_backward",
    "train_reference",
    "train_unwatched",
]
