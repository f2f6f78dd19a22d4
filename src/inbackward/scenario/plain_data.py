"""Dataclasses to plain JSON data and back, typed by their annotations: the only reader and writer of scenarios.

Only what scenarios use is known: str, bool, int, float, ``Any``, ``Mapping[str, Any]``, ``tuple[X, ...]``, fixed
tuples, ``X | None``, nested dataclasses, and events (by their ``kind``).
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

from inbackward.scenario.events import EVENTS, Event


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Field name to resolved annotation, in the order of the fields."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def to_plain(value: Any) -> Any:
    """JSON data of ``value``: every field is written, tuples become lists, an event carries its ``kind``.

    JSON has no infinity: a float field that is infinite is written ``"inf"``.
    """
    if is_dataclass(value) and not isinstance(value, type):
        plain = {"kind": value.kind} if isinstance(value, Event) else {}
        for name, kind in field_types(type(value)).items():
            item = getattr(value, name)
            plain[name] = "inf" if kind is float and item == math.inf else to_plain(item)
        return plain
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def terse(value: Any) -> str:
    """``repr`` for people: of a dataclass, only the fields that are not at their default."""
    if isinstance(value, tuple) and any(is_dataclass(item) for item in value):
        return f"({', '.join(map(terse, value))}{',' * (len(value) == 1)})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    own = [(f, getattr(value, f.name)) for f in fields(value)]
    usual = [f.default if f.default_factory is MISSING else f.default_factory() for f, _ in own]
    shown = [f"{f.name}={terse(item)}" for (f, item), default in zip(own, usual) if item != default]
    return f"{type(value).__name__}({', '.join(shown)})"


def from_plain(kind: Any, data: Any, where: str) -> Any:
    """The value of type ``kind`` that ``data`` describes.

    Raises:
        ValueError: ``data`` does not fit; the line names the place (``where``) and what would fit.
    """
    if kind is Any:
        return _tuples(data)
    if kind is Event:
        return _event(data, where)
    if is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), data, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _tuple(arguments, data, where)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in arguments if a is not type(None))
        return None if data is None else from_plain(inner, data, where)
    if origin is Mapping:
        _check(isinstance(data, dict), where, "an object", data)
        return {key: _tuples(item) for key, item in data.items()}
    if kind is float:
        if data == "inf":
            return math.inf
        _check(isinstance(data, (int, float)) and not isinstance(data, bool), where, "a number", data)
        return float(data)
    fits = type(data) is kind
    _check(fits, where, {str: "a string", int: "a whole number", bool: "true or false"}[kind], data)
    return data


def _check(fits: bool, where: str, wanted: str, data: Any) -> None:
    if not fits:
        raise ValueError(f"{where} is {data!r}; it must be {wanted}")


def _tuples(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_tuples(item) for item in data)
    return {key: _tuples(item) for key, item in data.items()} if isinstance(data, dict) else data


def _tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _check(isinstance(data, list), where, "a list", data)
    if arguments[-1] is not Ellipsis:
        _check(len(data) == len(arguments), where, f"a list of {len(arguments)}", data)
        return tuple(from_plain(a, item, f"{where}[{i}]") for i, (a, item) in enumerate(zip(arguments, data)))
    return tuple(from_plain(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))


def _event(data: Any, where: str) -> Event:
    _check(isinstance(data, dict), where, "an object", data)
    kind = data.get("kind")
    _check(isinstance(kind, str) and kind in EVENTS, f"{where}.kind", f"one of {', '.join(EVENTS)}", kind)
    event: Event = _dataclass(EVENTS[kind], {k: v for k, v in data.items() if k != "kind"}, where)
    return event


def _dataclass(cls: type, data: Any, where: str) -> Any:
    _check(isinstance(data, dict), where, "an object", data)
    known = field_types(cls)
    for name in data:
        if name not in known:
            raise ValueError(f"{where} has no field {name!r}; its fields are {', '.join(known)}")
    values = {name: from_plain(known[name], item, f"{where}.{name}") for name, item in data.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
