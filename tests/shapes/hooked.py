"""A dict of optimizers, one a parameter, and a wrapper that lets them follow one scheduler: the shape of fine-tuning
recipes. The integration is contract §2's, to the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward import Implementation

SCHEDULED = ("lr", "betas", "momentum")


def register_hooks(model: nn.Module, optimizers: dict[nn.Parameter, Optimizer]) -> None:
    def step(p: Tensor) -> None:
        optimizers[p].step()  # type: ignore[index]
        optimizers[p].zero_grad()  # type: ignore[index]

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(step)


class Wrapper:
    """Saves and loads all the optimizers by the names of their parameters."""

    def __init__(self, model: nn.Module, optimizers: dict[nn.Parameter, Optimizer]) -> None:
        self.optimizers = optimizers
        self.named = {name: optimizers[p] for name, p in model.named_parameters() if p in optimizers}
        self.lr = {o: o.param_groups[0].get("lr") for o in optimizers.values()}

    def follow(self, scheduler: Any) -> None:
        """From now on the scheduler, which acts on one of the optimizers, acts on all.

        One whose own lr differs from the followed one's is kept in proportion.
        """
        leader = scheduler.optimizer
        for optimizer in self.optimizers.values():
            optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: self.copy(leader, optimizer))

    def copy(self, leader: Optimizer, follower: Optimizer) -> None:
        source, group = leader.param_groups[0], follower.param_groups[0]
        group.update({key: source[key] for key in SCHEDULED if key in source})
        if self.lr[follower] != self.lr[leader]:
            group["lr"] = self.lr[follower] * (source["lr"] / self.lr[leader])

    def state_dict(self) -> dict[str, Any]:
        return {name: optimizer.state_dict() for name, optimizer in self.named.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, optimizer in self.named.items():
            optimizer.load_state_dict(state_dict[name])


def build(model: nn.Module, groups: Any, cls: Any, kw: dict[str, Any]) -> Wrapper:
    d = {p: cls([{**g, "params": [p]}], **kw) for g in groups for p in g["params"]}
    register_hooks(model, d)
    return Wrapper(model, d)


def scheduler(wrapper: Wrapper, make: Callable[[Optimizer], Any]) -> Any:
    s = make(next(iter(wrapper.optimizers.values())))
    wrapper.follow(s)
    return s


implementation = Implementation(build=build, scheduler=scheduler, state=lambda w, model: w.optimizers)
