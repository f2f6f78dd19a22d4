"""Stepping a plain optimizer for some of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# torch wraps every `step` in one function, which runs the hooks that are common to all optimizers and opens a profiler
# range. Its code object tells it from other decorators; the mark that torch sets on it is copied by functools.wraps.
_WRAPPER = getattr(Optimizer.profile_hook_step(lambda: None), "__code__")  # noqa: B009
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_OF_PARAMETERS = ("params", "param_names")  # group entries that hold one item a parameter


class Coupled(RuntimeError):
    """The parameters of an optimizer depend on each other."""

    def __init__(self, optimizer: Optimizer, what: str) -> None:
        self.what = what
        super().__init__(
            f"{type(optimizer).__name__} {what}, so its parameters depend on each other and cannot be stepped one at "
            "a time inside backward(): use it as a plain optimizer"
        )


class PartialStep:
    """Makes `step(parameters)` do for some parameters what the plain optimizer's `step()` does for all.

    The optimizer's groups are narrowed to them for that moment, everything else is its own: it reads its
    hyperparameters from the groups as they are now, and a parameter listed twice in a group is stepped twice.

    What the optimizer itself writes into a group (a counter, a running weight) must not be seen by the next parameters
    of the same iteration, nor be lost. Such values are kept until `settle()`, which is called at the user's `step()`,
    when the plain optimizer would have written them. Values that differ between parameters, or a tensor changed in
    place, show that the optimizer couples its parameters: an error.
    """

    def __init__(self, inner: Optimizer) -> None:
        self._inner = inner
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._written: dict[int, dict[str, Any]] = {}

    def step(self, parameters: Sequence[Tensor]) -> None:
        """Update the parameters and free their gradients.

        A gradient is kept if the optimizer raises, or has no such parameter.
        """
        groups = self._inner.param_groups
        narrowed = self._narrowed(parameters)
        if not narrowed:
            return
        versions = {
            (i, key): value._version
            for i, group in narrowed.items()
            for key, value in group.items()
            if isinstance(value, Tensor) and not value.is_inference()  # of which in-place changes cannot be seen
        }
        self._inner.param_groups = list(narrowed.values())
        try:
            with _without_autocast(parameters):
                _bare_step(self._inner)
        finally:
            self._inner.param_groups = groups
        for (i, key), version in versions.items():
            if narrowed[i].get(key) is groups[i].get(key) and groups[i][key]._version != version:
                raise Coupled(self._inner, f"changes the group entry {key!r} in place")
        for i, group in narrowed.items():
            before = groups[i]
            for key, value in group.items():
                if value is not before.get(key) and key not in _OF_PARAMETERS:
                    self._write(i, key, value)
            for p in group["params"]:
                p.grad = None

    def step_rest(self, updated: Container[int]) -> None:
        """What the plain `step()` does for groups without a gradient: nothing, or it counts the call.

        Args:
            updated: the ids of the parameters that have been updated since the last time.
        """
        groups = self._inner.param_groups
        rest = {i: dict(g) for i, g in enumerate(groups) if not any(id(p) in updated for p in g["params"])}
        if not rest:
            return
        self._inner.param_groups = list(rest.values())
        try:
            _bare_step(self._inner)
        finally:
            self._inner.param_groups = groups
        for i, group in rest.items():
            groups[i].update(group)

    def settle(self) -> None:
        """Let the groups have what the optimizer wrote into them since the last time."""
        for i, entries in self._written.items():
            if i < len(self._inner.param_groups):
                self._inner.param_groups[i].update(entries)
        self._written.clear()

    def _narrowed(self, parameters: Sequence[Tensor]) -> dict[int, dict[str, Any]]:
        """Copies of the groups that hold any of the parameters, by their index, with these alone."""
        try:
            return self._narrow(parameters)
        except LookupError:  # the groups are the user's, and have changed
            self._find_places()
            return self._narrow([p for p in parameters if id(p) in self._places])

    def _narrow(self, parameters: Sequence[Tensor]) -> dict[int, dict[str, Any]]:
        groups = self._inner.param_groups
        narrowed: dict[int, dict[str, Any]] = {}
        for p in parameters:
            for i, position in self._places[id(p)]:
                group = groups[i]
                if group["params"][position] is not p:
                    raise LookupError
                if i not in narrowed:
                    narrowed[i] = {**group, **{key: [] for key in _OF_PARAMETERS if key in group}}
                narrowed[i]["params"].append(p)
                if "param_names" in group:
                    narrowed[i]["param_names"].append(group["param_names"][position])
        return narrowed

    def _find_places(self) -> None:
        """Every (group, position) of each parameter. Remembered, as searching is quadratic."""
        self._places = {}
        for i, group in enumerate(self._inner.param_groups):
            for position, p in enumerate(group["params"]):
                self._places.setdefault(id(p), []).append((i, position))

    def place_of(self, p: Tensor) -> str:
        """Where `p` is, for messages."""
        self._find_places()
        i, position = self._places[id(p)][0]
        group = self._inner.param_groups[i]
        name = f" {group['param_names'][position]}" if "param_names" in group else ""
        return f"parameter {position} of group {i},{name} of shape {tuple(p.shape)},"

    def _write(self, i: int, key: str, value: Any) -> None:
        entries = self._written.setdefault(i, {})
        if key in entries and not _same(entries[key], value):
            what = f"wrote {entries[key]!r} and {value!r} as the group entry {key!r} for two parameters"
            raise Coupled(self._inner, what)
        entries[key] = value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return bool(a == b) or (a != a and b != b)


def _without_autocast(parameters: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """An optimizer steps outside autocast in the usual loop, even where `backward()` is called inside it."""
    if not _any_autocast():
        return nullcontext()
    kinds = {p.device.type for p in parameters}
    active = [kind for kind in kinds if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)]
    if not active:
        return nullcontext()
    stack = ExitStack()
    for kind in active:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def _bare_step(optimizer: Optimizer) -> None:
    """`optimizer.step()` with the step hooks that its own class registered, but without those of all optimizers."""
    step: Any = optimizer.step
    function: Any = getattr(step, "__func__", None)
    if getattr(function, "__code__", None) is not _WRAPPER:
        step()
        return
    args: Any = ()
    kwargs: Any = {}
    for pre_hook in tuple(optimizer._optimizer_step_pre_hooks.values()):
        args, kwargs = pre_hook(optimizer, args, kwargs) or (args, kwargs)
    function.__wrapped__(optimizer, *args, **kwargs)
    for post_hook in tuple(optimizer._optimizer_step_post_hooks.values()):
        post_hook(optimizer, args, kwargs)
