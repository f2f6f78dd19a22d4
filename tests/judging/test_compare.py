"""What counts as equal, what is compared exactly, and what is only counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from inbackward.judging.compare import Comparison, compare
from inbackward.training import Record, Trace

NAN, INF = float("nan"), float("inf")
RECORD = Record(
    by_candidate=True,
    loss=torch.tensor(2.5),
    parameters={"w": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.5])},
    buffers={"mean": torch.tensor([0.1])},
    state={"w": {"step": torch.tensor(3.0), "exp_avg": torch.tensor([0.1, 0.2])}},
    hyperparameters={"w": {"lr": 0.1}, "b": {"lr": 0.1}},
    gradients_after_backward=frozenset({"w"}),
    gradients_after_zero=frozenset(),
    rng=torch.tensor([1, 2], dtype=torch.uint8),
)


def against(reference: Record = RECORD, **changes: Any) -> Comparison:
    """A candidate that differs from the reference in some fields, in the second of two iterations."""
    initial = replace(RECORD, loss=None)
    candidate = Trace(initial=initial, records=[reference, replace(reference, **changes)])
    return compare(candidate, Trace(initial=initial, records=[reference, reference]))


def state(**entries: Tensor) -> dict[str, dict[str, Tensor]]:
    return {"w": {**RECORD.state["w"], **entries}}


def test_equal_traces_have_every_tensor_compared() -> None:
    comparison = against()
    assert comparison.mismatches == []
    assert comparison.compared == comparison.existing == 2 * 6
    assert comparison.unobserved == 0


@pytest.mark.parametrize(
    ("changes", "quantity", "name"),
    [
        ({"loss": torch.tensor(2.5000002)}, "loss", "loss"),
        ({"buffers": {"mean": torch.tensor([0.1000001])}}, "buffer", "mean"),
        ({"parameters": {**RECORD.parameters, "w": torch.tensor([1.0, -2.0000002])}}, "parameter", "w"),
        ({"parameters": {**RECORD.parameters, "b": torch.tensor([-0.0])}}, "parameter", "b"),
        ({"state": state(exp_avg=torch.tensor([0.1, 0.20000002]))}, "state", "w.exp_avg"),
    ],
)
def test_what_rounding_might_excuse_keeps_both_tensors(changes: dict[str, Any], quantity: str, name: str) -> None:
    (mismatch,) = against(**changes).mismatches
    assert (mismatch.iteration, mismatch.quantity, mismatch.name) == (1, quantity, name)
    assert mismatch.candidate is not None
    assert mismatch.reference is not None


@pytest.mark.parametrize(
    ("changes", "quantity", "name", "detail"),
    [
        ({"state": state(step=torch.tensor(4.0))}, "state", "w.step", "4.0; the reference has 3.0"),
        ({"state": state(exp_avg=torch.tensor([0.1]))}, "state", "w.exp_avg", "shape (1,); the reference has (2,)"),
        (
            {"state": state(exp_avg=torch.tensor([0.1, 0.2], dtype=torch.float64))},
            "state",
            "w.exp_avg",
            "torch.float64; the reference has torch.float32",
        ),
        ({"state": {"w": {"step": torch.tensor(3.0)}}}, "state-names", "w.exp_avg", "missing; the reference has it"),
        ({"state": state(more=torch.zeros(2))}, "state-names", "w.more", "exists; the reference has none"),
        (
            {"parameters": {**RECORD.parameters, "w": torch.tensor([NAN, -2.0])}},
            "parameter",
            "w",
            "NaN or infinity at other places than in the reference",
        ),
        ({"parameters": {"w": RECORD.parameters["w"]}}, "parameter", "b", "missing; the reference has it"),
        ({"hyperparameters": {"w": {"lr": 0.2}, "b": {"lr": 0.1}}}, "hyperparameter", "w.lr", "used 0.2; the"),
        ({"gradients_after_zero": frozenset({"b"})}, "gradient", "b", "is left after zero_grad()"),
        ({"moved_early": frozenset({"b"})}, "early", "b", "changed before the last backward"),
        ({"disturbed": frozenset({"a copy"})}, "bystander", "a copy", "was changed by the training"),
        ({"read": {"w": torch.tensor([1.0, 1.0])}}, "gradient", "w", "what .grad held before the step"),
        ({"rng": torch.tensor([1, 3], dtype=torch.uint8)}, "rng", "torch", "the global generator was drawn from"),
    ],
)
def test_what_rounding_never_excuses(changes: dict[str, Any], quantity: str, name: str, detail: str) -> None:
    (mismatch,) = against(**changes).mismatches
    assert (mismatch.iteration, mismatch.quantity, mismatch.name) == (1, quantity, name)
    assert mismatch.detail.startswith(detail)
    assert mismatch.candidate is None


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_special_values_must_stand_where_the_references_do(value: float) -> None:
    special = replace(RECORD, parameters={**RECORD.parameters, "w": torch.tensor([1.0, value])})
    assert against(special).mismatches == []
    moved = {**RECORD.parameters, "w": torch.tensor([value, 1.0])}
    (mismatch,) = against(special, parameters=moved).mismatches
    assert mismatch.candidate is None
    replaced = {**RECORD.parameters, "w": torch.tensor([1.0, 0.0])}
    (mismatch,) = against(special, parameters=replaced).mismatches
    assert mismatch.candidate is None


def test_a_count_is_a_count_in_whatever_dtype() -> None:
    assert against(state=state(step=torch.tensor(3))).mismatches == []
    assert against(state=state(step=torch.tensor(3.0, dtype=torch.float64))).mismatches == []


@pytest.mark.parametrize(
    ("dtype", "last"), [(torch.bfloat16, 256), (torch.float16, 2048), (torch.int16, 2**15 - 1), (torch.uint8, 255)]
)
def test_a_count_must_be_able_to_go_on(dtype: torch.dtype, last: int) -> None:
    (mismatch,) = against(state=state(step=torch.tensor(3, dtype=dtype))).mismatches
    assert mismatch.candidate is None
    assert mismatch.detail.endswith(f", and counts in torch.float32: {dtype} ends at {last}")
    if dtype.is_floating_point:
        assert torch.tensor(float(last), dtype=dtype) + 1 == last
        assert torch.tensor(float(last - 1), dtype=dtype) + 1 == last
    low = replace(RECORD, state=state(step=torch.tensor(3, dtype=dtype)))
    assert against(low).mismatches == []  # as the reference counts


def test_integer_state_is_compared_exactly() -> None:
    quantised = replace(RECORD, state=state(code=torch.tensor([7, 8], dtype=torch.uint8)))
    (mismatch,) = against(quantised, state=state(code=torch.tensor([7, 9], dtype=torch.uint8))).mismatches
    assert mismatch.candidate is None
    assert mismatch.detail == "[7, 9]; the reference has [7, 8]"


def test_nan_that_is_nan_on_both_sides_is_equal() -> None:
    nan = replace(RECORD, loss=torch.tensor(NAN))
    assert against(nan, loss=torch.tensor([-NAN])[0]).mismatches == []


def test_hyperparameters_count_where_an_update_used_them() -> None:
    """``b`` had no gradient in this iteration: what its group says has not been used."""
    assert against(hyperparameters={"w": {"lr": 0.1}, "b": {"lr": 7.0}}).mismatches == []


def test_hidden_hyperparameters_are_unobserved() -> None:
    comparison = against(hyperparameters=None)
    assert comparison.mismatches == []
    assert comparison.unobserved == 1  # of w, in the second iteration


def test_state_that_is_shown_nowhere_is_unobserved_and_not_compared() -> None:
    hidden = replace(RECORD, state={})
    comparison = compare(
        Trace(initial=hidden, records=[hidden, hidden]), Trace(initial=RECORD, records=[RECORD, RECORD])
    )
    assert comparison.mismatches == []
    assert comparison.unobserved == 2 * 2
    assert comparison.compared == comparison.existing - 2 * 2


def test_state_that_is_shown_once_is_missing_elsewhere() -> None:
    comparison = against(state={})
    assert {m.name for m in comparison.mismatches} == {"w.step", "w.exp_avg"}
    assert comparison.unobserved == 0
    assert comparison.compared == comparison.existing


def test_what_is_no_number_is_counted() -> None:
    assert against(unread=("w.projector", "w.rank")).unobserved == 2
