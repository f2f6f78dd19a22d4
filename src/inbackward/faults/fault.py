"""What a fault is, and how a module of the gallery enters its own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A wrong implementation: one mistake, and the requirement that must find it.

    Attributes:
        name: stable and unique; what ``inbackward selfcheck --only`` takes.
        target: a class called as ``cls(params, optimizer_cls, **kwargs)``, or one that carries an ``Implementation``.
        requirement: the id of the requirement that must catch it, whatever its other rows say.
        sentence: what is wrong, in one sentence.
        reports: rows of the list of public reports (``docs/faults.md``) in which this kind was met.
        subtle: it shows in one group, parameter, row, iteration, dtype, rank or moment only.
        what_if: the id of the what-if that is exactly this mistake, or ``""``.
        shares_code: the fault runs code of that what-if, so that its naming proves nothing.
        strategy: the one under which it is run.
    """

    name: str
    target: Any
    requirement: str
    sentence: str
    reports: tuple[int | str, ...] = ()
    subtle: bool = False
    what_if: str = ""
    shares_code: bool = False
    strategy: str = "single"


ENTERED: list[Fault] = []


def fault(requirement: str, *, name: str = "", **fields: Any) -> Callable[[T], T]:
    """Enter the decorated class into the gallery, its sentence being the first of its docstring.

    A mistake that several requirements must find is entered once for each, under names of their own.

    Args:
        requirement: the id of the requirement that must catch it.
        name: left out, it is the class's name in words.
        fields: the others of ``Fault``.
    """

    def enter(cls: T) -> T:
        sentence = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        words = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__).lower()
        ENTERED.append(Fault(name=words, target=cls, requirement=requirement, sentence=sentence, **fields))
        return cls

    return enter
