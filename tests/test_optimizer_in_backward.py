"""This package's own optimizer, held to its own suite as a downstream user would hold theirs."""

from inbackward.suite import *  # noqa: F403
