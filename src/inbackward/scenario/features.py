"""Which requirement owns which feature of a scenario, and how a scenario looks without it.

An implementation that declares a requirement unsupported is not held to its features in other scenarios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inbackward.scenario.configs import ScheduleConfig
from inbackward.scenario.events import Edit, Event, ExtraCalls, Observe, Resume, SkipBranch, StepClosure
from inbackward.scenario.scenario import Scenario


def without(scenario: Scenario, requirement: str) -> Scenario:
    """``scenario`` with the features that ``requirement`` owns left out; the same where it has none."""
    strip = _STRIP.get(requirement)
    return strip(scenario) if strip else scenario


def _drop(wrong: Callable[[Event], bool]) -> Callable[[Scenario], Scenario]:
    return lambda s: s.with_(events=tuple(e for e in s.events if not wrong(e)))


def _one_group(s: Scenario) -> Scenario:
    def one_row(schedule: ScheduleConfig | None) -> ScheduleConfig | None:
        if schedule is None:
            return None
        parts = tuple(p for p in (one_row(part) for part in schedule.parts) if p)
        return replace(schedule, factors=schedule.factors[:1], parts=parts)

    events = tuple(replace(e, group=None) if isinstance(e, Edit) else e for e in s.events)
    return s.with_(groups=(), named=False, events=events, schedule=one_row(s.schedule))


def _plain_lr(s: Scenario) -> Scenario:
    events = tuple(replace(e, in_place=False) if isinstance(e, Edit) else e for e in s.events)
    return s.with_(optimizer=replace(s.optimizer, tensor_lr=False), events=events)


def _constant_lr(s: Scenario) -> Scenario:
    return _drop(lambda e: isinstance(e, Edit) and e.name == "lr")(s.with_(schedule=None))


_STRIP: dict[str, Callable[[Scenario], Scenario]] = {
    "param-groups": _one_group,
    "lr-schedule": _constant_lr,
    "weight-decay-schedule": _drop(lambda e: isinstance(e, Edit) and e.name != "lr"),
    "tensor-lr": _plain_lr,
    "gradient-scale": lambda s: s.with_(loss_scale=1.0, token_weighted=False),
    "dtype": lambda s: s.with_(dtype="float32", model=replace(s.model, mixed=())),
    "tied-weights": lambda s: s.with_(model=replace(s.model, tied=False)),
    "frozen": lambda s: s.with_(frozen=()),
    "unused": _drop(lambda e: isinstance(e, SkipBranch)),
    "extra-step-calls": _drop(lambda e: isinstance(e, ExtraCalls)),
    "closure": _drop(lambda e: isinstance(e, StepClosure)),
    "resume": _drop(lambda e: isinstance(e, Resume)),
    "resume-from-plain": _drop(lambda e: isinstance(e, Resume) and e.saved_by == "plain"),
    "resume-into-plain": _drop(lambda e: isinstance(e, Resume) and e.loaded_by == "plain"),
    "observer": _drop(lambda e: isinstance(e, Observe)),
    "rng": lambda s: s.with_(model=replace(s.model, dropout=0.0)),
}
