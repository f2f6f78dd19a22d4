"""The loop around the loops: events in their fixed order, and the record of every iteration.

What is the same for both sides stands here once; the training itself is in ``reference.py`` and ``in_backward.py``.
"""

from __future__ import annotations

import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inbackward.scenario import Edit, ExtraCalls, Observe, Resume, Scenario, StepClosure
from inbackward.training.schedules import advance
from inbackward.training.setting import NotRun, Setting
from inbackward.training.shapes import read_hyperparameters, read_state
from inbackward.training.trace import Record, SavedState, Trace


class Driver(ABC):
    """One side of a comparison: a model, something that updates it, and a schedule."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.schedule: Any = None
        self.gradients_after_backward: frozenset[str] = frozenset()

    @abstractmethod
    def iterate(self, iteration: int) -> Tensor:
        """Forward, backward, update, ``zero_grad()``; returns the unscaled loss."""

    @abstractmethod
    def iterate_by_closure(self, iteration: int) -> Tensor:
        """The same by ``step(closure)``."""

    @abstractmethod
    def make_schedule(self, last_epoch: int = -1) -> None:
        """Build the scenario's schedule, if it has one."""

    @abstractmethod
    def edit(self, event: Edit) -> None:
        """Set a hyperparameter by hand."""

    @abstractmethod
    def call(self, method: str) -> None:
        """Call ``step`` or ``zero_grad`` once more."""

    @abstractmethod
    def observe(self, what: str) -> None:
        """Read the optimizer."""

    @abstractmethod
    def shape(self) -> Any:
        """Where the optimizer state can be read."""

    @abstractmethod
    def state_dict(self) -> Any:
        """The optimizer's state dict."""

    @abstractmethod
    def load_state_dict(self, state_dict: Any) -> None:
        """Load an optimizer's state dict."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the model."""

    def hyperparameters(self) -> Any:
        """What the last update used, by parameter name; ``None`` where it cannot be seen."""
        return read_hyperparameters(self.shape(), self.setting.names)

    def existing_gradients(self) -> frozenset[str]:
        return frozenset(n for p, n in self.setting.names.items() if p.grad is not None)

    def record(self, loss: Tensor | None = None) -> Record:
        """Copies of everything observable now."""
        setting = self.setting
        state, unread = read_state(self.shape(), setting.names)
        return replace(
            model_record(setting),
            loss=loss,
            state=state,
            unread=unread,
            hyperparameters=self.hyperparameters(),
            gradients_after_backward=self.gradients_after_backward,
            gradients_after_zero=self.existing_gradients(),
            rng=torch.get_rng_state(),
        )


def model_record(setting: Setting) -> Record:
    """A record of the model alone: copies of its parameters and buffers."""
    return Record(
        loss=None,
        parameters={n: p.detach().clone() for p, n in setting.names.items()},
        buffers={n: b.detach().clone() for n, b in setting.model.named_buffers()},
        state={},
    )


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed the global generator for one run and leave it, and the warning filters, as found."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        yield


def drive(
    scenario: Scenario,
    device: torch.device,
    start: Callable[[Setting], Driver],
    resume: Callable[[Driver, Resume], tuple[Driver, SavedState]] | None = None,
) -> Trace:
    """Run a scenario and return its trace, which ends early where an exception was raised.

    Args:
        start: builds the driver that begins.
        resume: saves a driver and gives the one that goes on. ``None`` is the reference, which is neither interrupted
            nor observed.
    """
    with isolated(scenario.seed):
        setting = Setting(scenario, device)
        trainable = frozenset(n for p, n in setting.names.items() if p.requires_grad)
        trace = Trace(initial=model_record(setting), trainable=trainable)
        driver: Driver | None = None
        try:
            driver = start(setting)
            driver.make_schedule()
            trace.initial = driver.record()
            for iteration in range(scenario.iterations):
                for event in scenario.at(iteration, Resume) if resume else ():
                    driver, saved = resume(driver, event)  # type: ignore[misc]
                    trace.saved.append(saved)
                trace.records.append(_iterate(scenario, driver, iteration, observed=resume is not None))
        except (KeyboardInterrupt, NotRun):
            raise
        except BaseException as error:  # an implementation may raise anything, SystemExit included
            trace.traceback = "".join(traceback.format_exception(error))
            trace.error = error.with_traceback(None)
            trace.optimizer_built = driver is not None
            trace.aftermath = driver.record() if driver else model_record(setting)
        finally:
            if driver is not None:
                driver.close()
    return trace


def _iterate(scenario: Scenario, driver: Driver, iteration: int, observed: bool) -> Record:
    for edit in scenario.at(iteration, Edit):
        driver.edit(edit)
    for event in scenario.at(iteration, Observe) if observed else ():
        for what in event.what:
            driver.observe(what)
    _extra_calls(scenario, driver, iteration, "before")
    by_closure = scenario.at(iteration, StepClosure)
    loss = driver.iterate_by_closure(iteration) if by_closure else driver.iterate(iteration)
    _extra_calls(scenario, driver, iteration, "after")
    record = driver.record(loss)
    if scenario.schedule is not None:
        advance(scenario.schedule, driver.schedule, loss.item())
    return record


def _extra_calls(scenario: Scenario, driver: Driver, iteration: int, when: str) -> None:
    for event in scenario.at(iteration, ExtraCalls):
        for method in event.calls if event.when == when else ():
            driver.call(method)
