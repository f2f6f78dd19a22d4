"""Right implementations, each written in another way, with what its way cannot do declared as its author would."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward.faults.right import AtStep, Right, Watching, step, unhook
from inbackward.training import Implementation

ALWAYS = "every backward updates, whatever it is for and whatever comes after it"
AT_ONCE = "a parameter is new before the gradients of the others are there"
UNSUPPORTED = {
    "accumulation": ALWAYS,
    "two-backwards": ALWAYS,
    "foreign-backward": ALWAYS,
    "checkpointed-activations": "reentrant checkpointing brings the gradient of a shared weight in parts",
    "global-clip": AT_ONCE,
    "grad-scaler": AT_ONCE,
    "stale-read": AT_ONCE,
    "dcp": "torch makes the state that it saves by a step(), which does nothing here",
}
OF_PLAIN = {
    "gradient-freed": "gradients are kept until step()",
    "gradient-peak": "gradients are kept until step()",
    "observer": "to read its DCP dictionary before the first step makes torch take one (pytorch#164929)",
}


class PerParameter(Right):
    """One optimizer a parameter, which before it steps is told what the parameter's group and state are now."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.each: dict[Tensor, Optimizer] = {}

    def update(self, p: Any) -> None:
        groups = [self.narrowed(g, p) for g in self.param_groups if any(q is p for q in g["params"])]
        if p not in self.each:
            cls: Any = type(self.inner)
            self.each[p] = cls([{**groups[0], "params": [p]}])
        self.each[p].state = self.state
        step(self.each[p], groups)


class Gathering(Right):
    """Updates several parameters by one step, and at the end of a backward those that are left."""

    def on_gradient(self, p: Any) -> None:
        waiting = self.__dict__.setdefault("waiting", set())
        if not waiting:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.flush)
        waiting.add(p)
        if self.complete(waiting, p):
            self.flush()

    def complete(self, waiting: set[Any], p: Any) -> bool:
        """Whether the parameters that wait are to be updated now, ``p`` being the last that came."""
        raise NotImplementedError

    def flush(self) -> None:
        waiting = {p for p in self.__dict__.pop("waiting", ()) if p.grad is not None}
        groups = [{**g, "params": [p for p in g["params"] if p in waiting]} for g in self.param_groups]
        step(self.inner, [group for group in groups if group["params"]])
        for p in waiting:
            self.free(p)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.__dict__.pop("waiting", None)  # of a backward that was interrupted
        super().zero_grad(set_to_none)


class Bucketed(Gathering):
    """Lets gradients gather in a bucket half as large as the largest parameter."""

    def complete(self, waiting: set[Any], p: Any) -> bool:
        largest = max(q.nbytes for group in self.param_groups for q in group["params"])
        return bool(sum(q.nbytes for q in waiting) >= largest / 2)


class PerModule(Gathering):
    """Updates a module when all of its own parameters have their gradients."""

    def __init__(self, model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(groups, optimizer_cls, **kwargs)
        self.siblings: dict[Tensor, list[Tensor]] = {}
        for module in model.modules():
            own: list[Tensor] = list(module.parameters(recurse=False))
            self.siblings.update(dict.fromkeys([p for p in own if p not in self.siblings], own))

    def complete(self, waiting: set[Any], p: Any) -> bool:
        return all(q in waiting or not q.requires_grad for q in self.siblings.get(p, ()))


def subclass(optimizer_cls: Any) -> Any:
    """The optimizer itself, by a subclass of its class: its ``step()`` does nothing, and a hook does what it did."""

    class InBackward(Watching, optimizer_cls):  # type: ignore[misc]
        def __init__(self, params: Any, **kwargs: Any) -> None:
            self.hooks = []
            super().__init__(params, **kwargs)
            weakref.finalize(self, unhook, self.hooks)

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            super().add_param_group(param_group)
            self.watch(self.param_groups[-1]["params"])

        def update(self, p: Any) -> None:
            groups = [{**g, "params": [q for q in g["params"] if q is p]} for g in self.param_groups]
            step(self, [group for group in groups if group["params"]], optimizer_cls)

    return InBackward


made: Callable[[Any], Any] = cache(subclass)  # a class for each optimizer, as torch patches step() once a class


def of_its_class(params: Any, optimizer_cls: type[Optimizer], **kwargs: Any) -> Any:
    return made(optimizer_cls)(params, **kwargs)


def by(target: Callable[..., Any], name: str, unsupported: dict[str, str] = UNSUPPORTED) -> Implementation:
    return Implementation.drop_in(target, unsupported=unsupported, name=name)


RIGHT: tuple[Implementation, ...] = (
    by(Right, "one optimizer, its groups narrowed"),
    by(PerParameter, "one optimizer a parameter"),
    Implementation(build=PerModule, unsupported=UNSUPPORTED, name="module by module"),
    by(Bucketed, "in buckets"),
    by(of_its_class, "a subclass of the optimizer"),
    by(AtStep, "the plain optimizer in other clothes", OF_PLAIN),
)
