"""What the canonical class says of itself to the suite, without depending on the suite."""

from __future__ import annotations

from typing import Any

# Each is mathematically possible, and is work to come: the suite fails as soon as one of them holds.
UNSUPPORTED = {
    "accumulation": "every backward() is an update; there is no context yet for micro-batches that must not step",
    "global-clip": "the norm is known only after the backward, and parameters are updated within it",
    "grad-scaler": "an overflow is known only after the backward, and parameters are updated within it",
    "stale-read": "a parameter is new as soon as its gradient is final; what reads it later in that backward sees that",
    "foreign-backward": "every backward() through the parameters is an update; there is no pause yet",
}


class OwnImplementation:
    """The class attribute ``optimizer_in_backward``: an ``Implementation`` over the class that is asked for it.

    Production code never asks, so the optimizer needs torch alone.
    """

    def __get__(self, instance: object, owner: type) -> Any:
        from inbackward.training import Implementation

        return Implementation.drop_in(owner, unsupported=UNSUPPORTED)
