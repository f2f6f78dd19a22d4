"""The canonical drop-in class. Depends on torch only, for use in production."""

from inbackward.optimizer.in_backward import OptimizerInBackward

__all__ = ["OptimizerInBackward"]
