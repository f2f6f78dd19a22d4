"""What happens to a run besides training: edits, calls, saves. One frozen class a kind, tied to an iteration.

The order inside an iteration is fixed:

1. ``Resume``, ``Recreate``, ``Copy``: other objects from here on.
2. ``Cast``, ``Freeze``, ``Unfreeze``, ``AddGroup``, ``Edit``, then ``Observe``, ``Snapshot``, ``LoadUnfit``,
   ``ForeignBackward``, ``ExtraCalls(when="before")``.
3. Forward and backward of every micro-batch. ``SkipBranch`` leaves the optional branch out of these forwards,
   ``NonFinite`` spoils gradients, ``Interrupt`` ends the backward early, ``AccessGradient`` goes
   around it or reads what it left, ``SecondBackward`` goes through the last graph once more.
4. Clipping, where the scenario clips; ``step()``, or ``step(closure)`` under ``StepClosure``; then ``zero_grad()``.
5. ``ExtraCalls(when="after")``.
6. The iteration is recorded in the trace.
7. The schedule's ``step()``.

Events of one kind keep the order in which the scenario lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from inbackward.scenario.configs import DTYPES, GroupConfig, ParallelConfig, choose, require, require_selectors

SIDES = ("candidate", "plain")
ROUTES = ("memory", "file", "dcp", "process", "dcp-async")
SCHEDULE_ROUTES = ("state-dict", "last-epoch")
CALLS = ("step", "zero_grad")
RECREATIONS = ("close", "del", "rebind", "held", "model-before", "model-after")
COPIES = ("deepcopy", "pickle", "model")
FOREIGN = ("through", "skipped")
ACCESSES = ("autograd-grad", "inputs", "read")
MOMENTS = ("before", "after")
SPECIALS = ("nan", "inf", "-inf")
SNAPSHOT_ROUTES = ("memory", "file")
UNFIT = ("missing-state", "missing-parameter", "extra-parameter", "wrong-shape", "no-groups")
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
    the ``plain`` optimizer in the usual loop. ``route`` is a deep copy in memory, a file written by ``torch.save`` and
    read by ``torch.load``, or ``torch.distributed.checkpoint`` and its ``state_dict`` API. ``schedule`` restores the
    schedule by its state dict or by ``last_epoch=``. With ``parallel`` the run goes on over other ranks, by that API
    only; ``"dcp-async"`` trains on while it writes.
    """

    kind: ClassVar[str] = "resume"
    saved_by: str = "candidate"
    loaded_by: str = "candidate"
    route: str = "memory"
    schedule: str = "state-dict"
    parallel: ParallelConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.route in ("dcp", "dcp-async") if self.parallel is not None else self.route != "dcp-async",
            f"resume.route is {self.route!r}; 'dcp-async' goes with resume.parallel, which takes no other but 'dcp'",
        )
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
        choose(self.when, MOMENTS, "extra-calls.when")
        for call in self.calls:
            choose(call, CALLS, "extra-calls.calls")


@dataclass(frozen=True, kw_only=True)
class SkipBranch(Event):
    """The model's optional branch takes no part in this iteration, so its parameters get no gradient.

    ``ranks`` names those on which it is so; none means all.
    """

    kind: ClassVar[str] = "skip-branch"
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepClosure(Event):
    """``step(closure)`` in place of ``step()``; the closure runs forward and backward again and returns the loss."""

    kind: ClassVar[str] = "step-closure"


@dataclass(frozen=True, kw_only=True)
class Matching(Event):
    """Something that happens to the parameters that match (``GroupConfig`` says how)."""

    match: tuple[str, ...] = ("@first",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_selectors(self.match, f"{self.kind}.match")


@dataclass(frozen=True, kw_only=True)
class Freeze(Matching):
    """``requires_grad_(False)``."""

    kind: ClassVar[str] = "freeze"


@dataclass(frozen=True, kw_only=True)
class Unfreeze(Matching):
    """``requires_grad_(True)``."""

    kind: ClassVar[str] = "unfreeze"


@dataclass(frozen=True, kw_only=True)
class AddGroup(Event):
    """``add_param_group`` with what the group matches among the parameters that are in no group yet."""

    kind: ClassVar[str] = "add-group"
    group: GroupConfig = GroupConfig()


@dataclass(frozen=True, kw_only=True)
class Cast(Event):
    """``model.to(dtype)``: the parameters keep their identity."""

    kind: ClassVar[str] = "cast"
    dtype: str = "float64"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.dtype, DTYPES, "cast.dtype")


@dataclass(frozen=True, kw_only=True)
class NonFinite(Matching):
    """The first element of the gradient becomes ``value``: ``"nan"``, ``"inf"`` or ``"-inf"``."""

    kind: ClassVar[str] = "non-finite"
    value: str = "nan"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.value, SPECIALS, "non-finite.value")


@dataclass(frozen=True, kw_only=True)
class Interrupt(Matching):
    """An exception in the middle of the backward, when the gradient of the first match is computed; then
    ``zero_grad()`` and on to the next iteration. The reference updates what the candidate had updated by then.
    """

    kind: ClassVar[str] = "interrupt"


@dataclass(frozen=True, kw_only=True)
class SecondBackward(Event):
    """``backward(retain_graph=True)`` and a second ``backward()`` through the same graph, no step between."""

    kind: ClassVar[str] = "second-backward"


@dataclass(frozen=True, kw_only=True)
class AccessGradient(Matching):
    """Code that goes around ``loss.backward()``, or reads what it left, before the step.

    ``autograd-grad``: ``torch.autograd.grad`` of the loss, before its backward. ``inputs``: ``backward(inputs=...)`` of
    the parameters that match. ``read``: their ``.grad`` is read; it may be gone, but must not be another one.
    """

    kind: ClassVar[str] = "access-gradient"
    how: str = "read"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.how, ACCESSES, "access-gradient.how")


@dataclass(frozen=True, kw_only=True)
class Recreate(Event):
    """A new optimizer with fresh state over the same parameters, or over a new model that is given their values.

    ``how``: the old one is closed; deleted; still alive while the name is bound anew; held by somebody for good. Or the
    model is loaded into new objects, before or after the new optimizer is built. The reference gets a new optimizer.
    """

    kind: ClassVar[str] = "recreate"
    how: str = "close"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.how, RECREATIONS, "recreate.how")


@dataclass(frozen=True, kw_only=True)
class Copy(Event):
    """A copy of model and optimizer together goes on and the original must not move (``deepcopy``, ``pickle``).

    ``model``: the model alone is copied and trained backward, as an averaged or frozen twin may be; the copy must not
    move, and the original goes on.
    """

    kind: ClassVar[str] = "copy"
    how: str = "deepcopy"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.how, COPIES, "copy.how")


@dataclass(frozen=True, kw_only=True)
class ForeignBackward(Event):
    """A backward that must not train this model, then ``zero_grad()`` and no step.

    ``through``: another model's loss flows through this one, as a generator's through its discriminator. ``skipped``:
    this model's own loss, its update left out, as for a spike.
    """

    kind: ClassVar[str] = "foreign-backward"
    how: str = "through"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.how, FOREIGN, "foreign-backward.how")


@dataclass(frozen=True, kw_only=True)
class Snapshot(Event):
    """A deep copy (or a file) of the state dict is taken; whether later iterations change it is recorded."""

    kind: ClassVar[str] = "snapshot"
    route: str = "memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.route, SNAPSHOT_ROUTES, "snapshot.route")


@dataclass(frozen=True, kw_only=True)
class LoadUnfit(Event):
    """``load_state_dict`` of a state dict that was meant for another model.

    ``missing-state``: one parameter's state is gone. ``missing-parameter``, ``extra-parameter``: a group is one
    shorter, or longer. ``wrong-shape``: one parameter's state has another shape. ``no-groups``: there are none.
    """

    kind: ClassVar[str] = "load-unfit"
    what: str = "missing-parameter"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(self.what, UNFIT, "load-unfit.what")


EVENTS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Resume,
        Recreate,
        Copy,
        Cast,
        Freeze,
        Unfreeze,
        AddGroup,
        Edit,
        Observe,
        Snapshot,
        LoadUnfit,
        ForeignBackward,
        ExtraCalls,
        SkipBranch,
        NonFinite,
        Interrupt,
        AccessGradient,
        SecondBackward,
        StepClosure,
    )
}
