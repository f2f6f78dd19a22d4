"""Ten thousand generated scenarios: no false alarm, and subtle faults are caught.

    python benchmarks/ten_thousand.py [--target ours|tutorial|ThawsFresh|…] [--start 0] [--count 10000]

Every scenario of the draw is another run (by digest), and each kind of event is in at least 5 % of them. The targets
are held to it in turn, without what they declare unsupported: the package's class and the tutorial's hooks must hold
in all of it, each fault must be caught. Runs in this process, on one thread; ``--start`` and ``--count`` take a part.
``docs/generated.md`` has the figures of a full run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from examples import tutorial_hooks
from inbackward import Implementation, OptimizerInBackward, Scenario
from inbackward.judging import judge
from inbackward.optimizer.partial_step import PartialStep
from inbackward.requirements import default_arms, items
from inbackward.scenario import EVENTS, without
from inbackward.scenario.generator import generate
from inbackward.training import as_implementation
from inbackward.verification import COSTLY, table_arms

SEED = 0
TOTAL = 10_000
LEAST_SHARE = 0.05
# Rows whose event is theirs alone (it may be refused), or hard to draw elsewhere, come round more often; and so does
# the one of all the optimizers, of which there are many.
OFTEN = {
    "optimizers": 4,
    "closure": 4,
    "two-backwards": 4,
    "gradient-access": 4,
    "foreign-backward": 4,
    "mismatched-checkpoint": 4,
    "deepcopy": 4,
    "add-param-group": 3,
}


class ZeroGradientSkipped(PartialStep):
    """Saves the update of a parameter whose gradient is zero: no momentum goes on, no weight decays, no step counts."""

    def step(self, parameters: Sequence[Tensor]) -> None:
        zero = [p for p in parameters if p.numel() and not p.grad.is_sparse and not p.grad.count_nonzero()]
        for p in zero:
            p.grad = None
        super().step([p for p in parameters if p.grad is not None])


class ThawedFresh(PartialStep):
    """A parameter that was frozen for a while goes on with fresh state, as if it were new."""

    frozen: frozenset[Tensor] = frozenset()

    def step(self, parameters: Sequence[Tensor]) -> None:
        for p in self.frozen.intersection(parameters):
            self._inner.state.pop(p, None)
        super().step(parameters)

    def settle(self) -> None:
        super().settle()
        everything = (p for group in self._inner.param_groups for p in group["params"])
        self.frozen = frozenset(p for p in everything if not p.requires_grad)


class MomentumReadOnce(PartialStep):
    """Reads momentum and betas of a group once, when it first steps one of its parameters."""

    def step(self, parameters: Sequence[Tensor]) -> None:
        first = self.__dict__.setdefault("first", {})
        now = [dict(group) for group in self._inner.param_groups]
        for i, group in enumerate(self._inner.param_groups):
            group.update(first.setdefault(i, {k: group[k] for k in ("momentum", "betas") if k in group}))
        super().step(parameters)
        for group, kept in zip(self._inner.param_groups, now, strict=True):
            group.update(kept)


class Faulty(OptimizerInBackward):
    """The package's class with one mistake in how it steps a parameter."""

    stepper: type[PartialStep]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_inner" in state:
            self._partial = self.stepper(self._inner)


class SkipsZeroGradients(Faulty):
    stepper = ZeroGradientSkipped


class ThawsFresh(Faulty):
    stepper = ThawedFresh


class ReadsMomentumOnce(Faulty):
    stepper = MomentumReadOnce


FAULTS = {cls.__name__: cls for cls in (SkipsZeroGradients, ThawsFresh, ReadsMomentumOnce)}


def turns() -> list[str]:
    """The ids in the order in which the draw goes round them; an odd number of turns, so that the arms alternate."""
    ids = [id for id in [item.id for item in items(("single",))] if id not in COSTLY]
    rounds = [id for n in range(max(OFTEN.values())) for id in ids if n < OFTEN.get(id, 1)]
    return rounds if len(rounds) % 2 else [*rounds, "plain"]


def drawn(start: int, count: int) -> Iterator[Scenario]:
    """The scenarios ``start`` … of the draw."""
    arms, more, ids = default_arms(), table_arms(), turns()
    for index in range(start, start + count):
        id = ids[index % len(ids)]
        yield generate(SEED, id, index, more if id == "optimizers" else arms)


def shares(scenarios: Sequence[Scenario]) -> dict[str, float]:
    """Kind of event to the share of the scenarios that have one."""
    having = Counter(kind for s in scenarios for kind in {event.kind for event in s.events})
    return {kind: having[kind] / len(scenarios) for kind in EVENTS}


def restricted(scenario: Scenario, implementation: Implementation) -> Scenario:
    """Without anything that the implementation does not claim, be it the scenario's own row."""
    for id in implementation.unsupported:
        scenario = without(scenario, id)
    return scenario


def targets() -> dict[str, Implementation]:
    """What is held to the draw: two that are right, and the faults."""
    ours = as_implementation(OptimizerInBackward)
    faults = {name: as_implementation(cls) for name, cls in FAULTS.items()}
    return {"ours": ours, "tutorial": tutorial_hooks.implementation, **faults}


def hold(name: str, implementation: Implementation, start: int, scenarios: Sequence[Scenario]) -> list[int]:
    """Judge all of them, print what came of it, and return the indexes of those that failed."""
    began, verdicts, failed = time.perf_counter(), Counter[str](), list[int]()
    digests: set[str] = set()
    for index, scenario in enumerate(scenarios, start):
        run = restricted(scenario, implementation)
        digests.add(run.digest)
        outcome = judge(implementation, run, torch.device("cpu"))
        verdicts[outcome.verdict.value] += 1
        if outcome.verdict.fails:
            failed.append(index)
            if len(failed) <= 5:
                print(f"  {index} {run.label}: {outcome.verdict}: {outcome.message}", flush=True)
        if (index + 1 - start) % 500 == 0:
            spent = time.perf_counter() - began
            print(f"  {name}: {index + 1 - start} of {len(scenarios)}, {spent:.0f} s, {dict(verdicts)}", flush=True)
    spent = time.perf_counter() - began
    first = f", the first is {failed[0]}" if failed else ""
    print(f"{name}: {dict(verdicts)}; {len(failed)} failed{first}; {len(digests)} different runs; {spent:.0f} s")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=targets(), action="append", help="default: all of them")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=TOTAL)
    options = parser.parse_args()
    torch.set_num_threads(1)

    whole = list(drawn(0, max(TOTAL, options.start + options.count)))
    different = len({scenario.digest for scenario in whole})
    print(f"seed {SEED}: {len(whole)} scenarios drawn, {different} different runs")
    found = shares(whole)
    for kind, share in found.items():
        print(f"  {kind:18} {100 * share:5.1f} %")
    wrong = different < len(whole) or min(found.values()) < LEAST_SHARE
    scenarios = whole[options.start : options.start + options.count]
    for name, implementation in targets().items():
        if name in (options.target or targets()):
            failed = hold(name, implementation, options.start, scenarios)
            wrong |= bool(failed) != (name in FAULTS)
    print("not as it should be" if wrong else "no false alarm, and every fault is caught")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
