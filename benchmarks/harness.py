"""What the harness costs: scenarios through ``verify`` against the same training loops written bare.

    python benchmarks/harness.py [--scenarios 150] [--rounds 5]

Both train the same models on the same data for the same iterations, one plain and one in-backward loop a scenario, in
turn within one process on one thread. Prints medians, their ratio, and where the rest goes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from inbackward import Implementation, OptimizerInBackward
from inbackward.judging import judge
from inbackward.judging.compare import compare
from inbackward.requirements import CATALOGUE, default_arms
from inbackward.scenario import Scenario
from inbackward.scenario.data import batch
from inbackward.scenario.models import build_model
from inbackward.training import optimizer_class, train_in_backward, train_reference
from inbackward.training.schedules import make_schedule

CPU = torch.device("cpu")
IMPLEMENTATION = Implementation.drop_in(OptimizerInBackward)


def bare(scenario: Scenario) -> None:
    """Both loops as a user writes them: nothing recorded, nothing compared."""
    cls = optimizer_class(scenario.optimizer.cls)
    for in_backward in (False, True):
        torch.manual_seed(scenario.seed)
        model = build_model(scenario.model, scenario.seed, getattr(torch, scenario.dtype))
        kwargs = dict(scenario.optimizer.kwargs)
        if in_backward:
            optimizer = OptimizerInBackward(model.parameters(), cls, **kwargs)
        else:
            optimizer = cls(model.parameters(), **kwargs)
        schedule = make_schedule(scenario.schedule, optimizer) if scenario.schedule else None
        for iteration in range(scenario.iterations):
            tokens, targets = batch(scenario.data, scenario.seed, iteration)
            logits = model(tokens)
            F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()


def timed(work: Callable[[Scenario], object], scenarios: list[Scenario]) -> float:
    start = time.perf_counter()
    for scenario in scenarios:
        work(scenario)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)

    arms = default_arms()
    simple = [  # those whose loop is the bare one: one group, no events
        scenario
        for id in ("plain", "lr-schedule", "dtype", "rng")
        for scenario in CATALOGUE[id].scenarios(arms)
        if not scenario.events and not scenario.groups and not scenario.model.mixed and "plateau" not in scenario.name
    ]
    scenarios = [simple[i % len(simple)] for i in range(options.scenarios)]
    through = {
        "bare loops": bare,
        "judge (what verify runs)": lambda s: judge(IMPLEMENTATION, s, CPU),
        "  reference loop, traced": lambda s: train_reference(s, CPU),
        "  in-backward loop, traced": lambda s: train_in_backward(IMPLEMENTATION, s, CPU),
    }
    rounds: dict[str, list[float]] = {name: [] for name in through}
    for work in through.values():
        timed(work, scenarios[:10])  # warm up
    for _ in range(options.rounds):
        for name, work in through.items():
            rounds[name].append(timed(work, scenarios))
    for name, seconds in rounds.items():
        median = statistics.median(seconds)
        each, spread = 1e3 * median / len(scenarios), f"{min(seconds):.2f} to {max(seconds):.2f} s"
        print(f"{name:28} {each:7.2f} ms a scenario ({spread})")
    ratios = [b / a for a, b in zip(rounds["bare loops"], rounds["judge (what verify runs)"])]
    print(f"ratio to bare loops: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")

    traces = [(train_in_backward(IMPLEMENTATION, s, CPU), train_reference(s, CPU)) for s in scenarios[:30]]
    start = time.perf_counter()
    for pair in traces:
        compare(*pair)
    print(f"comparing two traces: {1e3 * (time.perf_counter() - start) / len(traces):.2f} ms a scenario")


if __name__ == "__main__":
    main()
