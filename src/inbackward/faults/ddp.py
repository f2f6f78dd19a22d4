"""Faults under DistributedDataParallel, where a hook fires before gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from inbackward.faults.across import ByBucket, ByHooks, is_last, part
from inbackward.faults.fault import fault
from inbackward.optimizer import OptimizerInBackward
from inbackward.optimizer.own_implementation import OwnImplementation
from inbackward.training import Moment


@fault("rank-agreement", name="replicas-part", strategy="ddp", reports=(12,), what_if="gradient-not-reduced")
@fault("ddp", strategy="ddp", reports=(12,), what_if="gradient-not-reduced")
class StepsBeforeTheReduction(ByHooks):
    """Steps in hooks that fire before gradients are averaged: each rank applies its own."""


@fault("ddp", strategy="ddp", what_if="gradient-summed")
class SumsBuckets(ByBucket):
    """Takes the sum over the ranks for the mean."""

    def before(self, bucket: GradBucket) -> None:
        pass


@fault("ddp", strategy="ddp", subtle=True)
class DoublesViews(ByBucket):
    """Adds a gradient to itself where it is a view of its bucket."""

    def __init__(self, model: Any, *args: Any) -> None:
        super().__init__(model, *args)
        self.factor = 2.0 if model.gradient_as_bucket_view else 1.0

    def after(self, bucket: GradBucket) -> None:
        bucket.buffer().mul_(self.factor)


@fault("ddp", strategy="ddp", subtle=True)
class TrustsStaticGraphs(ByBucket):
    """Takes a static graph for one that needs no more than its own gradient."""

    def __init__(self, model: Any, *args: Any) -> None:
        super().__init__(model, *args)
        self.trusts = model.static_graph

    def after(self, bucket: GradBucket) -> None:
        if self.trusts:
            bucket.buffer().mul_(1.0 / self.size)


@fault("ddp", strategy="ddp", subtle=True)
class LastReplicaParts(ByBucket):
    """Moves one element of one vector, on the last rank only."""

    def backward(self, loss: Any, moment: Moment) -> None:
        super().backward(loss, moment)
        if is_last():
            part(next(p for p in self.optimizers if p.dim() == 1))[0] += 1e-3


@fault("ranks-accumulation", name="buckets-each-micro-batch", strategy="ddp")
@fault("ranks-unused", name="buckets-of-unused", strategy="ddp")
class StepsTheWholeBucket(ByBucket):
    """Steps all parameters of a bucket whenever it is reduced: unused ones, and at micro-batches before the last."""


@fault("ranks-unused", strategy="ddp", subtle=True)
class UnusedHereIsUnused(ByBucket):
    """Takes a parameter that this rank has not used for one that nobody has used."""

    def gradient(self, gradient: Tensor, unused: bool) -> Tensor:
        return torch.zeros_like(gradient) if unused else gradient


@fault("global-clip", strategy="ddp", reports=("36c",), subtle=True)
class SecondPassUnreduced(ByBucket):
    """Clips in two passes, of which DDP reduces the first: the second applies each rank's own gradient."""

    second = False

    def summed(self, bucket: GradBucket) -> Any:
        if not self.second:
            return super().summed(bucket)
        bucket.buffer().mul_(self.size * self.factor)
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def backward(self, loss: Any, moment: Moment) -> Any:
        if moment.max_norm is None:
            return super().backward(loss, moment)
        gradients = torch.autograd.grad(loss, list(self.optimizers), retain_graph=True, allow_unused=True)
        present = [g / self.size for g in gradients if g is not None]
        for gradient in present:
            dist.all_reduce(gradient)
        norm = nn.utils.get_total_norm(present)
        self.second, self.factor = True, float((moment.max_norm / (norm + 1e-6)).clamp(max=1.0))
        super().backward(loss, moment)
        return norm


class NotScheduledOnRankOne(OwnImplementation):
    """Of a class that gives a scheduler, on rank 1, another optimizer to act on."""

    def __get__(self, instance: object, owner: Any) -> Any:
        return replace(super().__get__(instance, owner), scheduler=self.schedule, name=owner.__name__)

    @staticmethod
    def schedule(handle: Any, make: Callable[[Any], Any]) -> Any:
        return make(handle if dist.get_rank() != 1 else torch.optim.SGD([torch.zeros(1)], lr=1.0))


@fault("lr-schedule", name="shard-one-not-scheduled", strategy="fsdp2", subtle=True)
@fault("lr-schedule", strategy="ddp", subtle=True)
class RankOneNotScheduled(OptimizerInBackward):
    """Lets a scheduler act on every rank but one."""

    optimizer_in_backward = NotScheduledOnRankOne()
