"""The trace: what was observed of a run. Copies only; nothing here can reach back into the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

State = dict[str, dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One iteration, as it stood after ``zero_grad()`` and before the schedule's ``step()``.

    Attributes:
        by_candidate: the implementation under test trained this iteration (a resume may change sides).
        loss: the unscaled loss, a scalar; ``None`` before the first iteration.
        parameters: parameter name to value.
        buffers: buffer name to value.
        state: parameter name to its optimizer state by name. A number is held as a float64 scalar.
        unread: state entries that are no tensor and no number, by ``parameter.state name``.
        hyperparameters: parameter name to the values the last update used; ``None``: they cannot be seen.
        gradients_after_backward: parameters whose ``.grad`` was not ``None`` when ``backward()`` returned.
        updated_late: parameters that changed between then and now, where the scenario watches it.
        gradients_after_zero: likewise after ``zero_grad()``.
        rng: torch's global CPU generator's state.
        other_rng: a digest of the states of ``random`` and ``numpy.random``.
        observed: further tensors by name: the gradient norm that clipping returned, the scaler's scale, what the
            user's hooks saw, how often step hooks fired, the entries of a checkpoint dictionary.
        read: gradients that were read before the step and were still there, by parameter name.
        gradient_peak: most bytes of gradients alive at once, where the scenario watches them.
        moved_early: parameters whose bytes changed before the last backward of the iteration.
        disturbed: what must stay as it is and did not: a copy's original, a snapshot.
    """

    by_candidate: bool = False
    loss: Tensor | None
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    state: State
    unread: tuple[str, ...] = ()
    hyperparameters: Mapping[str, Mapping[str, Any]] | None = None
    gradients_after_backward: frozenset[str] = frozenset()
    updated_late: frozenset[str] = frozenset()
    gradients_after_zero: frozenset[str] = frozenset()
    rng: Tensor | None = None
    other_rng: str = ""
    observed: dict[str, Tensor] = field(default_factory=dict)
    read: dict[str, Tensor] = field(default_factory=dict)
    gradient_peak: int | None = None
    moved_early: frozenset[str] = frozenset()
    disturbed: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What was found in an optimizer's state dict when it was saved.

    Attributes:
        iteration: it was saved before this iteration.
        refused: what ``torch.load(weights_only=True)`` said of it, or ``""``.
        foreign: where parameters of the model and modules were found inside.
    """

    iteration: int
    refused: str
    foreign: tuple[str, ...]


@dataclass
class Trace:
    """A run: the start, one record an iteration, and how it ended.

    Attributes:
        initial: before the first iteration (no loss, no gradients).
        trainable: names of the parameters that require gradients.
        records: one a completed iteration.
        saved: what was found at every save.
        error: the exception that ended the run early, or ``None``.
        aftermath: what stood when it was raised; ``state`` only where the optimizer existed. ``None``: it cannot
            be read, or it was ``close()`` that raised.
        traceback: its traceback, as text.
        replicas: parameter name to what tells its parts apart: ranks with the same answer hold the same part.
        optimizer_built: whether the optimizer existed when the error was raised.
    """

    initial: Record
    trainable: frozenset[str] = frozenset()
    records: list[Record] = field(default_factory=list)
    saved: list[SavedState] = field(default_factory=list)
    error: BaseException | None = None
    traceback: str = ""
    aftermath: Record | None = None
    replicas: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    optimizer_built: bool = True


def empty() -> Trace:
    """A trace in which nothing was looked at, yet."""
    return Trace(initial=Record(loss=None, parameters={}, buffers={}, state={}))
