"""Worker processes that judge a scenario together: a pool of this process's own, or the ranks that torchrun started."""

from inbackward.ranks.pool import Pool, RanksFailed
from inbackward.ranks.torchrun import Torchrun, TorchrunPool

__all__ = ["Pool", "RanksFailed", "Torchrun", "TorchrunPool"]
