"""A right optimizer in backward of the simplest kind: a class over one optimizer, narrowed to a parameter at a time.

It is written apart from the package's own class, so that a flaw of that one is not taken for the truth. Most faults
derive from it: each of its methods is something that can be got wrong. What it cannot do at all (accumulate, clip, skip
a step that ``backward()`` has done) ``AtStep`` can: the plain optimizer in the same clothes.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

# Of no type that mypy knows, since a wrapper has neither the overloads of its step() nor groups that can be set.
Base: Any = Optimizer

STEPPED_BY: Any = WeakTensorKeyDictionary()


class Carried:
    """The attribute ``optimizer_in_backward`` of a class whose subclasses are integrated otherwise than by ``drop_in``.

    Args:
        make: from the class that is asked to its ``Implementation``.
    """

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def __get__(self, instance: object, owner: Any) -> Any:
        return self.make(owner)


class Watching:
    """Hooks on parameters by which an optimizer learns of their gradients; it is held weakly by them."""

    hooks: list[Any]

    def watch(self, parameters: list[Any]) -> None:
        """Hold this object weakly from each parameter; whoever watches a parameter last is the one who steps it."""
        me = weakref.ref(self)

        def on_gradient(p: Tensor) -> None:
            owner = me()
            if owner is not None and STEPPED_BY[p] is me and p.grad is not None:
                owner.on_gradient(p)

        for p in parameters:
            STEPPED_BY[p] = me
            trainable = p.requires_grad
            self.hooks.append(p.requires_grad_(True).register_post_accumulate_grad_hook(on_gradient))
            p.requires_grad_(trainable)

    def on_gradient(self, p: Any) -> None:
        self.update(p)
        self.free(p)

    def update(self, p: Any) -> None:
        raise NotImplementedError

    def free(self, p: Any) -> None:
        p.grad = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            raise RuntimeError("step() takes no closure: the update is done inside backward()")

    def close(self) -> None:
        unhook(self.hooks)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("this optimizer hangs on its parameters and is not copied: build a new one over the copy")


class Right(Watching, Base):  # type: ignore[misc]
    """One optimizer over all parameters, stepped with its groups narrowed to one of them."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        self.inner = optimizer_cls(params, **kwargs)
        self.__setstate__({})  # the rest of Optimizer.__init__, without groups of its own
        self.hooks = []
        for group in self.inner.param_groups:
            self.watch(group["params"])
        weakref.finalize(self, unhook, self.hooks)

    def update(self, p: Any) -> None:
        """Step ``p`` alone, with the hyperparameters that its group has now."""
        step(self.inner, [self.narrowed(g, p) for g in self.inner.param_groups if any(q is p for q in g["params"])])

    def narrowed(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        return {**group, "params": [q for q in group["params"] if q is p]}

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)
        self.watch(self.inner.param_groups[-1]["params"])

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.inner.defaults


def step(optimizer: Any, groups: list[dict[str, Any]], cls: Any = None) -> None:
    """Step an optimizer, as one of class ``cls``, with other groups than its own.

    torch's global step hooks are left out, which are the user's.
    """
    own, optimizer.param_groups = optimizer.param_groups, groups
    plain = (cls or type(optimizer)).step
    try:
        getattr(plain, "__wrapped__", plain)(optimizer)
    finally:
        optimizer.param_groups = own


def unhook(hooks: list[Any]) -> None:
    while hooks:
        hooks.pop().remove()


class AtStep(Right):
    """Updates in ``step()`` what has a gradient, as every plain optimizer does."""

    def watch(self, parameters: list[Tensor]) -> None:
        pass

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for p in dict.fromkeys(p for group in self.param_groups for p in group["params"]):
            if p.grad is not None:
                self.update(p)
        return loss
