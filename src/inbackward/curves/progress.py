"""What a long run tells of itself while it goes on."""

from __future__ import annotations

from inbackward.curves.curve import Curve


class Progress:
    """Hears it, and does nothing. Subclasses override what they show."""

    def trained(self, done: int, total: int, what: str) -> None:
        """So many of so many iterations are done."""

    def reached(self, plain: Curve, in_backward: Curve) -> None:
        """Both loops stand at the same iteration, and were put by."""

    def differs(self, runs: int) -> None:
        """Some loss differs: the usual loop is run so many times more, to measure its own noise."""

    def not_kept(self, reason: str) -> None:
        """The run cannot be put by: if it is interrupted, it begins anew."""
