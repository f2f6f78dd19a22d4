"""One loop of a long run: it notes losses only, and can be put by and taken up again with the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from inbackward.curves.curve import Curve
from inbackward.scenario import Resume, Scenario
from inbackward.scenario.data import batch
from inbackward.training import NotRun
from inbackward.training.drive import begin, isolated
from inbackward.training.driver import Driver
from inbackward.training.resume import first_line, go_on, load_both
from inbackward.training.schedules import advance
from inbackward.training.setting import Setting

HELD_OUT_BATCHES = 8


class Loop:
    """A driver under its own random generators, so that several loops can train in turn in one process.

    Args:
        start: makes the driver over a setting.
        text: uint8 ``(bytes,)`` to train on; ``None`` for the scenario's own data.
        checkpoint: what ``checkpoint()`` of one like this gave; it goes on from there.

    Attributes:
        stopped: the exception that ended it, in a line, or ``""``.
    """

    def __init__(
        self,
        scenario: Scenario,
        device: torch.device,
        start: Callable[[Setting], Driver],
        text: Tensor | None = None,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> None:
        self.scenario = scenario
        self.losses: list[float] = list(checkpoint["losses"]) if checkpoint else []
        self.held_out: list[tuple[int, float]] = list(checkpoint["held_out"]) if checkpoint else []
        self.stopped = str(checkpoint["stopped"]) if checkpoint else ""
        with isolated(scenario.seed):
            setting = Setting(scenario, device, fresh=checkpoint is not None)
            setting.text = text
            self.driver = start(setting)
            self._generators = _generators()
            try:
                if checkpoint is None:
                    begin(self.driver)
                    self._generators = _generators()
                elif not self.stopped:
                    at = Resume(at=len(self.losses))
                    go_on(self.driver, at, load_both(checkpoint), checkpoint["schedule"])
                    self._generators = checkpoint["generators"]
            except (KeyboardInterrupt, NotRun):
                raise
            except BaseException as error:  # an implementation may raise anything
                self.stopped = first_line(error)

    @property
    def curve(self) -> Curve:
        return Curve(losses=tuple(self.losses), held_out=tuple(self.held_out), stopped=self.stopped)

    def train(self, end: int, told: Callable[[], None] = lambda: None) -> None:
        """Train until ``end`` iterations are done, or it raises; ``told`` is called after each."""
        with isolated(self.scenario.seed):
            _set_generators(self._generators)
            try:
                while len(self.losses) < end and not self.stopped:
                    loss = self.driver.iterate(len(self.losses)).item()
                    if self.scenario.schedule is not None:
                        advance(self.scenario.schedule, self.driver.schedule, loss)
                    self.losses.append(loss)
                    told()
            except (KeyboardInterrupt, NotRun):
                raise
            except BaseException as error:
                self.stopped = first_line(error)
            self._generators = _generators()

    def validate(self, text: Tensor) -> None:
        """Note the mean loss on fixed batches of ``text``, without dropout and without a gradient."""
        s, setting = self.scenario, self.driver.setting
        if self.stopped or (self.held_out and self.held_out[-1][0] == len(self.losses)):
            return
        setting.model.eval()
        with torch.no_grad():
            losses = []
            for index in range(HELD_OUT_BATCHES):
                tokens, targets = (t.to(setting.device) for t in batch(s.data, s.seed, index, text=text))
                losses.append(cross_entropy(setting.forward(tokens).float().flatten(0, 1), targets.flatten()))
            self.held_out.append((len(self.losses), torch.stack(losses).mean().item()))
        setting.model.train()

    def checkpoint(self) -> dict[str, Any]:
        """All that it needs to go on, for ``torch.save``; it aliases live tensors.

        Raises:
            NotRun: the handle has no ``state_dict()``.
        """
        driver = self.driver
        whole = not self.stopped
        return {
            "model": driver.setting.model.state_dict() if whole else None,
            "optimizer": driver.state_dict() if whole else None,
            "schedule": driver.schedule.state_dict() if whole and driver.schedule is not None else None,
            "generators": self._generators,
            "losses": self.losses,
            "held_out": self.held_out,
            "stopped": self.stopped,
        }

    def close(self) -> None:
        """Let go of the model; the losses are there, whatever the implementation's ``close()`` may raise."""
        with suppress(Exception, SystemExit):
            self.driver.release()


def _generators() -> dict[str, Any]:
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return {"cpu": torch.get_rng_state(), "cuda": on_gpu, "python": random.getstate(), "numpy": np.random.get_state()}


def _set_generators(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["cpu"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
