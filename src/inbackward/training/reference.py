"""The reference: the usual training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inbackward.scenario import Edit, Scenario
from inbackward.training.driver import Driver, drive, isolated
from inbackward.training.implementation import Implementation
from inbackward.training.intervention import Intervention
from inbackward.training.schedules import advance, make_schedule
from inbackward.training.setting import Setting, optimizer_class
from inbackward.training.shapes import write_hyperparameter
from inbackward.training.trace import Trace


class ReferenceDriver(Driver):
    """Forward, ``backward()``, ``step()``, ``zero_grad()``.

    Args:
        flavour: keyword arguments that choose a kernel, such as ``{"foreach": True}``.
        intervention: what is done to the run, for noise floors and what-ifs.
    """

    def __init__(
        self,
        setting: Setting,
        implementation: Implementation | None = None,
        flavour: Mapping[str, Any] | None = None,
        intervention: Intervention | None = None,
    ) -> None:
        super().__init__(setting)
        self.intervention = intervention or Intervention()
        cls = optimizer_class(setting.scenario.optimizer.cls, implementation)
        groups = [{**g, "params": list(g["params"])} for g in setting.groups]
        if setting.groups.named:
            groups = [{**g, "params": [(setting.names[p], p) for p in g["params"]]} for g in groups]
        self.optimizer = cls(groups, **{**setting.optimizer_kwargs(), **(flavour or {})})

    def iterate(self, iteration: int) -> Tensor:
        model, optimizer, intervention = self.setting.model, self.optimizer, self.intervention
        intervention.before_forward(model, iteration)
        reported, loss = self.setting.loss(iteration)
        loss.backward()  # type: ignore[no-untyped-call]
        intervention.after_backward(model, iteration)
        self.gradients_after_backward = self.existing_gradients()
        intervention.before_step(model, optimizer)
        optimizer.step()
        intervention.after_step(model, optimizer)
        optimizer.zero_grad()
        return reported

    def iterate_by_closure(self, iteration: int) -> Tensor:
        reported: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            unscaled, loss = self.setting.loss(iteration)
            loss.backward()  # type: ignore[no-untyped-call]
            reported.append(unscaled)
            return loss

        self.optimizer.step(closure)
        self.optimizer.zero_grad()
        return reported[-1]

    def make_schedule(self, last_epoch: int = -1) -> None:
        config = self.setting.scenario.schedule
        self.schedule = make_schedule(config, self.optimizer, last_epoch) if config else None

    def edit(self, event: Edit) -> None:
        groups = self.optimizer.param_groups
        for group in groups if event.group is None else [groups[event.group]]:
            write_hyperparameter(group, event.name, event.value, event.in_place)

    def call(self, method: str) -> None:
        getattr(self.optimizer, method)()

    def observe(self, what: str) -> None:
        """The reference is never observed."""

    def shape(self) -> Any:
        return self.optimizer

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)

    def close(self) -> None:
        """A plain optimizer holds nothing on the model."""


def train_reference(
    scenario: Scenario,
    device: torch.device,
    implementation: Implementation | None = None,
    flavour: Mapping[str, Any] | None = None,
    intervention: Intervention | None = None,
) -> Trace:
    """The trace of a scenario in the usual loop, never interrupted by a ``Resume`` and never read by an ``Observe``."""
    return drive(scenario, device, lambda setting: ReferenceDriver(setting, implementation, flavour, intervention))


def train_unwatched(scenario: Scenario, device: torch.device) -> dict[str, Tensor]:
    """The parameters at the end of the bare loop, nothing recorded on the way: the observer's control."""
    with isolated(scenario.seed):
        driver = ReferenceDriver(Setting(scenario, device))
        driver.make_schedule()
        for iteration in range(scenario.iterations):
            loss = driver.iterate(iteration)
            if scenario.schedule is not None:
                advance(scenario.schedule, driver.schedule, loss.item())
        return {name: parameter.detach() for parameter, name in driver.setting.names.items()}
