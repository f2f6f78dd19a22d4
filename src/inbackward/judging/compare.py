"""Two traces held against each other, every quantity of every iteration, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inbackward.judging.bits import same_bits, same_specials
from inbackward.training import Record, Trace

ENOUGH = 2**24  # iterations; a float32 counts that far

# The order in which an iteration computes them, and in which a divergence is reported.
QUANTITIES = (
    "early",
    "loss",
    "buffer",
    "parameter",
    "state",
    "state-names",
    "observed",
    "hyperparameter",
    "gradient",
    "bystander",
    "rng",
)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One quantity of one iteration in which the candidate is not the reference, bit for bit.

    Attributes:
        detail: what stands on either side, for people.
        candidate, reference: the tensors, where rounding might excuse the difference; else ``None``: names,
            hyperparameters, step counters, gradients that exist and special values are compared exactly.
    """

    iteration: int
    quantity: str
    name: str
    detail: str = ""
    candidate: Tensor | None = None
    reference: Tensor | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.iteration, QUANTITIES.index(self.quantity)


@dataclass
class Comparison:
    """All mismatches of two traces, and the count of what was compared.

    ``existing`` counts the tensors of the reference's trace; ``unobserved`` the quantities an opaque implementation
    hides.
    """

    mismatches: list[Mismatch] = field(default_factory=list)
    compared: int = 0
    existing: int = 0
    unobserved: int = 0


def tensors(record: Record) -> Iterator[tuple[str, str, Tensor]]:
    """Every tensor of a record as ``(quantity, name, tensor)``."""
    if record.loss is not None:
        yield "loss", "loss", record.loss
    for name, buffer in record.buffers.items():
        yield "buffer", name, buffer
    for name, parameter in record.parameters.items():
        yield "parameter", name, parameter
    for name, entries in record.state.items():
        for key, value in entries.items():
            yield "state", f"{name}.{key}", value
    for name, value in record.observed.items():
        yield "observed", name, value


def compare(candidate: Trace, reference: Trace) -> Comparison:
    """Compare iteration by iteration, as far as both traces go."""
    result = Comparison()
    hides_state = not any(r.state for r in candidate.records if r.by_candidate)
    for iteration, (mine, theirs) in enumerate(zip(candidate.records, reference.records)):
        _compare_tensors(result, iteration, mine, theirs, hides_state and mine.by_candidate)
        _compare_facts(result, iteration, mine, theirs)
    return result


def same_model_and_state(a: Record, b: Record, with_state: bool) -> bool:
    """Whether parameters, buffers and (where asked) optimizer state are bitwise the same."""
    wanted = ("parameter", "buffer", "state") if with_state else ("parameter", "buffer")
    sides = [{(q, n): t for q, n, t in tensors(r) if q in wanted} for r in (a, b)]
    return sides[0].keys() == sides[1].keys() and all(same_bits(t, sides[1][key]) for key, t in sides[0].items())


def _compare_tensors(result: Comparison, iteration: int, mine: Record, theirs: Record, hides_state: bool) -> None:
    found = {(quantity, name): tensor for quantity, name, tensor in tensors(mine)}
    for quantity, name, expected in tensors(theirs):
        result.existing += 1
        value = found.pop((quantity, name), None)
        if value is None and quantity == "state" and hides_state:
            result.unobserved += 1
            continue
        result.compared += 1
        if value is None:
            quantity = "state-names" if quantity == "state" else quantity
            result.mismatches.append(
                Mismatch(iteration=iteration, quantity=quantity, name=name, detail="missing; the reference has it")
            )
        elif not _equal(quantity, name, value, expected):
            result.mismatches.append(_tensor_mismatch(iteration, quantity, name, value, expected))
    for quantity, name in found:
        quantity = "state-names" if quantity == "state" else quantity
        result.mismatches.append(
            Mismatch(iteration=iteration, quantity=quantity, name=name, detail="exists; the reference has none")
        )


def _is_counter(quantity: str, name: str, value: Tensor) -> bool:
    whole = not value.is_floating_point()
    return (whole and quantity in ("state", "observed")) or (quantity == "state" and name.endswith(".step"))


def _equal(quantity: str, name: str, value: Tensor, expected: Tensor) -> bool:
    if _is_counter(quantity, name, expected) and value.shape == expected.shape:
        # A count is a count, in whatever dtype, as long as it can go on counting.
        return bool((value.double() == expected.double()).all()) and not _sticks_at(value.dtype, expected.dtype)
    return same_bits(value, expected)


def _sticks_at(dtype: torch.dtype, expected: torch.dtype) -> int:
    """Where a count in ``dtype`` ends that goes on in ``expected``, or 0; no scenario runs until a bfloat16 does."""
    last = _last_count(dtype)
    return last if last < min(_last_count(expected), ENOUGH) else 0


def _last_count(dtype: torch.dtype) -> int:
    """The largest number to which adding 1 over and over leads."""
    if dtype is torch.bool:
        return 1
    return int(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max


def _tensor_mismatch(iteration: int, quantity: str, name: str, value: Tensor, expected: Tensor) -> Mismatch:
    if value.shape != expected.shape:
        detail = f"shape {tuple(value.shape)}; the reference has {tuple(expected.shape)}"
    elif _is_counter(quantity, name, expected):
        detail = f"{value.tolist()}; the reference has {expected.tolist()}"
        last = _sticks_at(value.dtype, expected.dtype)
        detail += f", and counts in {expected.dtype}: {value.dtype} ends at {last}" if last else ""
    elif value.dtype != expected.dtype:
        detail = f"{value.dtype}; the reference has {expected.dtype}"
    elif not same_specials(value, expected):
        detail = "NaN or infinity at other places than in the reference"
    else:
        return Mismatch(iteration=iteration, quantity=quantity, name=name, candidate=value, reference=expected)
    return Mismatch(iteration=iteration, quantity=quantity, name=name, detail=detail)


def _compare_facts(result: Comparison, iteration: int, mine: Record, theirs: Record) -> None:
    result.unobserved += len(mine.unread)
    for name, values in (theirs.hyperparameters or {}).items():
        if name not in theirs.gradients_after_backward:
            continue  # not updated, so nothing was used; what its group shows may be brought up to date later
        shown = (mine.hyperparameters or {}).get(name, {})
        for key, expected in values.items():
            if key not in shown:
                result.unobserved += 1
            elif shown[key] != expected:
                detail = f"used {shown[key]}; the reference used {expected}"
                result.mismatches.append(
                    Mismatch(iteration=iteration, quantity="hyperparameter", name=f"{name}.{key}", detail=detail)
                )
    for name in sorted(mine.gradients_after_zero ^ theirs.gradients_after_zero):
        has = "is left" if name in mine.gradients_after_zero else "is gone"
        detail = f"{has} after zero_grad(), unlike in the reference"
        result.mismatches.append(Mismatch(iteration=iteration, quantity="gradient", name=name, detail=detail))
    for name, gradient in mine.read.items():
        if name not in theirs.read or not same_bits(gradient, theirs.read[name]):
            detail = "what .grad held before the step is not the reference's gradient"
            result.mismatches.append(Mismatch(iteration=iteration, quantity="gradient", name=name, detail=detail))
    for name in sorted(mine.moved_early - theirs.moved_early):
        detail = "changed before the last backward of the iteration"
        result.mismatches.append(Mismatch(iteration=iteration, quantity="early", name=name, detail=detail))
    for name in sorted(mine.disturbed - theirs.disturbed):
        detail = "was changed by the training, unlike in the reference"
        result.mismatches.append(Mismatch(iteration=iteration, quantity="bystander", name=name, detail=detail))
    if mine.other_rng != theirs.other_rng:
        detail = "random or numpy.random was drawn from differently"
        result.mismatches.append(Mismatch(iteration=iteration, quantity="rng", name="python", detail=detail))
    if mine.rng is not None and theirs.rng is not None and not same_bits(mine.rng, theirs.rng):
        detail = "the global generator was drawn from differently"
        result.mismatches.append(Mismatch(iteration=iteration, quantity="rng", name="torch", detail=detail))
