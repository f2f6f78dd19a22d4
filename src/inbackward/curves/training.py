"""Both loops over many iterations, in turn, put by at intervals; then, where they differ, the reference's own noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inbackward.curves.checkpoint import Checkpoint
from inbackward.curves.curve import Curves
from inbackward.curves.loop import Loop
from inbackward.curves.progress import Progress
from inbackward.judging.noise import RUNS, Rounding
from inbackward.scenario import Scenario
from inbackward.training import Implementation, NotRun
from inbackward.training.driver import Driver
from inbackward.training.in_backward import InBackwardDriver
from inbackward.training.reference import ReferenceDriver
from inbackward.training.setting import Setting

POINTS = 20  # at which both loops are put by, and read held-out text


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
    progress: Progress | None = None,
) -> Curves:
    """The loss curves of a scenario without events, in the usual loop and in the implementation's.

    Where any bit differs, the reference is run ``RUNS`` more times under rounding-sized disturbance: three times the
    work, which equal curves do not need.

    Args:
        corpus: trained on in place of the scenario's own data, and validated on.
        kept: where both loops are put by at intervals, and taken up again.

    Raises:
        NotRun: the implementation lacks what the scenario needs.
        OSError: the checkpoint cannot be written.
        ValueError: the checkpoint is of another run.
    """
    progress = progress or Progress()
    found = kept.load() if kept else None
    text = corpus.training if corpus else None
    noise: list[tuple[float, ...]] = found["noise"] if found else []
    with ExitStack() as stack:

        def loop(start: Callable[[Setting], Driver], checkpoint: Mapping[str, Any] | None = None) -> Loop:
            made = Loop(scenario, device, start, text, checkpoint)
            stack.callback(made.close)
            return made

        plain = loop(partial(ReferenceDriver, implementation=implementation), found and found["plain"])
        in_backward = loop(partial(InBackwardDriver, implementation=implementation), found and found["in-backward"])

        def trained(what: str) -> None:
            progress.trained(len(plain.losses) + len(in_backward.losses), 2 * scenario.iterations, what)

        def trained_again(disturbed: Loop) -> None:
            done = len(noise) * scenario.iterations + len(disturbed.losses)
            progress.trained(done, RUNS * scenario.iterations, "the reference's own noise")

        def put_by() -> bool:
            try:
                if kept is not None:
                    both = {"plain": plain.checkpoint(), "in-backward": in_backward.checkpoint()}
                    kept.save({**both, "noise": noise})
            except NotRun as reason:
                progress.not_kept(str(reason))
                return False
            return kept is not None

        keeps = put_by() if not found else True
        for end in sorted({max(1, scenario.iterations * i // POINTS) for i in range(1, POINTS + 1)}):
            if end <= len(in_backward.losses):
                continue  # before it was taken up again
            for name, each in (("plain", plain), ("in-backward", in_backward)):
                each.train(end, partial(trained, name))
                if corpus is not None:
                    each.validate(corpus.held_out)
            keeps = keeps and put_by()
            progress.reached(plain.curve, in_backward.curve)
        curves = Curves(iterations=scenario.iterations, plain=plain.curve, in_backward=in_backward.curve)
        missing = RUNS - len(noise) if any(curves.differences) and not plain.stopped else 0
        if missing:
            progress.differs(missing)
        for _ in range(missing):
            rounding = Rounding(len(noise))
            disturbed = loop(partial(ReferenceDriver, implementation=implementation, intervention=rounding))
            disturbed.train(scenario.iterations, partial(trained_again, disturbed))
            noise.append(tuple(disturbed.losses))
            keeps = keeps and put_by()
    return replace(curves, noise=tuple(noise))
