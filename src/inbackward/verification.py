"""From an implementation to its results: which scenarios a requirement has for it, and the verdict over them.

The doors (pytest, the command, the library) call ``verify`` for one scenario and ``Suite`` for requirements.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch

from inbackward.attribution import judge_for_requirement
from inbackward.judging import Diagnosis, Divergence, Outcome, Verdict, control, diagnose_run, judge, merge, worst
from inbackward.ranks import Pool, RanksFailed, Torchrun, TorchrunPool
from inbackward.requirements import CATALOGUE, Arm, Requirement, arms_of, default_arms, require_known
from inbackward.requirements.across_ranks import WITH, Item, again, at_size
from inbackward.requirements.arms import is_default, make_arm
from inbackward.requirements.optimizer_table import TABLE
from inbackward.scenario import ModelConfig, ParallelConfig, Scenario, without
from inbackward.scenario.generator import generate
from inbackward.scenario.space import drawable
from inbackward.training import ALONE, Implementation, NotRun, World, as_implementation, optimizer_class

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
    with closing(Suite(as_implementation(implementation), device=device)) as suite:
        return suite.judge(scenario)


def diagnose(implementation: Any, scenario: Scenario, device: str = "cpu") -> Diagnosis | None:
    """What the divergence of an implementation in one scenario behaves like; it takes a second or two.

    Args:
        implementation: as for ``verify``.

    Returns:
        The known mistakes that explain it, and what it shows by itself; ``None`` where a loop raised, so that there are
        no two runs to compare.

    Raises:
        TypeError: as ``verify``.
        ValueError: ``implementation`` does not diverge in ``scenario``.
    """
    with closing(Suite(as_implementation(implementation), device=device)) as suite:
        outcome = suite.judge(scenario)
        if outcome.verdict is not Verdict.NOT_EQUIVALENT:
            raise ValueError(f"there is nothing to diagnose: {scenario.label} is {outcome.verdict}")
        return suite.explained(outcome).diagnosis


@dataclass(frozen=True, kw_only=True)
class Result:
    """A requirement with the outcomes of its scenarios.

    Attributes:
        strategies: those under which it was run.
        left_out: those under which it is declared unsupported, one of several.
        declared: the reason given in ``Implementation.unsupported`` for this id, or ``""``.
        expected: the reason given in ``Implementation.expected_failures``, or ``""``.
        seconds: wall-clock time of its scenarios.
    """

    requirement: Requirement
    outcomes: tuple[Outcome, ...]
    strategies: tuple[str, ...] = ("single",)
    left_out: tuple[str, ...] = ()
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
    def by_strategy(self) -> dict[str, Verdict]:
        """The verdict under each strategy alone."""
        found = {s: replace(self, outcomes=self._under(s)).verdict for s in self.strategies}
        return {**found, **dict.fromkeys(self.left_out, Verdict.UNSUPPORTED)}

    def _under(self, strategy: str) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if o.scenario.strategy == strategy)

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
    def numbers(self) -> Outcome | None:
        """The first outcome that is not equivalent, beside those that broke: the one that has a diagnosis."""
        return next((o for o in self.outcomes if o.verdict is Verdict.NOT_EQUIVALENT), None)

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
            return "it has no scenario for this implementation's optimizers and declarations"
        if self.found is Verdict.BROKEN and self.numbers:  # a crash must not hide wrong numbers elsewhere
            return f"{self.worst.message}; also not equal in {self.numbers.scenario.label}: {self.numbers.message}"
        return self.worst.message


MOST_RANKS = 64  # of a pool


class Control(NamedTuple):
    """What a control arm is run for."""

    dtype: str
    device: str
    parallel: ParallelConfig


HELD: set[Control] = set()
"""Control arms that have held in this session: they say nothing of any implementation, and the workers that are forked
later know of them."""


class Suite:
    """One implementation on one device, and the requirements it can be held to.

    Args:
        implementation: what is under test.
        device: ``"cpu"`` or ``"cuda"``.
        seed: shifts the seed of every fixed scenario, and draws the generated ones.
        profile: one of ``PROFILES``.
        model: ``module:factory`` of a model to use wherever a scenario asks for the default one, but under tensor
            parallelism, which has to know a model's layers.
        world_size: ranks of a strategy; those with a mesh of two dimensions have at least 4.
        torchrun: the ranks that it started take the place of a pool of this process's own, and are as many as they are.

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
        world_size: int = 2,
        torchrun: Torchrun | None = None,
    ) -> None:
        if profile not in PROFILES:
            raise ValueError(f"profile is {profile!r}; choose one of {', '.join(PROFILES)}")
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device is {device!r}; choose cpu or cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but torch sees no GPU here; run with device cpu")
        if not 0 <= seed < 20_000:
            raise ValueError(f"seed is {seed}; it must be in [0, 20000)")
        if not 1 <= world_size <= MOST_RANKS:
            raise ValueError(
                f"the world size is {world_size}; it must be in [1, {MOST_RANKS}], as all ranks are processes of this "
                "machine: start more by torchrun"
            )
        require_known(implementation.unsupported, "Implementation.unsupported")
        require_known(implementation.expected_failures, "Implementation.expected_failures")
        self.implementation = implementation
        self.device = torch.device(device)
        self.seed = seed
        self.profile = profile
        self.world_size = torchrun.size if torchrun else world_size
        self.model = ModelConfig(factory=model) if model else None
        self._control: dict[Control, str] = {}
        self._ranks: Pool[Outcome] | TorchrunPool[Outcome] = (
            TorchrunPool(torchrun, self._judge_here, self.device) if torchrun else Pool(self._judge_here, self.device)
        )

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The reference optimizers that every family runs on."""
        own = self.implementation.reference_optimizers
        return default_arms() if own is None else arms_of(own)

    def scenarios(self, requirement: Requirement, strategy: str = "single") -> Iterator[Scenario]:
        """The scenarios of a requirement for this implementation under a strategy, no two of them the same run.

        On one process they are fixed and generated ones.
        """
        seen: set[str] = set()
        left_out = [id for id in self.implementation.unsupported if id != requirement.id]
        fixed: Iterable[Scenario] = requirement.scenarios(self.arms)
        if requirement.family == "ranks":
            fixed = (scenario for scenario in fixed if scenario.strategy == strategy)
        elif strategy != "single":
            fixed = again(requirement.id, fixed, strategy)
        fixed = (at_size(s.with_(seed=self.seed * 100_000), self.world_size) for s in fixed)
        for whole in chain(fixed, self._generated(requirement) if strategy == "single" else ()):
            scenario = whole
            for id in left_out:
                scenario = without(scenario, id)
            if _owned(whole, requirement.id) and not _owned(scenario, requirement.id):
                continue  # nothing of the requirement is left in it
            if self.model and "tensor" not in strategy and scenario.model in (ModelConfig(), ModelConfig(layers=1)):
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

    def run(self, id: str, *strategies: str) -> Result:
        """Judge every scenario of the requirement ``id`` under the strategies, on one process if none is given.

        Raises:
            ValueError: the id is unknown.
        """
        require_known([id], "the selection")
        requirement = CATALOGUE[id]
        started = time.perf_counter()
        item = Item(id, strategies or ("single",))
        unsupported = self.implementation.unsupported
        left_out = [s for s in item.strategies if f"{id}@{s}" in unsupported or (s != id and s in unsupported)]
        declared = self._said(unsupported, item)
        if declared:
            left_out = []
        elif left_out == list(item.strategies):
            declared = unsupported[left_out[0]]
        outcomes: list[Outcome] = []
        for strategy in item.strategies:
            for scenario in self.scenarios(requirement, strategy) if strategy not in left_out else ():
                outcomes.append(judge_for_requirement(self.judge, scenario))
                if declared and outcomes[-1].verdict.fails:
                    break  # the declaration is not stale, and that is all there was to find out
                if outcomes[-1].hung:
                    break
        if not outcomes and not declared:  # it has no scenario without what another row is about
            declared = next((unsupported[needed] for needed in WITH.get(id, ()) if needed in unsupported), "")
        result = Result(
            requirement=requirement,
            outcomes=tuple(outcomes),
            strategies=tuple(s for s in item.strategies if s not in left_out),
            left_out=tuple(left_out),
            declared=declared,
            expected=self._said(self.implementation.expected_failures, item),
        )
        if result.verdict.fails and (numbers := result.numbers):
            explained = self.explained(numbers)
            result = replace(result, outcomes=tuple(explained if o is numbers else o for o in outcomes))
        return replace(result, seconds=time.perf_counter() - started)

    @staticmethod
    def _said(declarations: Mapping[str, str], item: Item) -> str:
        """What is declared of an item: by its key, of its id under every strategy, or of its one strategy."""
        only = f"{item.id}@{item.strategies[0]}" if len(item.strategies) == 1 else ""
        return declarations.get(item.id) or declarations.get(only, "")

    def judge(self, scenario: Scenario) -> Outcome:
        """The outcome of one scenario, after the control arm of its dtype."""
        if scenario.strategy == "single":
            return self._judge_here(scenario, ALONE)
        started = time.perf_counter()
        try:
            outcome = merge(self._ranks.run(scenario))
            if outcome.verdict is not Verdict.NOT_RUN:
                HELD.add(self._control_of(scenario))
            return outcome
        except RanksFailed as error:
            place = Divergence(iteration=0, quantity="ranks", name="", detail=str(error))
            return Outcome(
                scenario=scenario,
                verdict=Verdict.BROKEN,
                message=str(error),
                divergence=place,
                traceback=error.evidence,
                seconds=time.perf_counter() - started,
            )
        except NotRun as reason:
            return Outcome(scenario=scenario, verdict=Verdict.NOT_RUN, message=str(reason))

    def explained(self, outcome: Outcome) -> Outcome:
        """The outcome with its diagnosis, where its numbers diverge; as it is anywhere else.

        Under torchrun there is none: its ranks serve verdicts alone.
        """
        scenario, divergence = outcome.scenario, outcome.divergence
        if outcome.verdict is not Verdict.NOT_EQUIVALENT or divergence is None or divergence.quantity == "exception":
            return outcome
        if scenario.strategy == "single":
            return replace(outcome, diagnosis=self._diagnose_here(scenario, ALONE))
        if isinstance(self._ranks, TorchrunPool):
            return outcome
        with closing(Pool(self._diagnose_here, self.device)) as ranks:
            try:
                return replace(outcome, diagnosis=ranks.run(scenario)[divergence.rank])
            except (RanksFailed, NotRun):
                return outcome  # it is a failure without an explanation

    def _diagnose_here(self, scenario: Scenario, world: World) -> Diagnosis | None:
        with one_thread():
            return diagnose_run(self.implementation, scenario, self.device, world)

    def _judge_here(self, scenario: Scenario, world: World) -> Outcome:
        """The outcome on this rank of ``world``."""
        with one_thread():
            with world.of(scenario.parallel.ranks):
                untrusted = self._untrusted(scenario, world)
            if untrusted:
                return Outcome(scenario=scenario, verdict=Verdict.NOT_RUN, message=untrusted)
            return judge(self.implementation, scenario, self.device, world)

    def _untrusted(self, scenario: Scenario, world: World) -> str:
        key = self._control_of(scenario)
        if world.any(key not in self._control and key not in HELD):  # workers need not be of one age
            self._control[key] = control(key.dtype, self.device, key.parallel, world)
            if world is ALONE and not self._control[key]:
                HELD.add(key)
        return self._control.get(key, "")

    def _control_of(self, scenario: Scenario) -> Control:
        parallel = ParallelConfig(strategy=scenario.strategy, ranks=scenario.parallel.ranks)
        return Control(scenario.dtype, self.device.type, parallel)

    def follow(self, scenario: Scenario) -> None:
        """Serve a scenario that rank 0 of a torchrun judges."""
        assert isinstance(self._ranks, TorchrunPool)
        self._ranks.follow(scenario)

    def close(self) -> None:
        """End the worker processes, if there are any."""
        self._ranks.close()


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
def one_thread() -> Iterator[None]:
    """Small models train fastest, and always alike, on one thread; the caller's setting is put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
