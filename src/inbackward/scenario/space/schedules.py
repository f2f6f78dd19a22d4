"""Learning rates and other hyperparameters that change: by a schedule, and by hand."""

from __future__ import annotations

from typing import Any

from inbackward.scenario.configs import ScheduleConfig
from inbackward.scenario.events import Edit
from inbackward.scenario.space.draft import Draft, feature


def _of(cls: str, **kwargs: Any) -> ScheduleConfig:
    return ScheduleConfig(cls=cls, kwargs=kwargs)


def _table(d: Draft) -> ScheduleConfig:
    rows = max(len(d.groups), 1) if d.choices.chance(0.5) else 1
    factors = (0.0, 0.1, 0.5, 1.0)
    return ScheduleConfig(
        cls="LambdaLR",
        factors=tuple(tuple(d.choices.one_of(factors) for _ in range(d.choices.integer(2, 4))) for _ in range(rows)),
    )


def _simple(d: Draft) -> ScheduleConfig:
    """One that multiplies the learning rate and touches nothing else."""
    choose = d.choices
    return choose.one_of(
        (
            _of("StepLR", step_size=choose.integer(1, 2), gamma=choose.one_of((0.5, 0.1, 3.0))),
            _of("ExponentialLR", gamma=choose.one_of((0.7, 1.5))),
            _of("LinearLR", start_factor=choose.one_of((0.2, 0.5)), total_iters=choose.integer(2, 4)),
            _of("MultiStepLR", milestones=(1, 3), gamma=choose.one_of((0.1, 0.5))),
        )
    )


def _cyclic(d: Draft) -> ScheduleConfig:
    """One that cycles the momentum as well, where there is one."""
    choose = d.choices
    one_cycle = _of("OneCycleLR", max_lr=d.lr * 3, total_steps=d.iterations + 4, cycle_momentum=d.momentum)
    cycle = {"base_lr": d.lr / 5, "max_lr": d.lr * 2, "step_size_up": choose.integer(1, 2)}
    return choose.one_of((one_cycle, _of("CyclicLR", **cycle, cycle_momentum=d.momentum)))


def _combined(d: Draft) -> ScheduleConfig:
    parts = _simple(d), _simple(d)
    if d.choices.chance(0.5):
        return ScheduleConfig(cls="ChainedScheduler", parts=parts)
    return ScheduleConfig(cls="SequentialLR", kwargs={"milestones": (d.choices.integer(1, 2),)}, parts=parts)


def _other(d: Draft) -> ScheduleConfig:
    choose = d.choices
    return choose.one_of(
        (
            _of("CosineAnnealingLR", T_max=choose.integer(2, 5), eta_min=d.lr / 50),
            _of("CosineAnnealingWarmRestarts", T_0=choose.integer(1, 3)),
            _of("ReduceLROnPlateau", factor=0.5, patience=0, threshold=0.5),
        )
    )


KINDS = {"simple": _simple, "table": _table, "cyclic": _cyclic, "combined": _combined, "other": _other}


@feature("lr-schedule", share=0.4)
def lr_schedule(d: Draft) -> None:
    """A schedule, edits of the learning rate by hand, or both; schedules restored by ``last_epoch=`` are tables."""
    both = d.choices.integer(0, 3)
    if not d.knows("lr"):
        return
    if both != 1 or d.id == "resume-schedule":
        kinds = list(KINDS)
        if d.has("add-param-group"):
            kinds = ["simple"]  # the others count the groups, or keep values in them that a new one lacks
        elif d.has("deepcopy"):
            kinds.remove("table")  # no pickle holds a function
        d.schedule = KINDS[d.choices.one_of(kinds)](d)
    if both < 2:
        for _ in range(d.choices.integer(1, 2)):
            edit(d, "lr", d.lr * d.choices.one_of((0.1, 0.0, 2)))


@feature("weight-decay-schedule", share=0.2)
def weight_decay_schedule(d: Draft) -> None:
    values: dict[str, Any] = {"weight_decay": 0.3, "momentum": 0.4, "betas": d.betas(0.5, 0.7), "eps": 0.02}
    known = [name for name in values if d.knows(name)]
    if "momentum" in known and not d.momentum:
        known.remove("momentum")  # not every class can begin with it later
    for _ in range(d.choices.integer(1, 2) if known else 0):
        name = d.choices.one_of(known)
        edit(d, name, values[name])


def edit(d: Draft, name: str, value: Any) -> None:
    """An edit of one group or of all. The tensor that is the lr is filled, in the last group, which has it alone."""
    in_place = d.tensor_lr and name == "lr"
    last = len(d.groups) - 1
    one = d.choices.chance(0.4)
    group = d.choices.integer(0, last) if one and d.groups else None
    if in_place and d.groups:
        group = last
    d.add(Edit(at=d.when(), name=name, value=value, group=group, in_place=in_place))
