"""What ranks cost: the same scenarios by the pool, by processes spawned for each, and by bare loops in standing ranks.

    python benchmarks/ranks.py [--ranks 2,4] [--scenarios 8] [--repeat 3]

Prints medians in milliseconds a scenario, and the ratios, all from this one run. "Bare loops" are the two training
loops of a scenario (the usual one and the in-backward one) and the comparison of their parameters, in ranks that have
started already and keep one process group: what the verdict costs if nothing guards it. "Spawned" is one
``torch.multiprocessing.spawn`` a scenario, as in tests that are written by hand; the work in it is that of the pool.
A last table shows how the pool's time grows with parameters and with iterations.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard

from inbackward import OptimizerInBackward, Scenario
from inbackward.judging import Outcome
from inbackward.ranks.pool import Pool
from inbackward.ranks.serving import answer
from inbackward.scenario import ModelConfig, ParallelConfig
from inbackward.scenario.data import batch
from inbackward.scenario.models import build_model
from inbackward.training import World, as_implementation
from inbackward.verification import Suite

CPU = torch.device("cpu")


def scenarios(ranks: int, count: int) -> list[Scenario]:
    """Short runs under ``fully_shard``, which differ in their seed."""
    parallel = ParallelConfig(strategy="fsdp2", ranks=ranks)
    return [Scenario(seed=seed, model=ModelConfig(layers=2), parallel=parallel) for seed in range(count)]


def judge_here(scenario: Scenario, world: World) -> Outcome:
    """What every rank does with a scenario, by whatever way it came there."""
    return suite()._judge_here(scenario, world)


@cache
def suite() -> Suite:
    return Suite(as_implementation(OptimizerInBackward))


def bare(times: int, scenario: Scenario, world: World) -> list[float]:
    """Seconds of the two loops, over and over in one group, unobserved; the parameters at their ends are compared."""
    seconds = []
    for _ in range(times):
        dist.barrier()
        started = time.perf_counter()
        ends = [_train(scenario, in_backward) for in_backward in (False, True)]
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
        seconds.append(time.perf_counter() - started)
    return seconds


def _train(scenario: Scenario, in_backward: bool) -> list[torch.Tensor]:
    model = build_model(scenario.model, scenario.seed, torch.float32)
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block)
    fully_shard(model)
    kwargs = dict(scenario.optimizer.kwargs)
    optimizer: Any = (
        OptimizerInBackward(model.parameters(), torch.optim.AdamW, **kwargs)
        if in_backward
        else torch.optim.AdamW(model.parameters(), **kwargs)
    )
    for iteration in range(scenario.iterations):
        tokens, targets = batch(scenario.data, scenario.seed, iteration, 0, dist.get_rank())
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().to_local().clone() for p in model.parameters()]  # type: ignore[attr-defined]


def by_pool(work: list[Scenario]) -> float:
    """Seconds a scenario by a pool that has started, its control arm behind it."""
    with closing(Pool(judge_here, CPU)) as pool:
        pool.run(work[0])
        started = time.perf_counter()
        for scenario in work:
            assert all(outcome.verdict.value == "equivalent" for outcome in pool.run(scenario))
        return (time.perf_counter() - started) / len(work)


def by_spawn(work: list[Scenario]) -> float:
    """Seconds a scenario by ``torch.multiprocessing.spawn``."""
    started = time.perf_counter()
    for scenario in work:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_spawned, args=(scenario, folder), nprocs=scenario.ranks)
    return (time.perf_counter() - started) / len(work)


def _spawned(rank: int, scenario: Scenario, folder: str) -> None:
    torch.set_num_threads(1)
    place = Path(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        place.with_suffix(".new").write_text(str(store.port))
        place.with_suffix(".new").rename(place)
    else:
        while not place.exists():
            time.sleep(0.005)
        port = int(place.read_text())
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    kind, outcome = answer(judge_here, scenario, dist.PrefixStore("spawned", store), rank, CPU)  # type: ignore[attr-defined]
    assert kind == "answered", outcome
    assert outcome.verdict.value == "equivalent", outcome
    store.set(f"done/{rank}", "")  # rank 0 hosts the store
    store.wait([f"done/{other}" for other in range(scenario.ranks)])


def by_bare_loops(work: list[Scenario]) -> float:
    """Seconds a scenario in standing ranks with one group for all."""
    with closing(Pool(partial(bare, len(work) + 2), CPU)) as pool:
        (seconds, *_) = pool.run(work[0])
    return statistics.mean(seconds[2:])


def timed(measure: Callable[[list[Scenario]], float], work: list[Scenario], repeat: int) -> float:
    return statistics.median(measure(work) for _ in range(repeat))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--scenarios", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; milliseconds a scenario, fsdp2, 4 iterations")
    print(f"{'ranks':>5}{'pool':>9}{'spawned':>9}{'bare':>9}{'spawned/pool':>14}{'pool/bare':>11}")
    for ranks in map(int, arguments.ranks.split(",")):
        work = scenarios(ranks, arguments.scenarios)
        rounds = [(by_pool(work), by_spawn(work[:2]), by_bare_loops(work)) for _ in range(arguments.repeat)]
        pool, spawned, loops = (statistics.median(column) * 1000 for column in zip(*rounds, strict=True))
        print(
            f"{ranks:>5}{pool:>9.0f}{spawned:>9.0f}{loops:>9.0f}{spawned / pool:>14.1f}{pool / loops:>11.2f}",
            flush=True,
        )
    print("\nthe pool at 2 ranks, milliseconds a scenario")
    for label, changes in {
        "1 layer": {"model": ModelConfig(layers=1)},
        "4 layers": {"model": ModelConfig(layers=4)},
        "4 layers, 4 x as wide": {"model": ModelConfig(layers=4, dim=128, hidden=256)},
        "16 iterations": {"iterations": 16},
    }.items():
        work = [scenario.with_(**changes) for scenario in scenarios(2, arguments.scenarios)]
        print(f"{label:<24}{timed(by_pool, work, arguments.repeat) * 1000:>8.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
