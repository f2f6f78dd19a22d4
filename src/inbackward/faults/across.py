"""Right ways to step under a strategy, from which the faults across ranks derive."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.optim import Optimizer

from inbackward.faults.right import Carried
from inbackward.training import Implementation, Moment


def part(x: Any) -> Tensor:
    """What of a tensor lies on this rank; it shares its memory."""
    here: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return here.detach()


def integrated(cls: Any) -> Implementation:
    """Of a class called as ``cls(model, groups, optimizer_cls, kwargs)`` that schedules do not reach by its groups."""
    return Implementation(
        build=cls,
        backward=cls.backward,
        scheduler=lambda handle, make: None,
        state=lambda handle, model: handle.optimizers,
        name=cls.__name__,
    )


class ByHooks:
    """An optimizer a parameter, stepped by its hook: right wherever torch calls hooks when gradients are final.

    Under DistributedDataParallel that is before they are averaged.
    """

    optimizer_in_backward = Carried(integrated)

    def __init__(self, model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.model = model
        self.optimizers: dict[Any, Optimizer] = {}
        for group in groups:
            self.optimizers.update({p: cls([{**group, "params": [p]}], **kwargs) for p in self.parameters(group)})
        for p in self.optimizers:
            p.register_post_accumulate_grad_hook(self.on_gradient)

    def parameters(self, group: dict[str, Any]) -> list[Any]:
        return list(group["params"])

    def on_gradient(self, p: Any) -> None:
        self.optimizers[p].step()
        self.optimizers[p].zero_grad()

    def backward(self, loss: Any, moment: Moment) -> None:
        for optimizer in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = moment.groups[0]["lr"]
        loss.backward()


class ByBucket:
    """A communication hook that averages a bucket as DDP does and steps all its parameters, if all of them are used."""

    optimizer_in_backward = Carried(integrated)

    def __init__(self, model: Any, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.optimizers: dict[Any, Optimizer] = {p: cls([p], **kwargs) for group in groups for p in group["params"]}
        self.stepped: set[Any] = set()
        self.size = dist.get_world_size()
        model.register_comm_hook(self, reduce)

    def before(self, bucket: GradBucket) -> None:
        bucket.buffer().mul_(1.0 / self.size)

    def summed(self, bucket: GradBucket) -> Any:
        """A future of the sum over the ranks."""
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def after(self, bucket: GradBucket) -> None:
        """What is done with that sum."""

    def reduce(self, bucket: GradBucket) -> Any:
        self.before(bucket)
        unused = {p for p in bucket.parameters() if p.grad is None}

        def update(_: Any) -> Tensor:
            self.after(bucket)
            for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                p.grad = self.gradient(gradient, p in unused)
                self.optimizers[p].step()
                self.stepped.add(p)
            return bucket.buffer()

        return self.summed(bucket).then(update)

    def gradient(self, gradient: Tensor, unused: bool) -> Tensor:
        """What a parameter is stepped with; ``unused`` on this rank or not."""
        return gradient

    def backward(self, loss: Any, moment: Moment) -> Any:
        loss.backward()
        while self.stepped:  # nothing under no_sync()
            self.stepped.pop().grad = None


def reduce(state, bucket):  # type: ignore[no-untyped-def]  # torch checks the names, and the types where there are any
    return state.reduce(bucket)


def is_last() -> bool:
    """Whether this is the last of the ranks."""
    return dist.get_rank() == dist.get_world_size() - 1
