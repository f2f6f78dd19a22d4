"""Both loops over many iterations, in turn, put by at intervals; then, where they differ, the reference's own noise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from inbackward.curves.checkpoint import Checkpoint
from inbackward.curves.curve import Curves
from inbackward.curves.loop import Loop
from inbackward.judging.noise import RUNS, Rounding
from inbackward.scenario import Scenario
from inbackward.training import Implementation
from inbackward.training.driver import Driver
from inbackward.training.in_backward import InBackwardDriver
from inbackward.training.reference import ReferenceDriver
from inbackward.training.setting import Setting

POINTS = 20  # at which both loops are put by, and read held-out text
Told = Callable[[int, int, str], None]  # so many of so many iterations are done, and what goes on


@dataclass(frozen=True)
class Corpus:
    """uint8 ``(bytes,)`` in two parts: the loops train on nine tenths, and the last tenth is held out."""

    text: Tensor

    @property
    def training(self) -> Tensor:
        return self.text[: -len(self.held_out)]

    @property
    def held_out(self) -> Tensor:
        return self.text[-(len(self.text) // 10) :]


def train_both(
    implementation: Implementation,
    scenario: Scenario,
    device: torch.device,
    corpus: Corpus | None = None,
    kept: Checkpoint | None = None,
    told: Told = lambda done, total, what: None,
) -> Curves:
    """The loss curves of a scenario without events, in the usual loop and in the implementation's.

    Where any bit differs, the reference is run ``RUNS`` more times under rounding-sized disturbance: three times the
    work, which equal curves do not need.

    Args:
        corpus: trained on in place of the scenario's own data, and validated on.
        kept: where both loops are put by at intervals, and taken up again.

    Raises:
        NotRun: the implementation lacks what the scenario needs, or, with ``kept``, ``state_dict()``.
        OSError: the checkpoint cannot be written.
        ValueError: the checkpoint is of another run.
    """
    found = kept.load() if kept else None
    text = corpus.training if corpus else None
    starts: dict[str, Callable[[Setting], Driver]] = {
        "plain": partial(ReferenceDriver, implementation=implementation),
        "in-backward": partial(InBackwardDriver, implementation=implementation),
    }
    noise: list[tuple[float, ...]] = found["noise"] if found else []
    with ExitStack() as stack:
        loops: dict[str, Loop] = {}
        for name, start in starts.items():
            loops[name] = Loop(scenario, device, start, text, found and found[name])
            stack.callback(loops[name].close)

        def trained(name: str) -> None:
            told(sum(len(loop.losses) for loop in loops.values()), 2 * scenario.iterations, name)

        def put_by() -> None:
            if kept is not None:
                kept.save({"noise": noise, **{name: loop.checkpoint() for name, loop in loops.items()}})

        for end in sorted({max(1, scenario.iterations * i // POINTS) for i in range(1, POINTS + 1)}):
            for name, loop in loops.items():
                loop.train(end, partial(trained, name))
                if corpus is not None:
                    loop.validate(corpus.held_out)
            put_by()
        plain, in_backward = (loop.curve for loop in loops.values())
        curves = Curves(iterations=scenario.iterations, plain=plain, in_backward=in_backward)
        while not curves.same and not plain.stopped and len(noise) < RUNS:
            rounding = partial(ReferenceDriver, implementation=implementation, intervention=Rounding(len(noise)))
            disturbed = Loop(scenario, device, rounding, text)
            stack.callback(disturbed.close)
            what = f"noise {len(noise) + 1} of {RUNS}"
            disturbed.train(
                scenario.iterations,
                lambda loop=disturbed, what=what: told(len(loop.losses), scenario.iterations, what),  # type: ignore[misc]
            )
            noise.append(tuple(disturbed.losses))
            put_by()
    return replace(curves, noise=tuple(noise))
