"""What a diverging run shows by itself: where it leaves the reference first, in which tensors, and by what factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from inbackward.judging.bits import rms, same_bits
from inbackward.judging.noise import LIMIT, Floor, epsilon, worst_ratio
from inbackward.scenario import Resume, Scenario
from inbackward.training import Intervention, Iteration, Record, Trace, World

Key = tuple[str, str, str]  # quantity, name, and of state the entry


@dataclass(frozen=True)
class Likeness:
    """How far two runs are apart.

    Attributes:
        iteration: the first in which they differ by more than rounding, or ``None``.
        ratio: the worst over all iterations up to that one, in units of the noise floor.
        exact: every bit agrees.
        unseen: how many tensors of the other run were not compared, as the candidate hides its state.
        keys: what differs by more than rounding in that iteration.
    """

    iteration: int | None
    ratio: float
    exact: bool
    unseen: int = 0
    keys: frozenset[Key] = frozenset()


class Layout(Intervention):
    """Does nothing; remembers which group a parameter is in."""

    def __init__(self) -> None:
        self.group: dict[str, int] = {}

    def begin(self, now: Iteration) -> None:
        number = {p: n for n, group in now.groups() for p in group["params"]}
        self.group = {name: number[p] for name, p in now.parameters.items() if p in number}


def numbers(record: Record) -> dict[Key, Tensor]:
    """The loss, buffers, parameters and state of an iteration."""
    found: dict[Key, Tensor] = {("loss", "", ""): record.loss} if record.loss is not None else {}
    found.update({("buffer", name, ""): value for name, value in record.buffers.items()})
    found.update({("parameter", name, ""): value for name, value in record.parameters.items()})
    found.update({("state", name, key): v for name, entries in record.state.items() for key, v in entries.items()})
    return found


def same(a: Trace, b: Trace) -> bool:
    """Every bit of every number agrees, as far as both go."""
    pairs = zip(map(numbers, a.records), map(numbers, b.records))
    return all(x.keys() == y.keys() and all(same_bits(x[key], y[key]) for key in x) for x, y in pairs)


class Yardstick:
    """Distances in units of what rounding alone does to the reference."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._numbers: dict[int, list[dict[Key, Tensor]]] = {}
        self._noise: dict[tuple[int, Key], float] = {}

    def compare(self, candidate: Trace, other: Trace) -> Likeness:
        """How far ``candidate`` is from ``other``, up to the first iteration in which it is more than rounding.

        State that the candidate hides altogether is not compared; a state of other precision is compared by value.
        """
        hides = not any(r.state for r in candidate.records if r.by_candidate)
        worst, exact, unseen = 0.0, True, 0
        for iteration, (mine, theirs) in enumerate(zip(candidate.records, other.records)):
            a, b = numbers(mine), numbers(theirs)
            if hides and mine.by_candidate:
                shown = {key: value for key, value in b.items() if key[0] != "state"}
                b, unseen = shown, unseen + len(b) - len(shown)
            ratios = {key: self._ratio(iteration, key, a.get(key), b.get(key)) for key in {**a, **b}}
            exact = exact and not any(ratios.values())
            worst = max([worst, *ratios.values()])
            if not worst <= LIMIT:
                beyond = frozenset(key for key, ratio in ratios.items() if not ratio <= LIMIT)
                return Likeness(iteration, worst, False, unseen, beyond)
        return Likeness(None, worst, exact, unseen)

    def _ratio(self, iteration: int, key: Key, a: Tensor | None, b: Tensor | None) -> float:
        if a is None or b is None or a.shape != b.shape:
            return float("inf")
        if key[2] == "step" or not (a.is_floating_point() and b.is_floating_point()):
            return 0.0 if bool((a.double() == b.double()).all()) else float("inf")
        a = a.to(b.dtype)
        if same_bits(a, b):
            return 0.0
        if not torch.equal(a.isfinite(), b.isfinite()):
            return float("inf")
        coarse = rms((a.double() - b.double()).nan_to_num()) / (self._coarse(iteration, key) + epsilon(b) * rms(b))
        if coarse > LIMIT:  # by the largest of several ratios; the others would not make it less
            return coarse
        reference, *disturbed = self._at(iteration, key)
        moved = [b.double() + (d.double() - reference.double()) for d in disturbed if d.shape == b.shape]
        return max(worst_ratio(a, b, moved), 1e-9)

    def _coarse(self, iteration: int, key: Key) -> float:
        """How far rounding carries a tensor as a whole; hardly above 0 where it does not touch it."""
        if (iteration, key) not in self._noise:
            reference, *disturbed = self._at(iteration, key)
            apart = [rms((d.double() - reference.double()).nan_to_num()) for d in disturbed]
            self._noise[iteration, key] = max(apart, default=0.0) + 1e-300
        return self._noise[iteration, key]

    def _at(self, iteration: int, key: Key) -> list[Tensor]:
        """The reference's tensor, then those of its disturbed runs; nothing where it has none."""
        if iteration not in self._numbers:
            traces = [self._floor.reference, *self._floor.disturbed]
            self._numbers[iteration] = [numbers(t.records[iteration]) for t in traces if iteration < len(t.records)]
        found = [n[key] for n in self._numbers[iteration] if key in n]
        return found or [torch.zeros(())]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A divergence, as it shows on all ranks together.

    Attributes:
        first: the iteration of the first deviation beyond rounding.
        apart: the parameters that deviate there, or whose state does.
        still: of all parameters that the reference moves, those that the candidate leaves as they are from there on.
        moving: the parameters that either run updates there.
        moved_before: those that both have updated before.
        ranks: on which it is so.
        keys: what deviates there.
    """

    scenario: Scenario
    candidate: Trace
    reference: Trace
    groups: Mapping[str, int]
    first: int
    apart: frozenset[str]
    still: frozenset[str]
    moving: frozenset[str]
    moved_before: frozenset[str]
    ranks: frozenset[int]
    keys: frozenset[Key]

    def loads(self) -> frozenset[int]:
        """The iterations before which something is loaded."""
        return frozenset(e.at for e in self.scenario.events if isinstance(e, Resume))


def gather(
    scenario: Scenario, candidate: Trace, reference: Trace, layout: Layout, yardstick: Yardstick, world: World
) -> Evidence | None:
    """What there is to explain; ``None`` where no number deviates on any rank."""
    here = yardstick.compare(candidate, reference)
    firsts = world.share(-1 if here.iteration is None else here.iteration)
    if all(first < 0 for first in firsts):
        return None
    first = min(f for f in firsts if f >= 0)
    mine = here.iteration == first
    apart = frozenset(name for quantity, name, _ in here.keys if quantity in ("parameter", "state")) if mine else ()
    return Evidence(
        scenario=scenario,
        candidate=candidate,
        reference=reference,
        groups=layout.group,
        first=first,
        apart=frozenset().union(*world.share(frozenset(apart))),
        still=_on_all(world, _moved(reference, first) - _moved(candidate, first)),
        moving=frozenset().union(*world.share(_moved_at(candidate, first) | _moved_at(reference, first))),
        moved_before=frozenset().union(*world.share(_moved(candidate, 0, first))),
        ranks=frozenset(rank for rank, f in enumerate(firsts) if f == first),
        keys=frozenset().union(*world.share(here.keys if mine else frozenset())),
    )


def _on_all(world: World, names: frozenset[str]) -> frozenset[str]:
    everywhere = world.share(names)
    return frozenset.intersection(*everywhere)


def before(trace: Trace, iteration: int) -> Record:
    return trace.records[iteration - 1] if iteration else trace.initial


def _moved_at(trace: Trace, iteration: int) -> frozenset[str]:
    """Parameters that an iteration changes, or whose state it changes."""
    old, new = before(trace, iteration), trace.records[iteration]
    return frozenset(
        name
        for name, value in new.parameters.items()
        if not same_bits(value, old.parameters[name].to(value.dtype))  # a cast is no update
        or not _same(new.state.get(name, {}), old.state.get(name, {}))
    )


def _moved(trace: Trace, first: int, end: int | None = None) -> frozenset[str]:
    return frozenset().union(*(_moved_at(trace, i) for i in range(len(trace.records))[first:end]))


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(same_bits(value, b[key]) for key, value in a.items())


def factor(evidence: Evidence) -> tuple[float, int] | None:
    """The ``k`` of ``update = k * reference's update`` in the first iteration that deviates, the same in all tensors
    that do, and their number; ``None`` where there is none.
    """
    factors = []
    for name in sorted(evidence.apart):
        mine, theirs = (
            trace.records[evidence.first].parameters[name].double()
            - before(trace, evidence.first).parameters[name].double()
            for trace in (evidence.candidate, evidence.reference)
        )
        size = (theirs * theirs).sum()
        if not size > 0 or not bool(mine.isfinite().all()):
            continue
        k = ((mine * theirs).sum() / size).item()
        if (mine - k * theirs).norm() > 0.01 * mine.norm() + 1e-12 * theirs.norm():
            return None
        factors.append(k)
    if not factors or max(factors) - min(factors) > 0.01 * max(abs(k) for k in factors):
        return None
    return sorted(factors)[len(factors) // 2], len(factors)


def described(names: frozenset[str], evidence: Evidence) -> str:
    """Which tensors, by a pattern where they follow one."""
    moving = evidence.moving | names
    shapes = {n: p.dim() for n, p in evidence.reference.initial.parameters.items()}
    if names == moving:
        return "all tensors that are updated"
    if len(names) == 1:
        return next(iter(names))
    for group in sorted({evidence.groups.get(n, -1) for n in names}):
        if names == {n for n in moving if evidence.groups.get(n, -1) == group}:
            return f"all tensors of group {group}"
    for word, dims in (("matrices", (2,)), ("vectors", (0, 1))):
        if names == {n for n in moving if shapes.get(n) in dims}:
            return f"all {word}"
    for start in sorted({n[: i + 1] for n in names for i, c in enumerate(n) if c == "."}, key=len):
        if names == {n for n in moving if n.startswith(start)}:
            return f"all {start}*"
    for end in sorted({n[i:] for n in names for i, c in enumerate(n) if c == "."}, key=len):
        if names == {n for n in moving if n.endswith(end)}:
            return f"all *{end}"
    some = ", ".join(sorted(names)[:2]) + (", ..." if len(names) > 2 else "")
    return f"{len(names)} of the {len(moving)} tensors that are updated ({some})"


def place(evidence: Evidence) -> str:
    """Whether the deviation begins in the gradient, in the state or in the update, as far as it can be told."""
    quantities = {quantity for quantity, _, _ in evidence.keys}
    if quantities & {"loss", "buffer"}:
        return "it begins before the update: the forward of that iteration is another one already"
    entries = {key for quantity, _, key in evidence.keys if quantity == "state"}
    record = evidence.reference.records[evidence.first]
    known = {key for name in evidence.apart for key in record.state.get(name, {})}
    if entries:
        if evidence.first in evidence.loads():
            return "it begins in the state, or in what it is updated with, in the iteration after a load"
        part = known - entries - {"step"}
        if part:
            return f"it begins in the state ({', '.join(sorted(entries))}), while {', '.join(sorted(part))} agrees"
        return "it begins in the gradient, or in how it enters the state: all of the state deviates with it"
    shown = any(evidence.candidate.records[evidence.first].state.get(name) for name in evidence.apart)
    if known - {"step"} and shown:
        return "it begins in the update itself: the state that the gradient went into agrees"
    return "no state shows whether it begins in the gradient or in the update"


def share(evidence: Evidence) -> str:
    """How much of the parameters that deviate does so, where it is not all of it: some rows, some elements."""
    rows = elements = all_rows = all_elements = 0
    for name in evidence.apart:
        mine, theirs = (t.records[evidence.first].parameters[name] for t in (evidence.candidate, evidence.reference))
        if mine.shape != theirs.shape or mine.dim() < 2:
            continue
        apart = (mine != theirs) & ~(mine.isnan() & theirs.isnan())
        rows += int(apart.flatten(1).any(1).sum())
        elements += int(apart.sum())
        all_rows, all_elements = all_rows + len(mine), all_elements + mine.numel()
    if all_rows and rows and rows < 0.5 * all_rows:
        return f"(their values in {rows} of {all_rows} rows)"
    few = elements and elements < 0.5 * all_elements
    return f"(their values in {elements} of {all_elements} elements)" if few else ""


def words(evidence: Evidence) -> list[str]:
    """The raw evidence, a line each."""
    which = described(evidence.apart, evidence) if evidence.apart else "no parameter"
    lines = [f"first beyond rounding in iteration {evidence.first}: {which} {share(evidence)}".rstrip()]
    lines.append(place(evidence))
    fitted = factor(evidence)
    if fitted is not None and abs(fitted[0] - 1) > 1e-3:
        k, count = fitted
        lines.append(
            f"there update = {k:.6g} x the reference's update, in all {count} tensors"
            if count > 1
            else f"there update = {k:.6g} x the reference's update"
        )
    return lines
