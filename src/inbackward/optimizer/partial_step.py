"""Stepping a plain optimizer for some of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from inbackward.optimizer.own_values import OF_PARAMETERS, OwnValues

# torch wraps every `step` in one function, which runs the hooks that are common to all optimizers and opens a profiler
# range. Its code object tells it from other decorators; the mark that torch sets on it is copied by functools.wraps.
_WRAPPER = getattr(Optimizer.profile_hook_step(lambda: None), "__code__")  # noqa: B009
_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


class Way(NamedTuple):
    """What an optimizer must see where it is stepped for some of its parameters.

    Attributes:
        in_places: each group in its place, without parameters where none of them is stepped, as it keeps a list with
            one entry a group, or has the first group speak for all. Else it sees no such groups, as there may be many.
        rest: at the end of an iteration, those that had no gradient, as it takes that for a gradient of zeros.
    """

    in_places: bool = False
    rest: bool = False


WAYS = (Way(), Way(rest=True), Way(in_places=True), Way(in_places=True, rest=True))
UNKNOWN = Way(in_places=True)  # of a class that cannot be tried


class PartialStep:
    """Makes `step(parameters)` do for some parameters what the plain optimizer's `step()` does for all.

    The optimizer's groups are narrowed to them for that moment, everything else is its own: it reads its
    hyperparameters from the groups as they are now, and a parameter listed twice in a group is stepped twice.

    What the optimizer writes of its own (a counter, a running weight) must not be seen by the next parameters of the
    same iteration, nor be lost: see `OwnValues`, which keeps it until `settle()`.

    Args:
        inner: the plain optimizer.
        way: what it must see.
    """

    def __init__(self, inner: Optimizer, way: Way = WAYS[0]) -> None:
        self._inner = inner
        self._way = way
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._own = OwnValues(inner)

    def step(self, parameters: Sequence[Tensor]) -> None:
        """Update the parameters and free their gradients.

        A gradient is kept if the optimizer raises, or has no such parameter.
        """
        narrowed = self._narrowed(parameters)
        if not narrowed:
            return
        with _without_autocast(parameters):
            self._step(narrowed)
        for group in narrowed.values():
            for p in group["params"]:
                p.grad = None

    def written_to_groups(self) -> list[tuple[int, str, Any]]:
        """What the optimizer wrote into its groups since the last time: index, name and value."""
        return self._own.of_groups()

    def settle(self) -> None:
        """Let the optimizer have what it wrote of its own since the last time."""
        self._own.settle()

    def step_rest(self, updated: Container[int]) -> None:
        """What the plain `step()` does for what has no gradient: nothing, or it counts the call of a whole group.

        Args:
            updated: the ids of the parameters that have been updated since the last time.
        """
        groups = self._inner.param_groups
        rest = {i: dict(g) for i, g in enumerate(groups) if not any(id(p) in updated for p in g["params"])}
        if self._way.rest:
            left = [p for i, g in enumerate(groups) if i not in rest for p in g["params"] if id(p) not in updated]
            rest = {**rest, **self._narrowed(list(dict.fromkeys(left)))}
        if rest:
            self._step(rest)
        for group in rest.values() if self._way.rest else ():
            for p in group["params"]:
                p.grad = None  # of zeros, as it made them

    def _step(self, some: dict[int, dict[str, Any]]) -> None:
        """Step with these groups only."""
        groups, shown = self._inner.param_groups, some
        if self._way.in_places:
            shown = {i: some.get(i) or _without_parameters(group) for i, group in enumerate(groups)}
        self._inner.param_groups = list(shown.values())
        try:
            self._own.during(partial(bare_step, self._inner), shown, stepped=some)
        finally:
            self._inner.param_groups = groups

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
                    narrowed[i] = _without_parameters(group)
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


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {**group, **{key: [] for key in OF_PARAMETERS if key in group}}


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


def bare_step(optimizer: Optimizer) -> None:
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
