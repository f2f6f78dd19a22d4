"""The family *checkpoint*: save, new objects, load, go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inbackward.requirements.arms import Arm, is_default
from inbackward.requirements.catalogue import requirement
from inbackward.requirements.numbers import ONE_LAYER, WARM_UP, step_lr, table
from inbackward.requirements.optimizer_table import TABLE
from inbackward.scenario import (
    Edit,
    GroupConfig,
    LoadUnfit,
    ModelConfig,
    Recreate,
    Resume,
    Scenario,
    ScheduleConfig,
    SkipBranch,
    Snapshot,
)
from inbackward.scenario.events import UNFIT

Arms = tuple[Arm, ...]


@requirement(
    "resume",
    "checkpoint",
    "Save, new objects, load, go on: equal to the run never interrupted, every state and counter included.",
    on_ranks=True,
)
def resume(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield from _routes(arm, {})
        yield arm.run("twice", model=ONE_LAYER, events=(Resume(at=1), Resume(at=3, route="file")))
        yield arm.run("batch-norm", model=ModelConfig(kind="convolution"), events=(Resume(at=2),))
        yield arm.run("tied", model=ModelConfig(layers=1, tied=True), events=(Resume(at=2),))
        yield arm.run("frozen", model=ONE_LAYER, frozen=("@even",), events=(Resume(at=2),))
        yield arm.run("named", model=ONE_LAYER, named=True, events=(Resume(at=2),))
        yield arm.run("bfloat16", model=ONE_LAYER, dtype="bfloat16", events=(Resume(at=2, route="file"),))
    if is_default(arms):
        for entry in TABLE:
            for scenario in entry.scenarios():
                if scenario.name.startswith(("plain", "amsgrad-adam", "centered-momentum", "averaging")):
                    yield scenario.with_(name=f"of-{scenario.name}", events=(Resume(at=2, route="file"),))


@requirement(
    "resume-schedule",
    "checkpoint",
    "A schedule goes on after loading, by its state dict and by last_epoch=, and the update follows it.",
)
def resume_schedule(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        if not arm.has("lr"):
            continue
        cycle = bool(arm.defaults.get("momentum")) or arm.has("betas")
        one_cycle = {"max_lr": arm.lr * 3, "total_steps": 8, "cycle_momentum": cycle}
        schedules = {
            "step": step_lr(),
            "step-every-2": step_lr(0.1, 2),
            "warm-up": WARM_UP,
            "cosine": ScheduleConfig(cls="CosineAnnealingLR", kwargs={"T_max": 3}),
            "one-cycle": ScheduleConfig(cls="OneCycleLR", kwargs=one_cycle),
            "plateau": ScheduleConfig(cls="ReduceLROnPlateau", kwargs={"factor": 0.5, "patience": 0, "threshold": 0.5}),
        }
        for name, schedule in schedules.items():
            yield arm.run(name, model=ONE_LAYER, schedule=schedule, events=(Resume(at=2),))
        decay = table((1.0, 0.5, 0.25, 0.125))
        yield arm.run("last-epoch", model=ONE_LAYER, schedule=decay, events=(Resume(at=2, schedule="last-epoch"),))
        two = GroupConfig(match=("@vector",), options={"lr": arm.lr / 3}), GroupConfig()
        rows = table((1.0, 0.5, 0.1, 0.05), (0.0, 0.5, 1.0))
        for route in ("state-dict", "last-epoch"):
            event = Resume(at=2, route="file", schedule=route)
            yield arm.run(f"two-groups-{route}", model=ONE_LAYER, schedule=rows, groups=two, events=(event,))
        after = Resume(at=2), Edit(at=3, value=arm.lr / 10)
        yield arm.run("edited-after-loading", model=ONE_LAYER, events=after)


@requirement("resume-from-plain", "checkpoint", "A plain optimizer's checkpoint goes on in-backward.", on_ranks=True)
def resume_from_plain(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield from _routes(arm, {"saved_by": "plain"})
        yield arm.run("frozen", model=ONE_LAYER, frozen=("@even",), events=(Resume(at=2, saved_by="plain"),))


@requirement(
    "resume-into-plain", "checkpoint", "An in-backward checkpoint goes on in the plain optimizer.", on_ranks=True
)
def resume_into_plain(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield from _routes(arm, {"loaded_by": "plain"})
        yield arm.run("frozen", model=ONE_LAYER, frozen=("@even",), events=(Resume(at=2, loaded_by="plain"),))


@requirement(
    "weights-only-load",
    "checkpoint",
    "The state dict passes torch.load(weights_only=True) and holds no parameter and no module.",
)
def weights_only_load(arms: Arms) -> Iterator[Scenario]:
    clean = ("weights-only",)
    for arm in arms:
        yield arm.run("plain", model=ONE_LAYER, events=(Resume(at=2, route="file"),), expect=clean)
        yield arm.run("before-training", model=ONE_LAYER, events=(Resume(at=0, route="file"),), expect=clean)
        two = GroupConfig(match=("@vector",), options={"lr": arm.lr / 3}), GroupConfig()
        fields: dict[str, Any] = {"groups": two, "schedule": step_lr(), "expect": clean}
        yield arm.run("groups-and-schedule", model=ONE_LAYER, events=(Resume(at=2, route="file"),), **fields)
        yield arm.run("named", model=ONE_LAYER, named=True, events=(Resume(at=1, route="file"),), expect=clean)


@requirement(
    "resume-at-zero",
    "checkpoint",
    "Saved before the first iteration, or after one in which some parameters had no gradient.",
)
def resume_at_zero(arms: Arms) -> Iterator[Scenario]:
    branch = ModelConfig(layers=1, branch=True)
    for arm in arms:
        for route in ("memory", "file"):
            yield arm.run(f"at-first-{route}", model=ONE_LAYER, events=(Resume(at=0, route=route),))
            events = SkipBranch(at=0), SkipBranch(at=1), Resume(at=2, route=route)
            yield arm.run(f"some-without-state-{route}", model=branch, events=events)
        yield arm.run("under-warm-up", model=ONE_LAYER, schedule=WARM_UP, events=(Resume(at=0),))
        yield arm.run("from-plain", model=ONE_LAYER, events=(Resume(at=0, saved_by="plain"),))
        yield arm.run("into-plain", model=ONE_LAYER, events=(Resume(at=0, loaded_by="plain"),))


@requirement(
    "model-only", "checkpoint", "The model is loaded, before or after construction, and the optimizer is fresh."
)
def model_only(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for how in ("model-before", "model-after"):
            for name, model in {"": ONE_LAYER, "-tied": ModelConfig(layers=1, tied=True)}.items():
                yield arm.run(f"{how}{name}", model=model, events=(Recreate(at=2, how=how),))


@requirement(
    "snapshot-independent",
    "checkpoint",
    "A deep copy of the state dict, or a file, is untouched by later iterations.",
)
def snapshot_independent(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for route in ("memory", "file"):
            yield arm.run(route, model=ONE_LAYER, events=(Snapshot(at=2, route=route),))
        yield arm.run("before-training", model=ONE_LAYER, events=(Snapshot(at=0),))


@requirement(
    "mismatched-checkpoint",
    "checkpoint",
    "A checkpoint that does not fit: a clear error with nothing changed, or what the plain optimizer does.",
    may_refuse=True,
)
def mismatched_checkpoint(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for what in UNFIT:
            yield arm.run(what, model=ONE_LAYER, events=(LoadUnfit(at=2, what=what),))


@requirement(
    "dcp",
    "checkpoint",
    "torch.distributed.checkpoint and its state_dict API save and load it as they do the plain optimizer.",
    on_ranks=True,
)
def dcp(arms: Arms) -> Iterator[Scenario]:
    two = GroupConfig(match=("@vector",), options={"lr": 0.02}), GroupConfig()
    for arm in arms:
        yield arm.run("resumed", model=ONE_LAYER, events=(Resume(at=2, route="dcp"),))
        yield arm.run("groups", model=ONE_LAYER, groups=two, events=(Resume(at=2, route="dcp"),))
        yield arm.run("from-plain", model=ONE_LAYER, events=(Resume(at=2, route="dcp", saved_by="plain"),))
        yield arm.run("into-plain", model=ONE_LAYER, events=(Resume(at=2, route="dcp", loaded_by="plain"),))


@requirement("resume-fresh-process", "checkpoint", "The loading half runs in another process.")
def resume_fresh_process(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("file", model=ONE_LAYER, schedule=step_lr(), events=(Resume(at=2, route="process"),))


def _routes(arm: Arm, sides: dict[str, Any]) -> Iterator[Scenario]:
    """A save at several iterations, through memory and a file, with groups and a schedule."""
    two = GroupConfig(match=("@vector",), options={"lr": arm.lr / 3}), GroupConfig()
    for at in (1, 3):
        for route in ("memory", "file"):
            event = Resume(at=at, route=route, **sides)
            yield arm.run(f"at-{at}-{route}", model=ONE_LAYER, events=(event,))
    last = Resume(at=2, **sides)
    yield arm.run("groups", model=ONE_LAYER, groups=two, events=(last,))
    yield arm.run(
        "groups-out-of-order",
        model=ONE_LAYER,
        groups=(GroupConfig(match=("@even",), reverse=True), two[1]),
        events=(last,),
    )
    yield arm.run("step-schedule", model=ONE_LAYER, schedule=step_lr(), events=(last,))
    if arm.has("amsgrad"):
        yield arm.given(amsgrad=True).run("amsgrad", model=ONE_LAYER, events=(last,))
    if arm.has("nesterov") and arm.defaults.get("momentum"):
        yield arm.given(nesterov=True).run("nesterov", model=ONE_LAYER, events=(last,))
