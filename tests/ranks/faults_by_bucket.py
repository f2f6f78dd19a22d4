"""Wrong communication hooks: how one steps under DistributedDataParallel with gradients that are final."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tests.ranks.fault import RankFault
from torch import Tensor, nn
from torch.distributed import GradBucket

from inbackward import Implementation
from inbackward.training import Moment


class ByBucket:
    """Averages a bucket as DDP does and steps all its parameters: right where all of them are used."""

    def __init__(self, model: Any, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.optimizers = {p: cls([p], **kwargs) for group in groups for p in group["params"]}
        self.stepped: set[Tensor] = set()
        self.size = dist.get_world_size()
        model.register_comm_hook(self, reduce)

    def before(self, bucket: GradBucket) -> None:
        bucket.buffer().mul_(1.0 / self.size)

    def after(self, bucket: GradBucket) -> None:
        """What is done with the sum over the ranks."""

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        self.before(bucket)
        reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        unused = {p for p in bucket.parameters() if p.grad is None}

        def update(_: Any) -> Tensor:
            self.after(bucket)
            for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                p.grad = self.gradient(gradient, p in unused)
                self.optimizers[p].step()
                self.stepped.add(p)
            return bucket.buffer()

        return reduced.then(update)

    def gradient(self, gradient: Tensor, unused: bool) -> Tensor:
        """What a parameter is stepped with; ``unused`` on this rank or not."""
        return gradient

    def backward(self, loss: Tensor, moment: Moment) -> None:
        loss.backward()
        while self.stepped:  # nothing under no_sync()
            self.stepped.pop().grad = None


def reduce(state, bucket):
    return state.reduce(bucket)


class DividedAfter(ByBucket):
    """The mean of the sum, which at three ranks is rounded otherwise than the sum of thirds."""

    def before(self, bucket: GradBucket) -> None:
        pass

    def after(self, bucket: GradBucket) -> None:
        bucket.buffer().div_(self.size)


class Summed(ByBucket):
    def before(self, bucket: GradBucket) -> None:
        pass


class LocalUse(ByBucket):
    """Takes a parameter that this rank has not used for one that nobody has used."""

    def gradient(self, gradient: Tensor, unused: bool) -> Tensor:
        return torch.zeros_like(gradient) if unused else gradient


def of(cls: type[ByBucket], name: str) -> Implementation:
    def build(model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> ByBucket:
        return cls(model, groups, optimizer_cls, kwargs)

    return Implementation(
        build=build,
        backward=cls.backward,
        scheduler=lambda handle, make: None,
        state=lambda handle, model: handle.optimizers,
        name=name,
    )


class DoublesViews(ByBucket):
    """Adds a gradient to itself where it is a view of its bucket."""

    def __init__(self, model: Any, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(model, groups, cls, kwargs)
        self.factor = 2.0 if model.gradient_as_bucket_view else 1.0

    def after(self, bucket: GradBucket) -> None:
        bucket.buffer().mul_(self.factor)


class TrustsStaticGraphs(ByBucket):
    """Takes a static graph for one that needs no reduction."""

    def __init__(self, model: Any, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(model, groups, cls, kwargs)
        self.trusts = model.static_graph

    def after(self, bucket: GradBucket) -> None:
        if self.trusts:
            bucket.buffer().mul_(1.0 / self.size)


BY_BUCKET = of(ByBucket, "by bucket")
DIVIDED_AFTER = of(DividedAfter, "divided after")
SUMMED = of(Summed, "summed buckets")
DOUBLES_VIEWS = of(DoublesViews, "doubles views")
TRUSTS = of(TrustsStaticGraphs, "trusts static graphs")
LOCAL_USE = of(LocalUse, "local use")

BOTH = (0, 1)
FAULTS = [
    RankFault(SUMMED, "ddp", "ddp", "llama-sgd", 0, "parameter", BOTH),
    RankFault(SUMMED, "ddp", "ddp", "llama-adamw", 0, "parameter", BOTH),
    RankFault(DOUBLES_VIEWS, "ddp", "ddp", "bucket-view-sgd", 0, "parameter", BOTH, passes="several-buckets-sgd"),
    RankFault(TRUSTS, "ddp", "ddp", "static-graph-sgd", 0, "parameter", BOTH, passes="llama-sgd"),
    RankFault(BY_BUCKET, "ranks-unused", "ddp", "ddp-adamw", 0, "parameter", BOTH, passes="ddp-on-one-rank-adamw"),
    RankFault(LOCAL_USE, "ranks-unused", "ddp", "ddp-on-one-rank-sgd", 1, "parameter", (1,)),
    RankFault(BY_BUCKET, "ranks-accumulation", "ddp", "ddp-reduced-every-time-adamw", 0, "early", BOTH,
              passes="ddp-reduced-last-adamw"),
]  # fmt: skip
