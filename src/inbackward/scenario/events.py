"""What happens to a run besides training: edits, calls, saves. One frozen class a kind, tied to an iteration.

The order inside an iteration is fixed:

1. ``Resume``: save everything, make new objects, load.
2. ``Edit``, then ``Observe``, then ``ExtraCalls(when="before")``.
3. Forward and backward (a ``SkipBranch`` leaves the optional branch out of this iteration's forwards).
4. ``step()``, or ``step(closure)`` under ``StepClosure``; then ``zero_grad()``.
5. ``ExtraCalls(when="after")``.
6. The iteration is recorded in the trace.
7. The schedule's ``step()``.

Events of one kind keep the order in which the scenario lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from inbackward.scenario.configs import choose, require

SIDES = ("candidate", "plain")
ROUTES = ("memory", "file")
SCHEDULE_ROUTES = ("state-dict", "last-epoch")
CALLS = ("step", "zero_grad")
READINGS = ("state", "groups", "state-dict", "dcp")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens in iteration ``at`` (counted from 0)."""

    kind: ClassVar[str]
    at: int

    def __post_init__(self) -> None:
        require(self.at >= 0, f"{self.kind} event at iteration {self.at}; iterations count from 0")


@dataclass(frozen=True, kw_only=True)
class Resume(Event):
    """Save, build new objects, load, go on. The reference is never interrupted.

    ``saved_by`` says who trains before iteration ``at``, ``loaded_by`` who goes on: the in-backward ``candidate`` or
    the ``plain`` optimizer in the usual loop. ``route`` is a deep copy in memory, or a file written by ``torch.save``
    and read by ``torch.load``. ``schedule`` restores the schedule by its state dict or by
    ``last_epoch=``.
    """

    kind: ClassVar[str] = "resume"
    saved_by: str = "candidate"
    loaded_by: str = "candidate"
    route: str = "memory"
    schedule: str = "state-dict"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.saved_by, SIDES, "resume.saved_by")
        choose(self.loaded_by, SIDES, "resume.loaded_by")
        choose(self.route, ROUTES, "resume.route")
        choose(self.schedule, SCHEDULE_ROUTES, "resume.schedule")


@dataclass(frozen=True, kw_only=True)
class Edit(Event):
    """Set ``name`` to ``value`` by hand in group ``group`` (``None``: in all); ``in_place`` fills the lr's tensor."""

    kind: ClassVar[str] = "edit"
    name: str = "lr"
    value: Any = 0.0
    group: int | None = None
    in_place: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.name != "params", "edit.name is 'params'; an edit sets a hyperparameter")


@dataclass(frozen=True, kw_only=True)
class Observe(Event):
    """Read the optimizer, changing nothing; the reference is left unread."""

    kind: ClassVar[str] = "observe"
    what: tuple[str, ...] = READINGS

    def __post_init__(self) -> None:
        super().__post_init__()
        for reading in self.what:
            choose(reading, READINGS, "observe.what")


@dataclass(frozen=True, kw_only=True)
class ExtraCalls(Event):
    """Calls of ``step()`` and ``zero_grad()`` that a plain optimizer would not notice."""

    kind: ClassVar[str] = "extra-calls"
    calls: tuple[str, ...] = CALLS
    when: str = "after"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.when, ("before", "after"), "extra-calls.when")
        for call in self.calls:
            choose(call, CALLS, "extra-calls.calls")


@dataclass(frozen=True, kw_only=True)
class SkipBranch(Event):
    """The model's optional branch takes no part in this iteration, so its parameters get no gradient."""

    kind: ClassVar[str] = "skip-branch"


@dataclass(frozen=True, kw_only=True)
class StepClosure(Event):
    """``step(closure)`` in place of ``step()``; the closure runs forward and backward again and returns the loss."""

    kind: ClassVar[str] = "step-closure"


EVENTS: dict[str, type[Event]] = {cls.kind: cls for cls in (Resume, Edit, Observe, ExtraCalls, SkipBranch, StepClosure)}
