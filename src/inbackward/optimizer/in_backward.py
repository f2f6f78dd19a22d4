"""`OptimizerInBackward`: any per-parameter optimizer of torch, stepping inside `loss.backward()`."""

from __future__ import annotations

import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from inbackward.optimizer.checkpoint import check_fits
from inbackward.optimizer.hook import StepHook, can_carry_hook, step_hooks, within_another_backward
from inbackward.optimizer.one_at_a_time import OneAtATime
from inbackward.optimizer.own_implementation import OwnImplementation
from inbackward.optimizer.rehearsal import Rehearsal, is_rehearsal


class OptimizerInBackward(Optimizer):
    """A drop-in for a torch optimizer that needs no memory for gradients: each is used and freed within `backward()`.

    The usual loop holds the gradients of all parameters at once, between `backward()` and `step()`. Here a parameter is
    updated as soon as its own gradient is final, and the gradient is set to None, so that only a few exist at a time.
    The numbers are those of the usual loop, bit for bit, for every optimizer that treats its parameters separately.

        optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
        for batch in data:
            model(batch).backward()  # updates the parameters
            optimizer.step()  # changes nothing more; schedulers and step hooks expect the call
            scheduler.step()
            optimizer.zero_grad()

    One optimizer of the wrapped class does the work: `param_groups`, `state`, `defaults`, `state_dict()` and whatever
    else the wrapped class offers are its own. So schedulers and edits of a group act at once, and a checkpoint of the
    plain optimizer loads here and the reverse. A value that the wrapped class writes into its groups (a counter) is
    seen there from `step()` on; an attribute that it keeps of itself, it changes once a parameter, not once a step.

    Each `backward()` is one update with the gradient as it is then, so that several micro-batches, a clipped total
    norm, a GradScaler and DistributedDataParallel need more than this class alone. Keep a reference to the optimizer:
    deleting it ends the updates, as `close()` does. A new one over exactly the same parameters takes over.

    A gradient that exists when `step()` is called is used then, as the plain optimizer would: one that was set by hand,
    that of a parameter put into a group by hand, and those that come from a backward within the backward. There
    (reentrant activation checkpointing) nobody can tell whether another segment will add to the gradient, so it waits,
    and no memory is saved: prefer `checkpoint(..., use_reentrant=False)`.

    Args:
        params (iterable of Tensor, of (str, Tensor) or of dict): what the wrapped class takes as its `params`.
        optimizer_cls (type[Optimizer] or callable): the class to wrap, or a callable that builds one from `params`.
        **kwargs: passed on to `optimizer_cls`.

    Raises:
        TypeError: `optimizer_cls` does not build a `torch.optim.Optimizer`, or `params` is a module.
        ValueError: the optimizer cannot step inside backward (its `step` needs a closure, or it is differentiable), or
            some of the parameters, but not all, belong to another `OptimizerInBackward` that is alive.
        RuntimeError: torch is older than 2.6. Later, from `step(closure)`; and from `backward()`, if the wrapped
            optimizer turns out to couple its parameters through its groups.

    Sources: the PyTorch tutorial "How to save memory by fusing the optimizer step into the backward pass"; the idea of
    updating during the backward pass is from LOMO (arXiv 2306.09782).
    """

    _inner: Optimizer
    closed: bool
    optimizer_in_backward = OwnImplementation()

    def __init__(self, params: ParamsT, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        _check_torch(torch.__version__)
        self.__setstate__({"_inner": _build(params, optimizer_cls, kwargs), "closed": False})

    # How an instance comes to life: built, copied and unpickled ones alike, each with hooks on the parameters at hand.

    def __getstate__(self) -> dict[str, Any]:
        self._rehearsal.forget(self._inner)
        self._one_at_a_time.settle()
        return {"_inner": self._inner, "closed": self.closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_inner" not in state:  # what Optimizer.load_state_dict sets, if it is called on this object directly
            self._inner.__setstate__(state)
            return
        super().__setstate__(state)  # not Optimizer.__init__, which would empty the state that Adagrad is built with
        self._one_at_a_time = OneAtATime(self._inner)
        self._rehearsal = Rehearsal()
        self._hook = StepHook(self, OptimizerInBackward._update)
        if not self.closed:
            self._claim()

    def _claim(self) -> list[Tensor]:
        """Put a hook on each parameter that has none of ours, and return those; refuse before anything is changed."""
        ours = {p for group in self.param_groups for p in group["params"] if can_carry_hook(p)}
        fresh = [p for p in ours if self._hook not in step_hooks(p)]
        owned = {p: owner for p in fresh for hook in step_hooks(p) if (owner := hook.owner) is not None}
        others = set(owned.values())
        for other in others:
            if ours != {p for group in other.param_groups for p in group["params"] if can_carry_hook(p)}:
                raise ValueError(
                    f"{len(owned)} of the {len(ours)} parameters are already stepped by another OptimizerInBackward: "
                    "call its close() first, or give each optimizer parameters of its own"
                )
            warnings.warn(
                "a new OptimizerInBackward takes over the parameters of one that is still alive and starts with fresh "
                "state: call close() on the old one before",
                stacklevel=4,
            )
        for other in others:
            other.close()
        for p in fresh:
            for hook in step_hooks(p):
                hook.remove()  # its optimizer is dead
            self._hook.register(p)
        return fresh

    def close(self) -> None:
        """Stop stepping, for good, and take the hooks off the parameters. Gradients stay from now on."""
        self.closed = True
        self._hook.remove()
        self._one_at_a_time.settle()

    # The loop.

    def _update(self, p: Tensor) -> None:
        self._opt_called = True  # what LRScheduler looks at, to warn when it is stepped before the optimizer
        if within_another_backward():
            return  # pytorch#81296: a weight shared by two segments comes here once a segment
        self._rehearsal.forget(self._inner)
        self._one_at_a_time.step(p)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change nothing, as the parameters were updated inside `backward()`; a gradient left over is used now.

        Raises:
            RuntimeError: if given a closure, whose `backward()` would be an update of its own.
        """
        if closure is not None:
            raise RuntimeError(
                "step() was given a closure, but the parameters are already updated inside backward(): "
                "call loss.backward() yourself and then step() without a closure"
            )
        if self.closed:
            return
        self._claim()
        left = dict.fromkeys(p for group in self.param_groups for p in group["params"] if p.grad is not None)
        if left and is_rehearsal(self._inner, left):
            self._rehearsal.hold(self._inner)
        else:
            for p in left:
                self._rehearsal.forget(self._inner)
                self._one_at_a_time.step(p)
        self._one_at_a_time.settle()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer does; there is a gradient only where no update took place."""
        self._inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as the wrapped optimizer does; if that is refused, nothing has changed."""
        groups, known = list(self.param_groups), set(self.state)
        self._inner.add_param_group(param_group)
        try:
            if not self.closed:
                self._claim()
        except BaseException:
            self.param_groups = groups
            for p in set(self.state) - known:
                del self.state[p]
            raise

    # What belongs to the wrapped optimizer.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._inner.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        return self._inner.state

    @state.setter
    def state(self, state: defaultdict[Tensor, Any]) -> None:
        self._inner.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        return self._inner.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self._inner.defaults = defaults

    def state_dict(self) -> dict[str, Any]:
        """The state dict of the wrapped optimizer, in its own layout."""
        self._one_at_a_time.settle()
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        state_dict = self._inner.state_dict()
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the wrapped optimizer, or of an `OptimizerInBackward` over it.

        Raises:
            ValueError: the state dict does not fit, where that can be told; nothing has changed then.
        """
        if not isinstance(state_dict, dict):
            raise TypeError(f"state_dict must be a dict, as state_dict() returns it, got a {type(state_dict).__name__}")
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        check_fits(self._inner, state_dict)
        self._one_at_a_time.settle()
        self._inner.load_state_dict(state_dict)
        self._rehearsal = Rehearsal()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{' (closed)' if self.closed else ''} over {self._inner!r}"


def _check_torch(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 6):
        raise RuntimeError(f"inbackward needs torch 2.6 or newer, found {version}: pip install 'torch>=2.6'")


def _build(params: ParamsT, optimizer_cls: Callable[..., Optimizer], kwargs: dict[str, Any]) -> Optimizer:
    """The wrapped optimizer, or the reason why it cannot step inside backward."""
    if not callable(optimizer_cls):
        raise TypeError(f"optimizer_cls must be an optimizer class such as torch.optim.AdamW, got {optimizer_cls!r}")
    if isinstance(params, torch.nn.Module):
        raise TypeError(f"params must be parameters or groups, got a {type(params).__name__}: pass its parameters()")
    inner = optimizer_cls(params, **kwargs)
    if isinstance(inner, OptimizerInBackward):
        inner.close()
    if isinstance(inner, OptimizerInBackward) or not isinstance(inner, Optimizer):
        raise TypeError(
            "optimizer_cls must build a plain torch.optim.Optimizer, "
            f"but {getattr(optimizer_cls, '__name__', optimizer_cls)} built a {type(inner).__name__}"
        )
    for name, argument in inspect.signature(inner.step).parameters.items():
        if argument.default is argument.empty and not str(argument).startswith("*"):
            raise ValueError(
                f"{type(inner).__name__} cannot step inside backward(), as its step needs the argument {name!r}: "
                "use it as a plain optimizer"
            )
    if any(options.get("differentiable") for options in (inner.defaults, *inner.param_groups)):
        raise ValueError(
            f"{type(inner).__name__}(differentiable=True) cannot step inside backward(), as autograd would have to "
            "record the step within its own run: leave differentiable=False"
        )
    return inner
