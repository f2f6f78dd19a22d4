"""A right optimizer in backward that has never heard of ranks: an optimizer a parameter, stepped by its hook.

Under DistributedDataParallel it is the naive one: there a parameter's hook fires before the gradients are averaged.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward import Implementation
from inbackward.training import Moment

Optimizers = dict[Tensor, Optimizer]


def build(model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> Optimizers:
    optimizers = {p: cls([{**g, "params": [p]}], **kwargs) for g in groups for p in g["params"]}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in optimizers:
        p.register_post_accumulate_grad_hook(step)
    return optimizers


def backward(optimizers: Optimizers, loss: Tensor, moment: Moment) -> None:
    for optimizer in optimizers.values():
        optimizer.param_groups[0]["lr"] = moment.groups[0]["lr"]
    loss.backward()


implementation = Implementation(build=build, backward=backward, scheduler=lambda handle, make: None, name="by hooks")
