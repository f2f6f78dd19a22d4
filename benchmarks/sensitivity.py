"""The smallest relative error of each quantity that the quick profile catches, by optimizer and dtype.

    python benchmarks/sensitivity.py [--only AdamW,SGD,...] [--write]

The reference is run with the gradient, or a hyperparameter during the update, off by a relative error, in every fixed
scenario of the requirements ``plain``, ``optimizers``, ``param-groups`` and ``dtype`` that uses the optimizer, and
compared as an implementation is. What is printed is the smallest power of ten that exceeds the limit in any of them,
and where. ``--write`` puts the table into docs/detection.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inbackward.judging.mistakes.gradients import ScaledGradient
from inbackward.judging.mistakes.hyperparameters import OtherHyperparameters
from inbackward.judging.noise import LIMIT, RUNS, Floor, Rounding
from inbackward.judging.power import score
from inbackward.report.files import write_text
from inbackward.requirements import CATALOGUE, default_arms
from inbackward.scenario import Scenario
from inbackward.training import Intervention, Iteration, train_reference

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
BEGIN, END = "<!-- sensitivity: begin -->\n", "<!-- sensitivity: end -->"
REQUIREMENTS = ("plain", "optimizers", "param-groups", "dtype")
CPU = torch.device("cpu")
SMALLEST = 12  # decades
AT_CONSTRUCTION = ("initial_accumulator_value", "step_sizes")  # an update does not read them


@dataclass
class OffBy(OtherHyperparameters):
    """One hyperparameter, or one of a pair, multiplied by ``1 - error``: a beta must stay below 1."""

    key: str
    place: int | None
    error: float

    def values(self, now: Iteration, number: int, group: dict[str, Any]) -> dict[str, Any]:
        value, factor = group[self.key], 1 - self.error
        if self.place is None:
            return {self.key: value * factor}
        return {self.key: tuple(v * factor if i == self.place else v for i, v in enumerate(value))}


Quantity = tuple[str, "int | None"]


def quantities(scenario: Scenario, reference: Any) -> Iterator[Quantity]:
    """The gradient, and every number that an update of the run uses and that is not 0."""
    yield "gradient", None
    used = [values for record in reference.records for values in (record.hyperparameters or {}).values()]
    for key in sorted({key for values in used for key in values}):
        for values in used:
            value = None if key in AT_CONSTRUCTION else values.get(key)
            if isinstance(value, tuple) and all(isinstance(v, float) for v in value):
                yield from ((key, place) for place, v in enumerate(value) if v)
                break
            if isinstance(value, float) and value:
                yield key, None
                break


def mistake(quantity: Quantity, error: float) -> Intervention:
    key, place = quantity
    return ScaledGradient(1 + error) if key == "gradient" else OffBy(key, place, error)


def smallest(scenarios: list[Scenario]) -> dict[Quantity, tuple[int, str]]:
    """By quantity the power of ten, and the scenario that sees it."""
    found: dict[Quantity, tuple[int, str]] = {}
    for scenario in scenarios:
        reference = train_reference(scenario, CPU)
        disturbed = [train_reference(scenario, CPU, intervention=Rounding(seed)) for seed in range(RUNS)]
        floor = Floor(reference, disturbed)
        for quantity in dict.fromkeys(quantities(scenario, reference)):
            power = found.get(quantity, (0, ""))[0]
            while power < SMALLEST:
                trace = train_reference(scenario, CPU, intervention=mistake(quantity, 10.0 ** -(power + 1)))
                if trace.error is not None or not score(floor, trace) > LIMIT:
                    break
                power += 1
                found[quantity] = power, scenario.label
            found.setdefault(quantity, (0, ""))
    return found


def by_optimizer(only: set[str]) -> dict[tuple[str, str], list[Scenario]]:
    """The scenarios of the quick profile by optimizer class and dtype."""
    grouped: dict[tuple[str, str], list[Scenario]] = defaultdict(list)
    for id in REQUIREMENTS:
        for scenario in CATALOGUE[id].scenarios(default_arms()):
            cls = scenario.optimizer.cls.rpartition(":")[2].rpartition(".")[2]
            kernels = {"foreach", "fused"} & set(scenario.optimizer.kwargs)
            if not kernels and scenario.dtype != "float16" and (not only or cls in only):
                grouped[cls, scenario.dtype].append(scenario)
    return grouped


def table(found: dict[tuple[str, str], dict[Quantity, tuple[int, str]]]) -> str:
    lines = ["| optimizer | dtype | quantity | smallest relative error caught | by |", "|---|---|---|---|---|"]
    for (cls, dtype), rows in sorted(found.items()):
        for (key, place), (power, label) in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
            name = key if place is None else f"{key}[{place}]"
            caught = f"1e-{power}" if power else "none of 10 %"
            lines.append(f"| {cls} | {dtype} | {name} | {caught} | {label} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="optimizer classes, by commas")
    parser.add_argument("--write", action="store_true", help="put the table into docs/detection.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    only = set(options.only.split(",")) - {""}
    if only and options.write:
        parser.error("--write takes all optimizers, without --only")
    found = {}
    for key, scenarios in by_optimizer(only).items():
        found[key] = smallest(scenarios)
        print(table({key: found[key]}), flush=True)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        write_text(PAGE, before + BEGIN + "\n" + table(found) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
