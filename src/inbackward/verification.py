"""From an implementation to its results: which scenarios a requirement has for it, and the verdict over them.

The doors (pytest, the command, the library) call ``verify`` for one scenario and ``Suite`` for requirements.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from inbackward.attribution import judge_for_requirement
from inbackward.judging import Divergence, Outcome, Verdict, control, judge, worst
from inbackward.requirements import CATALOGUE, Arm, Requirement, arms_of, default_arms, require_known
from inbackward.requirements.arms import is_default, make_arm
from inbackward.requirements.optimizer_table import TABLE
from inbackward.scenario import ModelConfig, Scenario, without
from inbackward.scenario.generator import generate
from inbackward.scenario.space import drawable
from inbackward.training import Implementation, as_implementation, optimizer_class

# How many generated scenarios a requirement has beside its fixed ones; a tenth where one takes seconds.
PROFILES = {"quick": 2, "ci": 18, "thorough": 300}
COSTLY = ("compiled-model", "gradient-peak", "no-leak", "resume-fresh-process")


def verify(implementation: Any, scenario: Scenario, device: str = "cpu") -> Outcome:
    """The outcome of one scenario.

    Args:
        implementation: an ``Implementation``, or a class called as ``cls(params, optimizer_cls, **kwargs)``.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        TypeError: ``implementation`` is neither.

    Example:
        >>> from inbackward import OptimizerInBackward, Scenario, verify
        >>> verify(OptimizerInBackward, Scenario()).verdict.value
        'equivalent'
    """
    return Suite(as_implementation(implementation), device=device).judge(scenario)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A requirement with the outcomes of its scenarios.

    Attributes:
        declared: the reason given in ``Implementation.unsupported`` for this id, or ``""``.
        expected: the reason given in ``Implementation.expected_failures``, or ``""``.
        seconds: wall-clock time of its scenarios.
    """

    requirement: Requirement
    outcomes: tuple[Outcome, ...]
    declared: str = ""
    expected: str = ""
    seconds: float = 0.0

    @property
    def found(self) -> Verdict:
        """What the scenarios say, whatever was declared: the worst of those that ran."""
        counted = self._ran or self.outcomes
        return worst(o.verdict for o in counted) if counted else Verdict.NOT_RUN

    @property
    def _ran(self) -> tuple[Outcome, ...]:
        """Leaves out what could not run here, and what no implementation is held to.

        What ran, differed and proved nothing for want of power counts.
        """
        held = (o for o in self.outcomes if o.verdict is not Verdict.UNSUPPORTED)
        return tuple(o for o in held if o.verdict is not Verdict.NOT_RUN or o.compared)

    @property
    def verdict(self) -> Verdict:
        """What reports print: ``unsupported`` where that was declared, else what was found."""
        return Verdict.UNSUPPORTED if self.declared else self.found

    @property
    def holds_after_all(self) -> bool:
        """Declared unsupported or failing, and every one of its scenarios ran and holds: the declaration is stale."""
        held = [o for o in self.outcomes if o.verdict is not Verdict.UNSUPPORTED]
        holds = bool(held) and all(o.verdict.holds for o in held)
        return bool(self.declared or self.expected) and holds and self.ran_any

    @property
    def ran_any(self) -> bool:
        return self.found is not Verdict.NOT_RUN

    @property
    def failed(self) -> bool:
        """Violated, and nobody said beforehand that it would be."""
        return self.verdict.fails and not self.expected

    @property
    def worst(self) -> Outcome | None:
        """The outcome that decides ``found``, the first of its kind; ``None`` where there are no scenarios."""
        decisive = [o for o in self._ran or self.outcomes if o.verdict is self.found]
        return decisive[0] if decisive else None

    @property
    def not_run(self) -> tuple[Outcome, ...]:
        """Scenarios that could not run, or proved nothing for want of power, each with its reason."""
        return tuple(o for o in self.outcomes if o.verdict is Verdict.NOT_RUN)

    @property
    def unsupported(self) -> tuple[Outcome, ...]:
        """Scenarios that nobody who steps inside backward is held to, each with its reason; counted apart."""
        return tuple(o for o in self.outcomes if o.verdict is Verdict.UNSUPPORTED)

    @property
    def divergence(self) -> Divergence | None:
        """Where the decisive scenario first left the reference."""
        return self.worst.divergence if self.worst and self.verdict.fails else None

    @property
    def message(self) -> str:
        """One line: the declared reason, the refusal as a user meets it, the divergence, or why nothing ran."""
        if self.declared:
            return self.declared
        if self.worst is None:
            return "it has no scenario for this implementation's optimizers"
        other = next((o for o in self.outcomes if o.verdict is Verdict.NOT_EQUIVALENT), None)
        if self.found is Verdict.BROKEN and other is not None:  # a crash must not hide wrong numbers elsewhere
            return f"{self.worst.message}; also not equal in {other.scenario.label}: {other.message}"
        return self.worst.message


class Suite:
    """One implementation on one device, and the requirements it can be held to.

    Args:
        implementation: what is under test.
        device: ``"cpu"`` or ``"cuda"``.
        seed: shifts the seed of every fixed scenario, and draws the generated ones.
        profile: one of ``PROFILES``.
        model: ``module:factory`` of a model to use wherever a scenario asks for the default one.

    Raises:
        ValueError: an unknown id in ``unsupported`` or ``expected_failures``, an unknown profile or device, a device
            that this machine does not have, or a reference optimizer that cannot be built.
    """

    def __init__(
        self,
        implementation: Implementation,
        *,
        device: str = "cpu",
        seed: int = 0,
        profile: str = "quick",
        model: str = "",
    ) -> None:
        if profile not in PROFILES:
            raise ValueError(f"profile is {profile!r}; choose one of {', '.join(PROFILES)}")
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device is {device!r}; choose cpu or cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but torch sees no GPU here; run with device cpu")
        if not 0 <= seed < 20_000:
            raise ValueError(f"seed is {seed}; it must be in [0, 20000)")
        require_known(implementation.unsupported, "Implementation.unsupported")
        require_known(implementation.expected_failures, "Implementation.expected_failures")
        self.implementation = implementation
        self.device = torch.device(device)
        self.seed = seed
        self.profile = profile
        self.model = ModelConfig(factory=model) if model else None
        self._control: dict[str, str] = {}

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The reference optimizers that every family runs on."""
        own = self.implementation.reference_optimizers
        return default_arms() if own is None else arms_of(own)

    def scenarios(self, requirement: Requirement) -> Iterator[Scenario]:
        """The scenarios of a requirement for this implementation, fixed and generated, no two of them the same run."""
        seen: set[str] = set()
        left_out = [id for id in self.implementation.unsupported if id != requirement.id]
        fixed = (scenario.with_(seed=self.seed * 100_000) for scenario in requirement.scenarios(self.arms))
        for whole in chain(fixed, self._generated(requirement)):
            scenario = whole
            for id in left_out:
                scenario = without(scenario, id)
            if _owned(whole, requirement.id) and not _owned(scenario, requirement.id):
                continue  # nothing of the requirement is left in it
            if self.model and scenario.model in (ModelConfig(), ModelConfig(layers=1)):
                scenario = scenario.with_(model=self.model)
            if scenario.digest not in seen:
                seen.add(scenario.digest)
                yield scenario

    def _generated(self, requirement: Requirement) -> Iterator[Scenario]:
        if not drawable(requirement.id):
            return
        of_torch = requirement.id == "optimizers" and is_default(self.arms)
        arms = table_arms() if of_torch else self.arms
        count = PROFILES[self.profile]
        for index in range(count // 10 if requirement.id in COSTLY else count):
            yield generate(self.seed, requirement.id, index, arms)

    def run(self, id: str) -> Result:
        """Judge every scenario of the requirement ``id``.

        Raises:
            ValueError: the id is unknown, or has no scenarios in this version.
        """
        require_known([id], "the selection")
        requirement = CATALOGUE[id.partition("@")[0]]
        if requirement.build is None:
            raise ValueError(f"requirement {id!r} has no scenarios in this version of inbackward")
        started = time.perf_counter()
        declared = self.implementation.unsupported.get(id, "")
        outcomes = []
        for scenario in self.scenarios(requirement):
            outcomes.append(judge_for_requirement(self.judge, scenario))
            if declared and outcomes[-1].verdict.fails:
                break  # the declaration is not stale, and that is all there was to find out
        return Result(
            requirement=requirement,
            outcomes=tuple(outcomes),
            declared=declared,
            expected=self.implementation.expected_failures.get(id, ""),
            seconds=time.perf_counter() - started,
        )

    def judge(self, scenario: Scenario) -> Outcome:
        """The outcome of one scenario, after the control arm of its dtype."""
        with _one_thread():
            untrusted = self._untrusted(scenario.dtype)
            if untrusted:
                return Outcome(scenario=scenario, verdict=Verdict.NOT_RUN, message=untrusted)
            return judge(self.implementation, scenario, self.device)

    def _untrusted(self, dtype: str) -> str:
        if dtype not in self._control:
            self._control[dtype] = control(dtype, self.device)
        return self._control[dtype]


def _owned(scenario: Scenario, id: str) -> bool:
    return without(scenario, id).digest != scenario.digest


def table_arms() -> tuple[Arm, ...]:
    """Every class of ``torch.optim`` with each of its flags, but for those that take some parameters only.

    Fused kernels are left to the fixed scenarios: SGD's raises where one parameter has a momentum and another has not
    yet, which only a step of all parameters at once can meet.
    """
    runs = (scenario for entry in TABLE if not entry.groups for scenario in entry.scenarios())
    return tuple(
        make_arm(s.name, optimizer_class(s.optimizer.cls), s.optimizer.kwargs)
        for s in runs
        if not s.optimizer.kwargs.get("fused")
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small models train fastest, and always alike, on one thread; the caller's setting is put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
