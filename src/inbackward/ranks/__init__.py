"""Worker processes that judge a scenario together, and the serving loop that they and torchrun's ranks share."""

from inbackward.ranks.pool import Pool, RanksFailed

__all__ = ["Pool", "RanksFailed"]
