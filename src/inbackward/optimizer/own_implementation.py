"""What the canonical class says of itself to the suite, without depending on the suite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from inbackward.training import Moment

UNSUPPORTED = {
    "stale-read": "a parameter is new as soon as its gradient is final; what reads it later in that backward sees that",
}


class OwnImplementation:
    """The class attribute ``optimizer_in_backward``: an ``Implementation`` over the class that is asked for it.

    Production code never asks, so the optimizer needs torch alone.
    """

    def __get__(self, instance: object, owner: Any) -> Any:
        from inbackward.training import Implementation

        base = Implementation.drop_in(owner, backward=backward, pause=owner.no_step, unsupported=UNSUPPORTED)
        return replace(base, build=Build(base.build))


@dataclass(frozen=True)
class Build:
    """The ``build`` of a drop-in class, which then is told of DDP."""

    drop_in: Any

    def __call__(self, model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> Any:
        optimizer = self.drop_in(model, groups, optimizer_cls, kwargs)
        if isinstance(model, DistributedDataParallel):
            optimizer.register_ddp(model)
        return optimizer


def backward(optimizer: Any, loss: Tensor, moment: Moment, **arguments: Any) -> Tensor | None:
    """The backward of a loop that uses this class: a plain ``loss.backward()`` wherever that is enough."""
    if not moment.last:
        with optimizer.no_step():
            optimizer.backward(loss, scaler=moment.scaler, **arguments)
        return None
    if moment.max_norm is None and moment.scaler is None:
        loss.backward(**arguments)  # type: ignore[no-untyped-call]
        return None
    norm: Tensor | None = optimizer.backward(
        loss,
        max_norm=moment.max_norm,
        error_if_nonfinite=moment.error_if_nonfinite,
        scaler=moment.scaler,
        **arguments,
    )
    if moment.scaler is not None:
        moment.scaler.step(optimizer)
        moment.scaler.update()
    return norm
