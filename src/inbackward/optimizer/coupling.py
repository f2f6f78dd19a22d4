"""Whether an optimizer updates each parameter by itself: tried on three small ones, before a real one is touched."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from inbackward.optimizer.own_values import OF_PARAMETERS, Coupled, equal, is_number
from inbackward.optimizer.partial_step import PartialStep, bare_step

ITERATIONS = 3
SHAPES = ((4, 1.0), (8, -0.5), (6, 0.7))  # rows, and a scale of the numbers


def try_out(make: Callable[[Any], Optimizer], groups: list[dict[str, Any]]) -> tuple[str, bool]:
    """How three parameters of an optimizer depend on each other, or `""`, also where that cannot be tried.

    Some estimate one number from all gradients (Prodigy, D-Adaptation), clip by a norm of their own over all of them,
    or look for all of their parameters at each step. That is found here where it shows in three updates, and else when
    it does.

    Args:
        make: builds one over the parameters, or the groups, that it is given.
        groups: those of the one that is wanted; it is tried with such a group, or two, where there are several.

    Returns:
        The reason, and whether the groups must keep their places: see `PartialStep`.
    """
    if _get_current_dispatch_mode() is not None:  # of fake tensors, which have no numbers, or that watches what happens
        return "", False
    with _leaving_no_trace():
        # Not every class takes groups, nor the dtype that shows more.
        for given, dtype in product((groups, []), (torch.float64, torch.float32)):
            train = partial(_train, make, given, dtype)
            try:
                together, again = train(), train()
            except Exception:  # it is not made for such parameters, on this device; what it does says nothing
                continue
            if not _same(together, again):
                return "", False
            why = _why_not(train, together, in_places=False)
            if why and not _why_not(train, together, in_places=True):
                return "", True
            return why, False
    return "", False


def _why_not(train: Callable[..., list[Any]], together: list[Any], in_places: bool) -> str:
    """Why the parameters cannot be updated one after the other, or `""`."""
    try:
        apart = train(by_one=partial(PartialStep, in_places=in_places))
    except Coupled as coupled:
        return coupled.what
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return f"updates all of them at once, but raises where it updates one alone ({said})"
    return "" if _same(together, apart) else "updates them otherwise one after the other than all at once"


def _train(
    make: Callable[[Any], Optimizer],
    groups: list[dict[str, Any]],
    dtype: torch.dtype,
    by_one: Callable[[Optimizer], PartialStep] | None = None,
) -> list[Any]:
    """The parameters after a few updates, and the numbers in the groups."""
    torch.default_generator.manual_seed(0)
    parameters: list[Tensor] = [torch.nn.Parameter(_matrix(rows, scale, dtype)) for rows, scale in SHAPES]
    parts = [parameters] if len(groups) < 2 else [parameters[:2], parameters[2:]]
    given = [{**_options(groups[-i]), "params": part} for i, part in enumerate(parts)] if groups else parameters
    optimizer = make(given)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if [id(p) for p in held] != [id(p) for p in parameters]:
        raise LookupError("it has other parameters than it was given")
    if callable(train := getattr(optimizer, "train", None)):
        train()  # schedule-free ones step in that mode only
    alone = by_one(optimizer) if by_one else None
    for iteration in range(ITERATIONS):
        for p, (rows, scale) in zip(parameters, SHAPES, strict=True):
            p.grad = _matrix(rows, scale + iteration, dtype) ** 5  # of all sizes, as a bound may be on one
        if alone is None:
            bare_step(optimizer)
            continue
        for p in parameters:
            alone.step([p])
        alone.settle()
    return [*parameters, *(value for group in optimizer.param_groups for value in group.values() if is_number(value))]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Those of a group, which it may change; but not copies of objects, as one may be the model."""
    copied = (Tensor, list, dict, set, tuple)
    return {
        key: copy.deepcopy(value) if isinstance(value, copied) else value
        for key, value in group.items()
        if key not in OF_PARAMETERS
    }


@contextmanager
def _leaving_no_trace() -> Iterator[None]:
    """Nothing that a class does when it is tried is seen by the program: no warning, no random number drawn."""
    numpy: Any = sys.modules.get("numpy")
    drawn, drawn_by_numpy = random.getstate(), numpy and numpy.random.get_state()
    compiles = "torch._dynamo" in sys.modules  # which would take seconds
    eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.inference_mode(False), eager:
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(drawn)
        if numpy:
            numpy.random.set_state(drawn_by_numpy)


def _same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(equal, some, others))


def _matrix(rows: int, scale: float, dtype: torch.dtype) -> Tensor:
    return torch.linspace(-scale, 2 * scale, 4 * rows, dtype=dtype, device="cpu").view(rows, 4)
