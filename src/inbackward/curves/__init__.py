"""Loss curves: the usual loop and the implementation's, side by side over a longer run."""

from inbackward.curves.checkpoint import Checkpoint
from inbackward.curves.curve import Curve, Curves
from inbackward.curves.progress import Progress
from inbackward.curves.training import Corpus, train_both

__all__ = ["Checkpoint", "Corpus", "Curve", "Curves", "Progress", "train_both"]
