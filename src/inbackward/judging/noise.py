"""The noise floor: how far rounding alone carries the reference from itself, measured (design §4.2).

The reference is run again with everything that may legally differ moved by at most one unit in the last place of the
dtype it is computed in: the gradients at every update; the parameters during the forward (and only there) from the
second iteration on, since an update that rounds differently hands the next forward parameters one unit apart. The
first forward is the same computation on both sides, so its loss gets no such allowance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inbackward.judging.bits import as_integers, rms
from inbackward.judging.compare import Mismatch, tensors
from inbackward.training import Intervention, Iteration, Trace, local

RUNS = 4
LIMIT = 8.0
# A row moves with few degrees of freedom, so the largest of RUNS draws is a poor bound of its noise: rows of the
# reference's own rounding reach 17 floors (docs/decisions/0003-rows.md). A row may stray this many times further.
ROW_ALLOWANCE = 8.0
UNINFORMATIVE = 0.01


class Rounding(Intervention):
    """A seeded disturbance of at most one unit in the last place.

    Every tensor has a draw of its own, so that replicas on other ranks, whose shards of other tensors may have other
    sizes, are moved alike and stay replicas. Where gradients are scaled after the backward, or added up over ranks, the
    loss has another factor before it: every rounding of the backward and of the sum then falls otherwise. (A unit of
    the sum would not do: the ranks' gradients may cancel each other, and leave a sum of few digits.)
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.loss_factor = 1 + torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
        self._drawn = 0
        self._kept: list[Tensor] = []

    def before_forward(self, now: Iteration) -> None:
        parameters = now.parameters.values()
        self._kept = [local(p.detach()).clone() for p in parameters] if now.iteration else []
        for parameter, _ in zip(parameters, self._kept):
            self._jitter(local(parameter.detach()))

    def after_backward(self, now: Iteration) -> None:
        for parameter, kept in zip(now.parameters.values(), self._kept):
            local(parameter.detach()).copy_(kept)
        for parameter in now.parameters.values():
            if parameter.grad is not None:
                self._jitter(local(parameter.grad))

    def _jitter(self, x: Tensor) -> None:
        """Move every non-zero finite element by -1, 0 or 1 unit in the last place, in place."""
        values = x.coalesce().values() if x.is_sparse else x
        bits = as_integers(values)
        self._drawn += 1
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + self._drawn)
        step = torch.randint(-1, 2, bits.shape, generator=draw).to(bits)
        moved = (bits + step).view(values.dtype)
        keep = (values == 0) | ~values.isfinite() | ~moved.isfinite()
        moved = torch.where(keep, values, moved)
        x.copy_(torch.sparse_coo_tensor(x.coalesce().indices(), moved, x.shape) if x.is_sparse else moved)


@dataclass(frozen=True)
class Floor:
    """The reference, and ``RUNS`` runs of it under rounding-sized disturbance."""

    reference: Trace
    disturbed: Sequence[Trace]

    def ratio(self, mismatch: Mismatch) -> float:
        """The largest of three ratios of deviation to floor: of the whole tensor, of any row, of the largest element.

        ``rms(candidate - reference) / (max over runs of rms(disturbed - reference) + eps * rms(reference))``, where
        0/0 is 0 and x/0 is infinite. Rows are along dimension 0 of tensors with at least two dimensions, each with its
        own floor and an allowance of ``ROW_ALLOWANCE``.
        """
        if mismatch.candidate is None or mismatch.reference is None:
            return float("inf")
        others = [self._lookup(run, mismatch) for run in self.disturbed]
        return worst_ratio(mismatch.candidate, mismatch.reference, [o for o in others if o is not None])

    def uninformative(self) -> set[tuple[str, str]]:
        """Parameters and state tensors whose floor exceeds 1 % of their total update: counted, never proof."""
        return {key for key, share in self.shares().items() if share > UNINFORMATIVE}

    def shares(self) -> dict[tuple[str, str], float]:
        """Floor at the last iteration over total update, for every floating-point parameter and state tensor."""
        before = {(q, n): t for q, n, t in tensors(self.reference.initial)}
        after = {(q, n): t for q, n, t in tensors(self.reference.records[-1])}
        runs = [{(q, n): t for q, n, t in tensors(run.records[-1])} for run in self.disturbed]
        result = {}
        for (quantity, name), x in after.items():
            if quantity not in ("parameter", "state") or not x.is_floating_point() or name.endswith(".step"):
                continue
            key = quantity, name
            floor = max(rms(run[key].double() - x.double()) for run in runs if key in run) + epsilon(x) * rms(x)
            update = rms(x.double() - before.get(key, torch.zeros_like(x)).double())
            result[key] = _divide(floor, update)
        return result

    @staticmethod
    def _lookup(run: Trace, mismatch: Mismatch) -> Tensor | None:
        if mismatch.iteration >= len(run.records):
            return None
        for quantity, name, tensor in tensors(run.records[mismatch.iteration]):
            if (quantity, name) == (mismatch.quantity, mismatch.name):
                return tensor
        return None


def epsilon(x: Tensor) -> float:
    return torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0


def worst_ratio(candidate: Tensor, reference: Tensor, disturbed: Sequence[Tensor]) -> float:
    """See ``Floor.ratio``. Elements that are not finite are left out: their places are compared exactly elsewhere."""
    if not reference.numel():
        return 0.0
    eps = epsilon(reference)

    def rows(x: Tensor) -> Tensor:
        wide = x.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return wide.reshape(len(x), -1) if x.dim() else wide.reshape(1, 1)

    base = rows(reference)
    deviation = rows(candidate) - base
    noises = [rows(d) - base for d in disturbed if d.shape == reference.shape]

    def over(measure: Callable[[Tensor], Tensor]) -> float:
        floor = eps * measure(base)
        if noises:
            floor = floor + torch.stack([measure(n) for n in noises]).amax(0)
        above = measure(deviation)
        ratio = torch.where(above == 0, torch.zeros_like(above), above / floor)
        return ratio.max().item()

    measures: list[Callable[[Tensor], Tensor]] = [lambda x: x.pow(2).mean().sqrt(), lambda x: x.abs().max()]
    rows_apart = 0.0
    if reference.dim() > 1:
        rows_apart = over(lambda x: x.pow(2).mean(1).sqrt()) / ROW_ALLOWANCE
    return max(rows_apart, *(over(measure) for measure in measures))


def _divide(a: float, b: float) -> float:
    return a / b if b else (0.0 if a == 0 else float("inf"))
