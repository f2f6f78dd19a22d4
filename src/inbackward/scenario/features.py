"""Which requirement owns which feature of a scenario, and how a scenario looks without it.

An implementation that declares a requirement unsupported is not held to its features in other scenarios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inbackward.scenario.configs import ScheduleConfig
from inbackward.scenario.events import (
    AccessGradient,
    AddGroup,
    Cast,
    Copy,
    Edit,
    Event,
    ExtraCalls,
    ForeignBackward,
    Freeze,
    Interrupt,
    LoadUnfit,
    NonFinite,
    Observe,
    Recreate,
    Resume,
    SecondBackward,
    SkipBranch,
    Snapshot,
    StepClosure,
    Unfreeze,
)
from inbackward.scenario.scenario import Scenario


def without(scenario: Scenario, requirement: str) -> Scenario:
    """``scenario`` with the features that ``requirement`` owns left out; the same where it has none."""
    strip = _STRIP.get(requirement)
    return strip(scenario) if strip else scenario


def alone(scenario: Scenario, own: frozenset[str]) -> Scenario:
    """``scenario`` with the features of every requirement left out but those of ``own``."""
    for requirement in _STRIP:
        if requirement not in own:
            scenario = without(scenario, requirement)
    return scenario


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


def _one_backward(s: Scenario) -> Scenario:
    """Two graphs with no step between are micro-batches; they are this requirement's where it asks for them."""
    once = _drop(lambda e: isinstance(e, SecondBackward))(s)
    return once.with_(micro_batches=(1,)) if s.requirement == "two-backwards" else once


def _no_resume(s: Scenario) -> Scenario:
    return s.with_(events=tuple(e for e in s.events if not isinstance(e, Resume)))


def _no_resume_at_zero(s: Scenario) -> Scenario:
    """Loading before the first iteration; and after one in which some had no gradient, where the row is about that."""
    return s.with_(
        events=tuple(
            e for e in s.events if not isinstance(e, Resume) or (e.at > 0 and s.requirement != "resume-at-zero")
        )
    )


def _not_expecting(name: str) -> Callable[[Scenario], Scenario]:
    return lambda s: s.with_(expect=tuple(e for e in s.expect if e != name))


def _constant_lr(s: Scenario) -> Scenario:
    return _drop(lambda e: isinstance(e, Edit) and e.name == "lr")(s.with_(schedule=None))


def _across(whole: Scenario, stripped: Scenario) -> Scenario:
    """What a requirement of the family *ranks* strips: nothing of a run on one process."""
    return whole if whole.strategy == "single" else stripped


_STRIP: dict[str, Callable[[Scenario], Scenario]] = {
    "param-groups": _one_group,
    "lr-schedule": _constant_lr,
    "weight-decay-schedule": _drop(lambda e: isinstance(e, Edit) and e.name != "lr"),
    "tensor-lr": _plain_lr,
    "gradient-scale": lambda s: s.with_(loss_scale=1.0, token_weighted=False),
    "dtype": lambda s: s.with_(dtype="float32", model=replace(s.model, mixed=())),
    "tied-weights": lambda s: s.with_(model=replace(s.model, tied=False, shared=False)),
    "frozen": lambda s: s.with_(frozen=()),
    "unused": lambda s: _drop(lambda e: isinstance(e, SkipBranch))(s.with_(zero_grad="set-to-none")),
    "extra-step-calls": _drop(lambda e: isinstance(e, ExtraCalls)),
    "closure": _drop(lambda e: isinstance(e, StepClosure)),
    "resume": _no_resume,
    "resume-from-plain": _drop(lambda e: isinstance(e, Resume) and e.saved_by == "plain"),
    "resume-into-plain": _drop(lambda e: isinstance(e, Resume) and e.loaded_by == "plain"),
    "observer": _drop(lambda e: isinstance(e, Observe)),
    "autocast": lambda s: s.with_(autocast="", autocast_backward=False, scaler=None),
    "non-finite": _drop(lambda e: isinstance(e, NonFinite)),
    "freeze-later": _drop(lambda e: isinstance(e, Freeze)),
    "unfreeze-later": _drop(lambda e: isinstance(e, Unfreeze)),
    "add-param-group": _drop(lambda e: isinstance(e, AddGroup)),
    "cast-or-move": _drop(lambda e: isinstance(e, Cast)),
    "duplicate-params": lambda s: s.with_(groups=tuple(replace(g, twice=False, again=False) for g in s.groups)),
    "sparse-gradient": lambda s: s.with_(model=replace(s.model, sparse=False)),
    "zero-size": lambda s: s.with_(model=replace(s.model, odd=False)),
    "accumulation": lambda s: s.with_(micro_batches=(1,)),
    "global-clip": lambda s: s.with_(clip=None),
    "grad-scaler": lambda s: s.with_(scaler=None),
    "two-backwards": _one_backward,
    "gradient-access": _drop(lambda e: isinstance(e, AccessGradient)),
    "stale-read": lambda s: s.with_(model=replace(s.model, late_read=False)),
    "resume-fresh-process": _drop(lambda e: isinstance(e, Resume) and e.route == "process"),
    "interrupted-backward": _drop(lambda e: isinstance(e, Interrupt)),
    "two-optimizers": lambda s: s.with_(split=""),
    "gradient-freed": _not_expecting("gradients-freed"),
    "gradient-peak": _not_expecting("gradient-peak"),
    "no-leak": _not_expecting("no-leak"),
    "weights-only-load": lambda s: _no_resume(_not_expecting("weights-only")(s)) if "weights-only" in s.expect else s,
    "resume-schedule": lambda s: _no_resume(s) if s.schedule is not None else s,
    "gradient-hooks": lambda s: s.with_(hooks=()),
    "foreign-backward": _drop(lambda e: isinstance(e, ForeignBackward)),
    "checkpointed-activations": lambda s: s.with_(model=replace(s.model, checkpointing="")),
    "compiled-model": lambda s: s.with_(compiled=""),
    "re-created": _drop(lambda e: isinstance(e, Recreate) and not e.how.startswith("model")),
    "deepcopy": _drop(lambda e: isinstance(e, Copy)),
    "step-hooks": lambda s: s.with_(step_hooks=False),
    "resume-at-zero": _no_resume_at_zero,
    "model-only": _drop(lambda e: isinstance(e, Recreate) and e.how.startswith("model")),
    "snapshot-independent": _drop(lambda e: isinstance(e, Snapshot)),
    "mismatched-checkpoint": _drop(lambda e: isinstance(e, LoadUnfit)),
    "dcp": _drop(lambda e: isinstance(e, Resume) and e.route.startswith("dcp")),
    "dcp-reshard": _drop(lambda e: isinstance(e, Resume) and e.parallel is not None),
    "ranks-accumulation": lambda s: _across(s, s.with_(micro_batches=(1,))),
    "ranks-unused": lambda s: _across(s, _drop(lambda e: isinstance(e, SkipBranch))(s)),
    "ranks-checkpointed-activations": lambda s: _across(s, s.with_(model=replace(s.model, checkpointing=""))),
    "token-normalised-loss": lambda s: s.with_(token_normalised=False),
    "rank-agreement": _not_expecting("ranks-agree"),
    "fsdp2-mixed-precision": lambda s: s.with_(parallel=replace(s.parallel, mixed_precision="", reduce_dtype="")),
    "fsdp2-resharding": lambda s: s.with_(parallel=replace(s.parallel, reshard=True)),
    "rng": lambda s: s.with_(model=replace(s.model, dropout=0.0)),
}
