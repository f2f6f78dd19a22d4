"""Which scenarios of the requirements marked for ranks are run again across them, and why the rest need not be.

What a strategy can break is where gradients become final, what a parameter's name, shape and state are, and what a
checkpoint holds. So a row is run again with those of its scenarios in which these meet what the row is about, one or
two of each kind; a third scheduler, say, would read the same groups once more (``docs/ranks.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from inbackward.requirements.arms import default_arms
from inbackward.requirements.catalogue import CATALOGUE
from inbackward.scenario import ParallelConfig, Resume, Scenario, SkipBranch, fit, fit_sequence
from inbackward.scenario.configs import TWO_DIMENSIONAL

AGAIN_UNDER = ("ddp", "fsdp2")
# What the scenarios of a row of the family *ranks* have of another requirement.
WITH: dict[str, tuple[str, ...]] = {
    "ranks-accumulation": ("accumulation", "global-clip"),
    "ranks-unused": ("unused",),
    "ranks-checkpointed-activations": ("checkpointed-activations",),
    "dcp-reshard": ("resume", "resume-from-plain", "resume-into-plain", "dcp"),
}

# The names without the arm. ``*`` marks those that are run on every arm, the others are run on the first only.
AGAIN: dict[str, tuple[str, ...]] = {
    "plain": ("llama*", "convolution"),
    "param-groups": ("out-of-order*", "named"),
    "lr-schedule": ("warm-up-from-0*", "per-group", "by-hand"),
    "gradient-scale": ("times-0.001*", "times-tokens"),
    "resume": ("at-3-file*", "groups-out-of-order"),
    "resume-from-plain": ("at-1-file*",),
    "resume-into-plain": ("at-1-file*",),
    "dcp": ("resumed*", "from-plain", "into-plain"),
    "observer": ("dcp-at-first*", "all-every-iteration"),
    "accumulation": ("2-micro-batches*", "shorter-last-window"),
    "global-clip": ("always-acts*", "never-acts", "unused", "accumulated"),
    "checkpointed-activations": ("non-reentrant*", "reentrant"),
    "gradient-freed": ("llama*", "convolution"),
    "tied-weights": ("embedding-and-head*", "frozen"),
    "frozen": ("every-other*", "a-whole-group"),
    "unused": ("every-other*", "always"),
}


def again(id: str, scenarios: Iterable[Scenario], strategy: str) -> Iterator[Scenario]:
    """Those of a requirement's scenarios that are run again, under ``strategy``."""
    wanted = {name.rstrip("*"): name.endswith("*") for name in AGAIN[id]}
    done: set[str] = set()
    for scenario in scenarios:
        name = scenario.name.rpartition("-")[0]
        if name not in wanted or (name in done and not wanted[name]):
            continue
        done.add(name)
        skips = strategy == "ddp" and any(isinstance(e, SkipBranch) for e in scenario.events)
        if any(isinstance(e, Resume) and e.route == "file" for e in scenario.events):
            scenario = scenario.with_(expect=(*scenario.expect, "weights-only"))  # of shards, too
        yield scenario.with_(parallel=ParallelConfig(strategy=strategy, ranks=2, find_unused=skips))


@dataclass(frozen=True)
class Item:
    """A requirement under some strategies: what one test, and one row of a run, is about.

    ``key`` is how an ``Implementation`` may name it in its declarations, ``label`` how pytest does.
    """

    id: str
    strategies: tuple[str, ...]

    @property
    def _suffix(self) -> str:
        again = CATALOGUE[self.id].family != "ranks" and self.strategies != ("single",)
        return self.strategies[0] if again else ""

    @property
    def key(self) -> str:
        return f"{self.id}@{self._suffix}" if self._suffix else self.id

    @property
    def label(self) -> str:
        return f"{self.id}-{self._suffix}" if self._suffix else self.id


def items(strategies: Sequence[str] | None) -> list[Item]:
    """What there is to judge under ``strategies``, in the order of the catalogue.

    The family *ranks* is judged under those of its own, the others on one process, or where they are marked again under
    ``AGAIN_UNDER``. ``None``: everything but these repetitions.
    """
    found = []
    for id, entry in CATALOGUE.items():
        if entry.family == "ranks":
            own = tuple(s for s in _own_strategies(id) if strategies is None or s in strategies)
            found += [Item(id, own)] if own else []
        else:
            under = [s for s in AGAIN_UNDER if entry.on_ranks and s in (strategies or ())]
            single = ["single"] if strategies is None or "single" in strategies else []
            found += [Item(id, (strategy,)) for strategy in (*single, *under)]
    return found


@cache
def _own_strategies(id: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(s.strategy for s in CATALOGUE[id].scenarios(default_arms())))


def at_size(scenario: Scenario, ranks: int) -> Scenario:
    """``scenario`` over so many ranks, at least four and an even number where the mesh has two dimensions."""
    if scenario.strategy == "single":
        return scenario
    if any(isinstance(event, Resume) and event.parallel for event in scenario.events):
        return scenario  # it says itself how many it has before and after
    if scenario.strategy in TWO_DIMENSIONAL:
        ranks = max(4, ranks - ranks % 2)
    parallel = replace(scenario.parallel, ranks=ranks)
    data = fit_sequence(scenario.data, parallel)
    return scenario.with_(parallel=parallel, model=fit(scenario.model, parallel), data=data)
