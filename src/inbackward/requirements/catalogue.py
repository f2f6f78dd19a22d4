"""What a requirement is, and the list of all of them. The ids are public API."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from inbackward.requirements.arms import Arm
from inbackward.scenario import Scenario
from inbackward.scenario.configs import STRATEGIES

FAMILIES = ("numbers", "parameters", "loop", "memory", "checkpoint", "ranks")


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One thing that must hold.

    Attributes:
        id: stable; what ``-k``, ``--only`` and ``unsupported`` name.
        family: one of ``FAMILIES``.
        sentence: what must hold, in one sentence.
        may_refuse: an exception before any number changes is as good as equivalence.
        on_ranks: run again under strategies.
        build: the fixed scenarios for the arms at hand.
    """

    id: str
    family: str
    sentence: str
    build: Callable[[tuple[Arm, ...]], Iterable[Scenario]]
    may_refuse: bool = False
    on_ranks: bool = False

    def scenarios(self, arms: tuple[Arm, ...]) -> Iterator[Scenario]:
        """The fixed scenarios, each carrying this requirement's id and whether it may be refused."""
        for scenario in self.build(arms):
            yield scenario.with_(requirement=self.id, may_refuse=self.may_refuse)


CATALOGUE: dict[str, Requirement] = {}


def requirement(
    id: str, family: str, sentence: str, *, may_refuse: bool = False, on_ranks: bool = False
) -> Callable[[Callable[[tuple[Arm, ...]], Iterable[Scenario]]], Callable[[tuple[Arm, ...]], Iterable[Scenario]]]:
    """Enter the decorated builder of scenarios into the catalogue."""

    def enter(
        build: Callable[[tuple[Arm, ...]], Iterable[Scenario]],
    ) -> Callable[[tuple[Arm, ...]], Iterable[Scenario]]:
        _add(
            Requirement(id=id, family=family, sentence=sentence, may_refuse=may_refuse, on_ranks=on_ranks, build=build)
        )
        return build

    return enter


def _add(entry: Requirement) -> None:
    assert entry.id not in CATALOGUE, entry.id
    assert entry.family in FAMILIES, entry.family
    CATALOGUE[entry.id] = entry


def require_known(ids: Iterable[str], where: str) -> None:
    """Refuse an id that is not in the catalogue, and after an ``@`` what is no strategy.

    Raises:
        ValueError: with the nearest one that is.
    """
    for id in ids:
        bare, at, strategy = id.partition("@")
        if bare not in CATALOGUE:
            raise ValueError(f"{where} names no requirement {bare!r}; {_nearest(bare, CATALOGUE)}")
        if at and strategy not in STRATEGIES:
            raise ValueError(f"{where} names no strategy {strategy!r} in {id!r}; {_nearest(strategy, STRATEGIES)}")


def _nearest(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else "see 'inbackward requirements'"
