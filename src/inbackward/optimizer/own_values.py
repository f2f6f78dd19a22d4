"""What an optimizer keeps beside the state of its parameters, and writes at each of its steps: a counter, a weight."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

STATE, DEFAULTS, ATTRIBUTES = "state", "defaults", "attributes"
OF_PARAMETERS = ("params", "param_names")  # group entries that hold one item a parameter
GONE = object()  # what an entry is that has been deleted


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

    The entries of its groups and defaults, those of its state that belong to no parameter but have a name, and numbers
    and strings that are its attributes. They are put in at `settle()`, at the user's `step()`, when the plain optimizer
    would have written them: a tensor that was changed in place is changed in place again, as others may refer to it.
    Entries that differ between parameters show that these depend on each other: an error. So does a tensor of several
    numbers that is changed in place. An attribute may be of a single parameter, and the last one stands.

    torch's own optimizers write nothing of that kind, unless a hook of theirs does: there nothing is looked for, as
    that takes as long as a small update.
    """

    def __init__(self, inner: Optimizer) -> None:
        self._inner = inner
        self._of_torch = is_of_torch(inner)
        self._entries: dict[tuple[Any, str], Any] = {}
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}  # by id: the tensor, and what it is to be
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
        inner = self._inner
        if self._of_torch and not (inner._optimizer_step_pre_hooks or inner._optimizer_step_post_hooks):
            step()
            return
        counting = {i: groups[i] for i in groups if i in stepped}
        others = {i: groups[i] for i in groups if i not in stepped}
        places = {**counting, **self._places(), **others}
        before = {where: self._own(where, entries) for where, entries in places.items()}
        tensors = _tensors(before, {id(p) for group in groups.values() for p in group["params"]})
        step()
        for tensor in tensors:
            if tensor.has_changed():
                value = tensor.take_back(inner)
                if tensor.where not in others:
                    self._note_tensor(tensor, value)
        for where, entries in places.items():
            was, now = before[where], self._own(where, entries)
            for name in was | now:
                old, new = was.get(name, GONE), now.get(name, GONE)
                if new is old or (where == ATTRIBUTES and not (is_value(old) or is_value(new))):
                    continue
                _put(entries, name, old)
                if where not in others:
                    self._note(where, name, new)

    def _note(self, where: Any, name: str, value: Any) -> None:
        first = self._entries.setdefault((where, name), value)
        if where != ATTRIBUTES:
            self._check_same(where, name, first, value)
        self._entries[where, name] = value

    def _note_tensor(self, tensor: _Held, value: Tensor) -> None:
        _, first = self._tensors.setdefault(id(tensor.itself), (tensor.itself, value))
        if tensor.where != ATTRIBUTES:
            self._check_same(tensor.where, tensor.name, first, value)
        self._tensors[id(tensor.itself)] = tensor.itself, value

    def _check_same(self, where: Any, name: str, first: Any, value: Any) -> None:
        if not equal(first, value):
            said = f"{first!r} and {value!r}" if is_value(first) and is_value(value) else "different things"
            raise Coupled(self._inner, f"wrote {said} as the {_called(where, name)} for two parameters")

    def of_groups(self) -> list[tuple[int, str, Any]]:
        """What is held back of the groups: index, name and value."""
        return [(where, name, value) for (where, name), value in self._entries.items() if isinstance(where, int)]

    def settle(self) -> None:
        """Let the optimizer have what it wrote since the last time."""
        places = {**dict(enumerate(self._inner.param_groups)), **self._places()}
        for (where, name), value in self._entries.items():
            if where in places:  # a group may have been taken away
                _put(places[where], name, value)
        for tensor, value in self._tensors.values():
            _fill(tensor, value)
        self._entries.clear()
        self._tensors.clear()

    def _places(self) -> dict[Any, dict[Any, Any]]:
        return {STATE: self._inner.state, DEFAULTS: self._inner.defaults, ATTRIBUTES: vars(self._inner)}

    def _own(self, where: Any, entries: dict[Any, Any]) -> dict[str, Any]:
        """The entries that belong to no parameter."""
        if where != STATE:
            return {name: value for name, value in entries.items() if name not in OF_PARAMETERS}
        if self._looked_at != (id(entries), len(entries)):  # not each time, as there may be many parameters
            self._looked_at = (id(entries), len(entries))
            self._state_names = [key for key in entries if isinstance(key, str)]
        return {name: entries[name] for name in self._state_names}


@dataclass(frozen=True)
class _Held:
    """A tensor that may be changed in place: what it is before, and where it was first found."""

    itself: Tensor
    where: Any
    name: str
    version: int
    copy: Tensor | None  # where it is one number

    def has_changed(self) -> bool:
        if _version(self.itself) != self.version:
            return True
        if self.copy is None or self.itself.device.type != "cpu":  # elsewhere to compare would be to wait
            return False
        return not equal(self.itself, self.copy)  # as `.data` leaves the version alone

    def take_back(self, optimizer: Optimizer) -> Tensor:
        if self.copy is None:
            raise Coupled(optimizer, f"changes the {_called(self.where, self.name)} in place")
        value = self.itself.detach().clone()
        _fill(self.itself, self.copy)
        return value


def _tensors(places: dict[Any, dict[str, Any]], parameters: Container[int]) -> list[_Held]:
    """Those that are entries, and those attributes that are one number; each once, but for the parameters."""
    found: dict[int, _Held] = {}
    for where, entries in places.items():
        for name, value in entries.items():
            if isinstance(value, Tensor) and id(value) not in found and id(value) not in parameters:
                if is_value(value):
                    found[id(value)] = _Held(value, where, name, _version(value), value.detach().clone())
                elif where != ATTRIBUTES:
                    found[id(value)] = _Held(value, where, name, _version(value), None)
    return list(found.values())


def _called(where: Any, name: str) -> str:
    kind = {STATE: "state entry", DEFAULTS: "default", ATTRIBUTES: "attribute"}.get(where, "group entry")
    return f"{kind} {name!r}"


def _put(entries: dict[Any, Any], name: str, value: Any) -> None:
    if value is GONE:
        entries.pop(name, None)
    else:
        entries[name] = value


def _fill(tensor: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(value)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # of an inference tensor it is not kept


def is_of_torch(optimizer: Optimizer) -> bool:
    """Whether its class is one of torch's own, which are known to update each parameter by itself."""
    return type(optimizer).__module__.startswith("torch.optim.")


def is_value(value: Any) -> bool:
    """Whether it is one number, as a counter is, be it in a tensor, or a string."""
    return isinstance(value, Number | str) or (isinstance(value, Tensor) and value.numel() == 1)


def equal(a: Any, b: Any) -> bool:
    """Whether two values that were written are the same; a NaN is the same as another."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())
    if type(a) is type(b) and isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if type(a) is type(b) and isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if type(a) is type(b) and callable(getattr(a, "tolist", None)):  # of NumPy
        return equal(a.tolist(), b.tolist())
    return bool(a == b) or bool(a != a and b != b)
