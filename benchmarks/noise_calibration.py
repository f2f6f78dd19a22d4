"""How far right updates stray from the reference, in units of the measured noise floor.

    python benchmarks/noise_calibration.py [--seeds 20] [--draws 4] [--dtype float32]

Two right implementations, whose every deviation is legal, on several models, under AdamW and SGD with momentum:

- *rounding*: the reference itself under one more seeded disturbance of one unit in the last place;
- *by hand*: the same updates in another order of operations.

For each: the distribution of the ratio of the whole tensor, of its largest element, and of every row over that row's
own floor, all over every iteration and tensor of every run. A ratio beyond the limit would accuse a right
implementation. ``--draws`` says how many disturbed runs make the floor.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.judging.by_hand import ByHand

from inbackward import Implementation
from inbackward.judging.compare import tensors
from inbackward.judging.noise import LIMIT, ROW_ALLOWANCE, RUNS, Rounding, epsilon
from inbackward.scenario import ModelConfig, OptimizerConfig, Scenario
from inbackward.training import Trace, train_in_backward, train_reference

CPU = torch.device("cpu")
OPTIMIZERS = {
    "adamw": OptimizerConfig(),
    "sgd": OptimizerConfig(cls="torch.optim:SGD", kwargs={"lr": 0.1, "momentum": 0.9}),
}
MODELS = {
    "llama": ModelConfig(),
    "biases": ModelConfig(layers=1, bias=True),
    "convolution": ModelConfig(kind="convolution"),
    "tied": ModelConfig(layers=1, tied=True),
}
Rows = Callable[[Tensor], Tensor]
Measures = dict[str, Rows]
MEASURES: Measures = {
    "whole": lambda x: x.pow(2).mean().sqrt().reshape(1),
    "element": lambda x: x.abs().amax().reshape(1),
    "row": lambda x: x.flatten(1).pow(2).mean(1).sqrt() if x.dim() > 1 else x.new_zeros(0),
}


def ratios(candidate: Trace, reference: Trace, disturbed: list[Trace]) -> Iterator[tuple[str, Tensor]]:
    """Every ratio of a run, by measure."""
    for mine, theirs, *others in zip(candidate.records, reference.records, *(d.records for d in disturbed)):
        found = [{(q, n): t for q, n, t in tensors(record)} for record in (mine, *others)]
        for quantity, name, value in tensors(theirs):
            if not (value.is_floating_point() and value.numel()) or name.endswith(".step"):
                continue
            base = value.double()
            above, *noises = (side[quantity, name].double() - base for side in found)
            for label, measure in MEASURES.items():
                floor = torch.stack([measure(n) for n in noises]).amax(0) + epsilon(value) * measure(base)
                deviation = measure(above)
                yield label, torch.where(deviation == 0, torch.zeros_like(deviation), deviation / floor)


def collect(seeds: int, draws: int, dtype: str) -> dict[tuple[str, str], Tensor]:
    """Ratios by kind of implementation and measure."""
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    implementation = Implementation.drop_in(ByHand)
    for seed in range(seeds):
        for optimizer in OPTIMIZERS.values():
            for model in MODELS.values():
                scenario = Scenario(model=model, optimizer=optimizer, seed=seed, dtype=dtype, iterations=5)
                reference = train_reference(scenario, CPU)
                runs = [train_reference(scenario, CPU, intervention=Rounding(draw)) for draw in range(draws + 1)]
                candidates = {"rounding": runs.pop(), "by hand": train_in_backward(implementation, scenario, CPU)}
                for kind, candidate in candidates.items():
                    for label, values in ratios(candidate, reference, runs):
                        found[kind, label].append(values)
    return {key: torch.cat(values) for key, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--draws", type=int, default=RUNS)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{options.seeds * len(OPTIMIZERS) * len(MODELS)} scenarios in {options.dtype}, {options.draws} draws a floor"
    )
    print(f"{'':10}{'':9}{'ratios':>10}{'median':>9}{'99 %':>9}{'99.99 %':>9}{'largest':>9}{'limit':>7}{'beyond':>8}")
    for (kind, label), values in collect(options.seeds, options.draws, options.dtype).items():
        limit = LIMIT * (ROW_ALLOWANCE if label == "row" else 1)
        ordered = values.sort().values
        at = [ordered[min(int(share * len(ordered)), len(ordered) - 1)].item() for share in (0.5, 0.99, 0.9999)]
        figures = "".join(f"{value:9.2f}" for value in (*at, ordered[-1].item()))
        print(f"{kind:10}{label:9}{len(values):10}{figures}{limit:7.0f}{int((values > limit).sum()):8}")


if __name__ == "__main__":
    main()
