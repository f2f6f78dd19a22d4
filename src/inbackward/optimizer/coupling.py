"""Whether an optimizer updates each parameter by itself: tried on two small ones, before a real one is touched."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from inbackward.optimizer.partial_step import Coupled, PartialStep

ITERATIONS = 3
SHAPES = ((4, 1.0), (8, -0.5))  # rows, and a scale of the numbers


def why_coupled(make: Callable[[list[Tensor]], Optimizer]) -> str:
    """How two parameters of an optimizer depend on each other, or `""`, also where that cannot be tried.

    Some estimate one number from all gradients (Prodigy, D-Adaptation), clip by a norm of their own over all of them,
    or count their calls. That is found here where it shows in three updates, and else when it does.

    Args:
        make: builds one over the parameters that it is given.
    """
    if _get_current_dispatch_mode() is not None:  # of fake tensors, which have no numbers, or that watches what happens
        return ""
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.inference_mode(False):
            warnings.simplefilter("ignore")
            together, again, apart = (_train(make, by_one) for by_one in (False, False, True))
    except Coupled as coupled:
        return coupled.what
    except Exception:  # it is not made for such parameters, on this device; what it does says nothing
        return ""
    alike = not _same(together, again) or _same(together, apart)
    return "" if alike else "updates two of them otherwise one after the other than both at once"


def _train(make: Callable[[list[Tensor]], Optimizer], by_one: bool) -> list[Tensor]:
    """Two parameters after a few updates."""
    torch.default_generator.manual_seed(0)
    parameters: list[Tensor] = [torch.nn.Parameter(_matrix(rows, scale)) for rows, scale in SHAPES]
    optimizer = make(parameters)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if [id(p) for p in held] != [id(p) for p in parameters]:
        raise LookupError("it has other parameters than it was given")
    partial = PartialStep(optimizer)
    for iteration in range(ITERATIONS):
        for p, (rows, scale) in zip(parameters, SHAPES, strict=True):
            p.grad = _matrix(rows, scale + iteration)
        for some in ([p] for p in parameters) if by_one else [parameters]:
            partial.step(some)
        partial.settle()
    return parameters


def _matrix(rows: int, scale: float) -> Tensor:
    return torch.linspace(-scale, 2 * scale, 4 * rows, dtype=torch.float32, device="cpu").view(rows, 4)


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
