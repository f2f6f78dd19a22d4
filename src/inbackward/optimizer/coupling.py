"""Whether an optimizer updates each parameter by itself: tried on three small ones, before a real one is touched."""

from __future__ import annotations

import copy
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from inbackward.optimizer.own_values import OF_PARAMETERS, Coupled, equal, is_of_torch, is_value
from inbackward.optimizer.partial_step import UNKNOWN, WAYS, PartialStep, Way, bare_step
from inbackward.optimizer.repeatable import is_copyable, is_repeatable

ITERATIONS = 3
SHAPES = ((4, 1.0), (8, -0.5), (6, 0.7))  # rows, and a scale of the numbers
ORDERS = ("", ", the last first,")  # in which they are updated; a backward begins with the last
SEED = 0


def try_out(optimizer_cls: Callable[..., Optimizer], kwargs: dict[str, Any], wanted: Optimizer) -> tuple[str, Way]:
    """How three parameters of an optimizer depend on each other, or `""`, also where that cannot be tried.

    Some estimate one number from all gradients (Prodigy, D-Adaptation), clip by a norm of their own over all of them,
    or look for all of their parameters at each step. That is found here where it shows in three updates, and else when
    it does.

    Args:
        optimizer_cls, kwargs: build one over the parameters, or the groups, that it is given. If that might be noticed
            elsewhere, nothing is tried: see `is_repeatable`.
        wanted: the one that is to be used; the trial is with two groups such as it has, which differ if any do.

    Returns:
        The reason, and the way in which one is to be stepped for some of its parameters.
    """
    make, of_torch = partial(optimizer_cls, **kwargs), is_of_torch(wanted)
    untried = "", Way() if of_torch else UNKNOWN
    # Fake tensors have no numbers, and some other mode may watch what happens.
    if _get_current_dispatch_mode() is not None or not is_repeatable(make):
        return untried
    options = [{k: v for k, v in group.items() if k not in OF_PARAMETERS} for group in wanted.param_groups]
    options = [options[0], next((other for other in reversed(options) if not equal(other, options[0])), options[0])]
    with _leaving_no_trace():
        # Not every class takes groups, nor the dtype that shows more, nor a parameter without a gradient.
        kinds = product((options, []) if is_copyable(options) else ([],), (torch.float64, torch.float32), (True, False))
        for given, dtype, missing in kinds:
            train = partial(_train, make, given, dtype, missing)
            try:
                together, drawn = train(), _numbers_were_drawn()
                again = train()
            except (Exception, SystemExit):  # not made for such parameters, on this device; what it does says nothing
                continue
            if not equal(together.parameters, again.parameters):
                return untried
            kept = {name: value for name, value in together.kept.items() if equal(value, again.kept.get(name))}
            together = together._replace(kept=kept)
            orders = ORDERS[:1] if drawn else ORDERS  # another order would give each parameter other random numbers
            reasons = []
            for way in WAYS[:1] if of_torch else WAYS:
                reasons.append(_why_not(train, together, orders, way))
                if not reasons[-1]:
                    needs_places = bool(given) and not of_torch and _needs_places(train, way)
                    return "", way._replace(in_places=way.in_places or needs_places)
            return reasons[0], Way()  # of the way that asks the least of it
    return untried


def _needs_places(train: Callable[..., _Trained], way: Way) -> bool:
    """Whether groups must keep their places once another is added; also to raise where the plain one does."""
    train = partial(train, late=True)
    together = _result(train)
    if together is None:
        return _result(partial(train, by_one=partial(PartialStep, way=way))) is not None
    in_places = way._replace(in_places=True)
    return bool(_why_not(train, together, ORDERS[:1], way)) and not _why_not(train, together, ORDERS[:1], in_places)


class _Trained(NamedTuple):
    parameters: list[Tensor]
    kept: dict[str, list[Any]]


def _result(train: Callable[[], _Trained]) -> _Trained | None:
    try:
        return train()
    except (Exception, SystemExit):
        return None


def _why_not(train: Callable[..., _Trained], together: _Trained, orders: tuple[str, ...], way: Way) -> str:
    """Why the parameters cannot be updated one after the other, or `""`."""
    for order in orders:
        try:
            apart = train(by_one=partial(PartialStep, way=way), order=order)
        except Coupled as coupled:
            return coupled.what
        except (Exception, SystemExit) as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            return f"updates all of them at once, but raises where it updates one alone ({said})"
        if not equal(together.parameters, apart.parameters):
            return f"updates them otherwise one after the other{order} than all at once"
        if order:  # what is of the last parameter is then of another
            continue
        for name, value in together.kept.items():
            if not equal(value, apart.kept.get(name)):
                return f"writes another {name} when it updates them one after the other than all at once"
    return ""


def _train(
    make: Callable[[Any], Optimizer],
    options: list[dict[str, Any]],
    dtype: torch.dtype,
    missing: bool,
    by_one: Callable[[Optimizer], PartialStep] | None = None,
    order: str = ORDERS[0],
    late: bool = False,
) -> _Trained:
    """What there is after a few updates.

    Args:
        missing: one parameter has no gradient in one of them.
        late: the last group is added after the first of them.
    """
    torch.default_generator.manual_seed(SEED)
    make, options = copy.deepcopy((make, options))  # together, as one may hold what is in the other
    parameters: list[Tensor] = [torch.nn.Parameter(_matrix(rows, scale, dtype)) for rows, scale in SHAPES]
    parts = parameters[:2], parameters[2:]
    groups = [{**group, "params": part} for group, part in zip(options, parts, strict=True)] if options else []
    added = [groups.pop()] if late else []
    optimizer = make(groups or parameters)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if held != list(map(id, parts[0] if late else parameters)):
        raise LookupError("it has other parameters than it was given")
    if callable(train := getattr(optimizer, "train", None)):
        train()  # schedule-free ones step in that mode only
    alone = by_one(optimizer) if by_one else None
    for iteration in range(ITERATIONS):
        while added and iteration:
            optimizer.add_param_group(added.pop())
        for p, (rows, scale) in zip(parameters, SHAPES, strict=True):
            p.grad = _matrix(rows, scale + iteration, dtype) ** 5  # of all sizes, as a bound may be on one
        if missing and iteration == 1:
            parameters[1].grad = None
        if alone is None:
            bare_step(optimizer)
            continue
        ready = [p for p in parameters if p.grad is not None]
        for p in ready if order == ORDERS[0] else reversed(ready):
            alone.step([p])
        alone.step_rest(set(map(id, ready)))
        alone.settle()
    return _Trained(parameters, _kept(optimizer))


def _kept(optimizer: Optimizer) -> dict[str, list[Any]]:
    """The numbers, strings and tensors that it keeps of its own, in whatever containers, by the name of the place."""
    attributes = vars(optimizer)
    kept: dict[str, list[Any]] = {}
    for group in optimizer.param_groups:
        for name in group.keys() - OF_PARAMETERS:
            kept.setdefault(f"group entry {name!r}", []).extend(_leaves(group[name], set()))
    for name, value in attributes.get("state", {}).items():
        if isinstance(name, str):
            kept[f"state entry {name!r}"] = list(_leaves(value, set()))
    for name, value in attributes.items():
        if not is_value(value) and name not in ("state", "param_groups"):  # one number may be of the last parameter
            kept[f"attribute {name!r}"] = list(_leaves(value, set()))
    return kept


def _leaves(value: Any, seen: set[int]) -> Iterator[Any]:
    if is_value(value) or isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple | set) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item, seen)


def _numbers_were_drawn() -> bool:
    """Whether torch has drawn random numbers since `_train` began."""
    drawn = torch.get_rng_state()
    return not torch.equal(drawn, torch.default_generator.manual_seed(SEED).get_state())


@contextmanager
def _leaving_no_trace() -> Iterator[None]:
    """Nothing that a class does when it is tried is seen by the program: no print, no warning, no random number."""
    numpy: Any = sys.modules.get("numpy")
    drawn, drawn_by_numpy = random.getstate(), numpy and numpy.random.get_state()
    compiles = "torch._dynamo" in sys.modules  # which would take seconds
    eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
    unheard = io.StringIO()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.inference_mode(False), eager:
            warnings.simplefilter("ignore")
            with redirect_stdout(unheard), redirect_stderr(unheard):
                yield
    finally:
        random.setstate(drawn)
        if numpy:
            numpy.random.set_state(drawn_by_numpy)


def _matrix(rows: int, scale: float, dtype: torch.dtype) -> Tensor:
    return torch.linspace(-scale, 2 * scale, 4 * rows, dtype=dtype, device="cpu").view(rows, 4)
