"""What a divergence behaves like: every known mistake is made in the reference loop, and the runs are compared.

A mistake is tried up to the iteration in which the candidate diverges first, and whatever agrees there to the end. The
scope in which it is made (which parameters, from which iteration on, on which ranks) is read off the divergence. Where
no single mistake explains it all, one that explains a part is made, and a second one is looked for in what is left.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from inbackward.judging.evidence import Evidence, Layout, Likeness, Yardstick, described, gather, numbers, same, words
from inbackward.judging.interruption import interrupted
from inbackward.judging.noise import RUNS, Floor, Rounding
from inbackward.judging.scopes import Only, Scope, scopes
from inbackward.judging.together import on_all_ranks
from inbackward.judging.verdict import Diagnosis, Finding
from inbackward.judging.what_if import Build, WhatIf
from inbackward.judging.what_ifs import MISTAKES
from inbackward.scenario import Scenario
from inbackward.scenario.simplifying import ending_after
from inbackward.training import (
    ALONE,
    Implementation,
    Intervention,
    Together,
    Trace,
    World,
    train_in_backward,
    train_reference,
)
from inbackward.training.reshard import resharding

# Iterations of the reference that a search may train: a limit in seconds would find other mistakes on another day.
WORK = 600
WORK_ACROSS_RANKS = 240  # divided by their number
LOW = "numbers of this precision hide much: it may be a known mistake all the same"
ENDED = "not every mistake was tried in every scope: runs of this scenario take too long"
FIRSTS = 3  # of two mistakes
AGREE = "every loss, parameter, buffer and state is the reference's up to rounding: no number is wrong"
ELEMENTWISE = ("AdamW", "Adam", "SGD", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "ASGD", "Rprop")


@dataclass(frozen=True)
class Tried:
    """A mistake in a scope, and how like the candidate it makes the reference; ``inert`` if it changes nothing."""

    what_if: WhatIf
    scope: Scope
    build: Build
    likeness: Likeness
    inert: bool
    k: float | None = None

    @property
    def agrees(self) -> bool:
        return self.likeness.iteration is None

    @property
    def order(self) -> tuple[int, bool, bool, int, int, int]:
        """The nearest first, bitwise before within noise, without a fitted number before with one, everywhere first.

        Then what has no state where the candidate shows none, and last the order of the list.
        """
        narrow = 0 if self.what_if.still else self.scope.restrictions
        place = MISTAKES.index(self.what_if)
        far = 0 if self.likeness.exact or self.likeness.ratio <= 1 else round(self.likeness.ratio)
        return far, not self.likeness.exact, self.k is not None, narrow, self.likeness.unseen, place


def diagnose_run(
    implementation: Implementation, scenario: Scenario, device: torch.device, world: World = ALONE
) -> Diagnosis | None:
    """The diagnosis of a scenario that diverges: the same findings on all ranks, the evidence of this one.

    ``None`` where there are no two whole runs to compare.
    """
    if resharding(scenario):
        return None
    candidate, blamed = on_all_ranks(world, lambda: train_in_backward(implementation, scenario, device))
    if blamed:
        return None
    search = _Search(implementation, scenario, device, world, candidate)
    return search.diagnosis()


class _Search:
    """The runs of one diagnosis, and what they have cost so far."""

    def __init__(
        self, implementation: Implementation, scenario: Scenario, device: torch.device, world: World, candidate: Trace
    ) -> None:
        self._implementation, self._scenario, self._device, self._world = implementation, scenario, device, world
        self._candidate = candidate
        self._left_out = interrupted(scenario, candidate)
        self._work = WORK if world.size == 1 else WORK_ACROSS_RANKS // world.size
        self._whole: dict[Tried, Likeness] = {}
        self._layout = Layout()
        self._reference = self._run(scenario, self._layout)
        self._yardstick = Yardstick(
            Floor(self._reference, [self._run(scenario, Rounding(seed)) for seed in range(RUNS)])
        )

    def diagnosis(self) -> Diagnosis | None:
        if self._world.any(self._reference.error is not None):
            return None
        evidence = self._evidence(self._reference)
        if evidence is None:
            return Diagnosis(findings=(), evidence=(AGREE,), known=0)
        found, tried = self._singles(evidence, ())
        mistakes = [(each,) for each in found] or self._pairs(evidence, tried)
        return Diagnosis(
            findings=tuple(_finding(each, evidence) for each in mistakes),
            evidence=(*words(evidence), *(self._doubts() if not mistakes else ())),
            known=len(MISTAKES),
        )

    def _doubts(self) -> Iterator[str]:
        """Why a known mistake may not have been found."""
        if self._work <= 0:
            yield ENDED
        if {self._scenario.dtype, self._scenario.autocast} & {"bfloat16", "float16"}:
            yield LOW

    def _evidence(self, reference: Trace) -> Evidence | None:
        return gather(self._scenario, self._candidate, reference, self._layout, self._yardstick, self._world)

    def _run(self, scenario: Scenario, *parts: Intervention) -> Trace:
        self._work -= scenario.iterations
        together = Together(*self._left_out, *parts)
        run = lambda: train_reference(scenario, self._device, self._implementation, None, together)  # noqa: E731
        return on_all_ranks(self._world, run)[0]

    def _likeness(self, trace: Trace) -> Likeness:
        """On all ranks together: the worst counts."""
        here = self._yardstick.compare(self._candidate, trace)
        if trace.error is not None:
            here = Likeness(len(trace.records), math.inf, False)
        everywhere = self._world.share(here)
        iterations = [each.iteration for each in everywhere if each.iteration is not None]
        return Likeness(
            iteration=min(iterations, default=None),
            ratio=max(each.ratio for each in everywhere),
            exact=all(each.exact for each in everywhere),
            unseen=sum(each.unseen for each in everywhere),
            keys=frozenset().union(*(each.keys for each in everywhere)),
        )

    def _try(self, what_if: WhatIf, scope: Scope, build: Build, until: int | None, base: tuple[Tried, ...]) -> Tried:
        scenario = what_if.on(self._scenario)
        for each in base:
            scenario = each.what_if.on(scenario)
        if until is not None:
            scenario = ending_after(until + 1)(scenario)
        parts = [Only(each.scope, each.build(), self._world.rank) for each in base]
        trace = self._run(scenario, *parts, Only(scope, build(), self._world.rank))
        inert = not self._world.any(not same(trace, self._reference))
        return Tried(what_if, scope, build, self._likeness(trace), inert)

    def _singles(self, evidence: Evidence, base: tuple[Tried, ...]) -> tuple[list[Tried], list[Tried]]:
        """The mistakes that explain the divergence on top of ``base``, and all that were tried.

        The simplest stories come first: where one of them agrees in every bit, no other is asked for.
        """
        plan: dict[int, list[tuple[WhatIf, Scope]]] = defaultdict(list)
        here = [what_if.applies(evidence) for what_if in MISTAKES]
        for what_if, *applies in zip(MISTAKES, *self._world.share(here)):
            if any(applies):
                for scope in self._scopes(what_if, evidence):
                    steps = 0 if what_if.still else scope.restrictions
                    plan[steps + (what_if.fitted is not None)].append((what_if, scope))
        tried: list[Tried] = []
        found: list[Tried] = []
        inert: set[str] = set()
        for restrictions in sorted(plan):
            for what_if, scope in plan[restrictions]:
                if self._work > 0 and what_if.id not in inert:
                    made = list(self._variants(what_if, scope, evidence, base))
                    if not scope.restrictions and not base and all(each.inert for each in made):
                        inert.add(what_if.id)  # nor does it change anything within a part of the run
                    tried += [each for each in made if not each.inert]
            found = self._to_the_end(tried, base)
            if found and (found[0].likeness.exact or restrictions):
                break
        return found, tried

    def _variants(self, what_if: WhatIf, scope: Scope, evidence: Evidence, base: tuple[Tried, ...]) -> Iterator[Tried]:
        """A mistake in a scope, in all ways in which it is made, up to the first divergence."""
        if what_if.fitted is not None:
            yield from self._fitted(what_if, scope, evidence, base)
        for build in what_if.builds(evidence):
            yield self._try(what_if, scope, build, evidence.first, base)

    def _scopes(self, what_if: WhatIf, evidence: Evidence) -> Iterator[Scope]:
        everyone = len(evidence.ranks) == self._world.size or not what_if.apart or not self._elementwise()
        ranks = None if everyone else evidence.ranks
        names = evidence.still if what_if.still else evidence.apart
        some = None if not names or names >= evidence.moving else names
        if what_if.still:
            first = evidence.first if evidence.first and names & evidence.moved_before else 0
            yield Scope(names=some, ranks=ranks, first=first)
            return
        for scope in scopes(some, evidence.first, ranks, self._scenario.iterations, what_if.when != "event"):
            if what_if.when != "sometimes" or scope.first or scope.last is not None:
                yield scope

    def _elementwise(self) -> bool:
        """Whether an update is made without the other ranks, so that one rank may make it otherwise."""
        module, _, name = self._scenario.optimizer.cls.partition(":")
        return module.startswith("torch.optim") and name in ELEMENTWISE

    def _fitted(self, what_if: WhatIf, scope: Scope, evidence: Evidence, base: tuple[Tried, ...]) -> Iterator[Tried]:
        """With ``k`` from how far the candidate goes where ``k = 2`` goes: exact for whatever is linear in it."""
        assert what_if.fitted is not None
        fitted = what_if.fitted
        parts = [Only(each.scope, each.build(), self._world.rank) for each in base]
        short = ending_after(evidence.first + 1)(self._scenario)
        twice = self._run(short, *parts, Only(scope, fitted(2.0), self._world.rank))
        for k in self._factors(twice, evidence, scope):
            tried = self._try(what_if, scope, lambda k=k: fitted(k), evidence.first, base)  # type: ignore[misc]
            yield replace(tried, k=k)

    def _factors(self, twice: Trace, evidence: Evidence, scope: Scope) -> list[float]:
        """The ``k`` that each kind of tensor asks for, and the simple fraction next to it."""
        sums: dict[tuple[str, str], list[float]] = {}
        if len(twice.records) > evidence.first:
            mine, theirs, doubled = (
                numbers(trace.records[evidence.first]) for trace in (self._candidate, evidence.reference, twice)
            )
            for key, reference in theirs.items():
                if key not in mine or key not in doubled or not reference.is_floating_point():
                    continue
                if scope.names is not None and key[1] not in scope.names:
                    continue
                way = doubled[key].double() - reference.double()
                gone = mine[key].double() - reference.double()
                size = way.norm()
                if not (size > 0 and bool(gone.isfinite().all()) and gone.shape == way.shape):
                    continue
                sum_of = sums.setdefault((key[0], key[2]), [0.0, 0.0])
                sum_of[0] += ((gone * way).sum() / size**2).item()
                sum_of[1] += 1.0
        everywhere: dict[tuple[str, str], list[float]] = {}
        for there in self._world.share(sums):
            for kind, (total, count) in there.items():
                together = everywhere.setdefault(kind, [0.0, 0.0])
                together[0], together[1] = together[0] + total, together[1] + count
        factors: dict[float, None] = {}
        for total, count in everywhere.values():
            k = 1 + total / count
            if not math.isfinite(k) or abs(k - 1) < 1e-12:
                continue
            if abs(k) < 1e-9:
                k = 0.0
            simple = float(Fraction(k).limit_denominator(1000))
            if abs(simple - k) <= 1e-3 * abs(k):
                factors[simple] = None
            factors[k] = None
        return list(factors)[:4]

    def _to_the_end(self, tried: list[Tried], base: tuple[Tried, ...]) -> list[Tried]:
        """Of those that agree at first, those that agree all along; of each mistake the widest scope."""
        found: dict[str, Tried] = {}
        for each in sorted((t for t in tried if t.agrees), key=lambda t: t.order):
            if each.what_if.id not in found:
                if each not in self._whole:
                    self._whole[each] = self._try(each.what_if, each.scope, each.build, None, base).likeness
                whole = replace(each, likeness=self._whole[each])
                if whole.agrees:
                    found[each.what_if.id] = whole
        ordered = sorted(found.values(), key=lambda t: t.order)
        return [t for t in ordered if t.likeness.exact] or ordered

    def _pairs(self, evidence: Evidence, tried: list[Tried]) -> list[tuple[Tried, ...]]:
        """Two mistakes, each with its scope: the second explains what the first leaves.

        The first is one that agrees until later in the run, or else one that brings the most tensors to agree.
        """
        starts = sorted((t for t in tried if t.agrees), key=lambda t: t.order)
        left = sorted((t for t in tried if t.likeness.keys < evidence.keys), key=lambda t: len(t.likeness.keys))
        for first in (starts or left)[:FIRSTS]:
            scenario = first.what_if.on(self._scenario)
            trace = self._run(scenario, Only(first.scope, first.build(), self._world.rank))
            rest = None if self._world.any(trace.error is not None) else self._evidence(trace)
            if rest is not None:
                found, _ = self._singles(rest, (first,))
                found = [second for second in found if first.k is None or second.k is None]  # two fits fit anything
                if found:
                    return [(first, second) for second in found]
        return []


def _finding(mistakes: tuple[Tried, ...], evidence: Evidence) -> Finding:
    last, first = mistakes[-1].likeness, mistakes[0].what_if
    how = "behaves exactly like" if last.exact else "is consistent with"
    near = "" if last.exact else f" (it is {max(last.ratio, 0.01):.2g} noise floors away)"
    return Finding(
        what_if="+".join(each.what_if.id for each in mistakes),
        noise_ratio=0.0 if last.exact else last.ratio,
        sentence=f"{how} a loop that {', and '.join(_words(each, evidence) for each in mistakes)}{near}",
        mend=first.mend,
        page=first.page,
    )


def _words(tried: Tried, evidence: Evidence) -> str:
    which = "any parameter" if tried.scope.names is None else described(tried.scope.names, evidence)
    k = "" if tried.k is None else f"{tried.k:.6g}" if tried.likeness.exact else f"about {_rounded(tried.k)}"
    said = tried.what_if.sentence.format(k=k, which=which)
    parts = [said]
    if tried.scope.names is not None and "{which}" not in tried.what_if.sentence:
        parts.append(f"in {which}")
    parts.append(tried.scope.when())
    if tried.scope.ranks is not None:
        parts.append(f"on rank {', '.join(map(str, sorted(tried.scope.ranks)))}")
    return ", ".join(part for part in parts if part)


def _rounded(k: float) -> str:
    """Three digits, or as many as tell it from 1."""
    digits = max(3, 2 - math.floor(math.log10(abs(k - 1)))) if 0 < abs(k - 1) < 0.1 else 3
    return f"{k:.{digits}g}"
