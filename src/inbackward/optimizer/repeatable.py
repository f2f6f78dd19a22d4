"""Whether an optimizer can be built once more and thrown away, without anything of the program's being touched."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from numbers import Number
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

CONSTANTS = (Number, str, bytes, type(None), type(...), range, Enum, type)
WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")  # to what may be others'
CONSTANTS_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


def is_repeatable(make: Any) -> bool:
    """Whether a callable makes the same thing each time, and changes nothing that others hold.

    A class does, and a function that refers only to what is constant, or a partial of these with what can be copied. As
    far as that can be told: what they do to globals of other modules is not looked at.
    """
    if isinstance(make, partial):
        return is_repeatable(make.func) and is_copyable([make.args, make.keywords])
    if isinstance(make, FunctionType):
        return _refers_to_constants(make, set())
    return isinstance(make, type)


def is_copyable(value: Any) -> bool:
    """Whether a value can be copied in place of being used: a number, a tensor, containers of these; no model."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_copyable, value))
    if isinstance(value, Mapping):
        return is_copyable([*value.keys(), *value.values()])
    if is_dataclass(value) and not isinstance(value, type):
        return all(is_copyable(getattr(value, field.name)) for field in fields(value))
    return isinstance(value, Tensor) or type(value).__module__ == "numpy" or _is_constant(value, set())


def _is_constant(value: Any, seen: set[int], names: Iterable[str] = ()) -> bool:
    if isinstance(value, FunctionType):
        return _refers_to_constants(value, seen)
    if isinstance(value, ModuleType):  # what is taken from it, as far as that can be told
        found = [getattr(value, name) for name in names if name in vars(value)]
        return all(id(item) in seen or _is_constant(item, {*seen, id(value)}, names) for item in found)
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(item, seen) for item in value)
    if isinstance(value, partial):
        return all(_is_constant(item, seen) for item in (value.func, value.args, tuple(value.keywords.values())))
    of_module = isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | type(None))
    return of_module or isinstance(value, (*CONSTANTS, *CONSTANTS_OF_TORCH))


def _refers_to_constants(function: FunctionType, seen: set[int]) -> bool:
    """Whether all that a function sees outside of itself is constant, and stays so."""
    if id(function) in seen:
        return True
    seen.add(id(function))
    codes = _codes(function.__code__)
    if any(op.opname in WRITES for code in codes for op in dis.get_instructions(code)):
        return False
    names = {name for code in codes for name in code.co_names}
    sees = [
        *inspect.getclosurevars(function).nonlocals.values(),
        *(function.__globals__[name] for name in names if name in function.__globals__),
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
    ]
    return all(_is_constant(value, seen, names) for value in sees)


def _codes(code: CodeType) -> list[CodeType]:
    """Of a function and of those within it."""
    return [code, *(c for const in code.co_consts if isinstance(const, CodeType) for c in _codes(const))]
