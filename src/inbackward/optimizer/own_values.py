"""What an optimizer keeps beside the state of its parameters, and writes at each of its steps: a counter, a weight."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

STATE, ATTRIBUTES = "state", "attributes"
OF_PARAMETERS = ("params", "param_names")  # group entries that hold one item a parameter


class Coupled(RuntimeError):
    """The parameters of an optimizer depend on each other."""

    def __init__(self, optimizer: Optimizer, what: str) -> None:
        self.what = what
        super().__init__(
            f"{type(optimizer).__name__} {what}, so its parameters depend on each other and cannot be stepped one at "
            "a time inside backward(): use it as a plain optimizer"
        )


class OwnValues:
    """Holds back what an optimizer writes of its own, so that all parameters of an iteration see what was before.

    The entries of its groups, those of its state that belong to no parameter but have a name, and numbers that are its
    attributes. They are put in at `settle()`, at the user's `step()`, when the plain optimizer would have written them.
    Entries that differ between parameters show that these depend on each other: an error. So does a tensor that is
    changed in place, unless it is a number. An attribute may be of a single parameter, and the last one stands.

    torch's own optimizers write nothing of that kind: there nothing is looked for, as that takes as long as a small
    update.
    """

    def __init__(self, inner: Optimizer) -> None:
        self._inner = inner
        self._of_torch = type(inner).__module__.startswith("torch.optim.")
        self._written: dict[Any, dict[str, Any]] = {}
        self._state_names: list[str] = []
        self._looked_at = (0, 0)

    def during(self, step: Callable[[], None], groups: dict[int, dict[str, Any]], stepped: Container[Any]) -> None:
        """Step, and take back what that writes.

        Args:
            step: steps the optimizer, which has `groups` meanwhile.
            groups: copies of its groups, by their index.
            stepped: those of them that count; what is written into another, it will write again.

        Raises:
            Coupled: what it writes is not the same for these parameters as for others of this iteration.
        """
        if self._of_torch:
            step()
            return
        places: dict[Any, dict[Any, Any]] = {**groups, STATE: self._inner.state, ATTRIBUTES: vars(self._inner)}
        before = {where: _Before(entries, self._names(where, entries)) for where, entries in places.items()}
        step()
        for where, entries in places.items():
            for name in self._names(where, entries):
                if before[where].differs(name, entries[name]):
                    entry = f"{STATE if where == STATE else 'group'} entry {name!r}"
                    if not before[where].can_take_back(name):
                        raise Coupled(self._inner, f"changes the {entry} in place")
                    value = before[where].take_back(entries, name)
                    if isinstance(where, int) and where not in stepped:
                        continue
                    written = self._written.setdefault(where, {})
                    if where != ATTRIBUTES and not equal(written.setdefault(name, value), value):
                        what = f"wrote {written[name]!r} and {value!r} as the {entry} for two parameters"
                        raise Coupled(self._inner, what)
                    written[name] = value

    def settle(self) -> None:
        """Let the optimizer have what it wrote since the last time."""
        for where, written in self._written.items():
            if where == ATTRIBUTES:
                vars(self._inner).update(written)
            elif where == STATE:
                self._inner.state.update(written)  # type: ignore[arg-type]
            elif where < len(self._inner.param_groups):
                self._inner.param_groups[where].update(written)
        self._written.clear()

    def _names(self, where: Any, entries: dict[Any, Any]) -> list[str]:
        if where == ATTRIBUTES:
            return [name for name, value in entries.items() if is_number(value)]
        if where != STATE:
            return [name for name in entries if name not in OF_PARAMETERS]
        if self._looked_at != (id(entries), len(entries)):  # not each time, as there may be many parameters
            self._looked_at = (id(entries), len(entries))
            self._state_names = [key for key in entries if isinstance(key, str)]
        return self._state_names


class _Before:
    """Entries of a dict as they are before a step, with copies of the numbers that could be changed in place."""

    def __init__(self, entries: dict[Any, Any], names: Iterable[str]) -> None:
        self._values = {name: entries[name] for name in names}
        self._versions = {name: _version(value) for name, value in self._values.items() if isinstance(value, Tensor)}
        self._copies = {
            name: value.detach().clone()
            for name, value in self._values.items()
            if isinstance(value, Tensor) and is_number(value)
        }

    def differs(self, name: str, value: Any) -> bool:
        return value is not self._values.get(name) or self._changed_in_place(name)

    def can_take_back(self, name: str) -> bool:
        return name in self._copies or not self._changed_in_place(name)

    def take_back(self, entries: dict[Any, Any], name: str) -> Any:
        """What was written as this entry, which is then again what it was."""
        value = entries[name]
        if name not in self._values:
            del entries[name]
            return value
        was = entries[name] = self._values[name]
        if self._changed_in_place(name):
            value = value.detach().clone()
            with torch.no_grad():
                was.copy_(self._copies[name])
        return value

    def _changed_in_place(self, name: str) -> bool:
        return name in self._versions and _version(self._values[name]) != self._versions[name]


def equal(a: Any, b: Any) -> bool:
    """Whether two values that were written are the same."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return bool(a == b) or (a != a and b != b)


def is_number(value: Any) -> bool:
    """Whether it is one number, as a counter is, be it in a tensor."""
    return isinstance(value, int | float | complex) or (isinstance(value, Tensor) and value.numel() == 1)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # of an inference tensor, changes in place cannot be seen
