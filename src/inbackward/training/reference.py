"""The reference: the usual training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from inbackward.scenario import Edit, Recreate, Scenario
from inbackward.training.drive import begin, drive, isolated
from inbackward.training.driver import Driver
from inbackward.training.implementation import Implementation
from inbackward.training.intervention import Intervention, Iteration
from inbackward.training.pair import Pair
from inbackward.training.parallel import local
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

    handle: Any

    def __init__(
        self,
        setting: Setting,
        implementation: Implementation | None = None,
        flavour: Mapping[str, Any] | None = None,
        intervention: Intervention | None = None,
    ) -> None:
        super().__init__(setting)
        self.implementation = implementation
        self.flavour = flavour or {}
        self.intervention = intervention or Intervention()

    def build(self) -> None:
        setting = self.setting
        cls = optimizer_class(setting.scenario.optimizer.cls, self.implementation)
        if setting.scenario.split:
            self.handle = Pair(
                [cls(groups, **setting.optimizer_kwargs(), **self.flavour) for _, groups in setting.halves()]
            )
        else:
            groups = [{**g, "params": list(g["params"])} for g in setting.groups]
            if setting.groups.named:
                groups = [{**g, "params": [(setting.names[p], p) for p in g["params"]]} for g in groups]
            self.handle = cls(groups, **{**setting.optimizer_kwargs(), **self.flavour})
        self.intervention.built(self._now(-1))

    def _now(self, iteration: int) -> Iteration:
        def update() -> None:
            self.intervention.step(now, self._step)
            self.handle.zero_grad(**self.zero_grad_kwargs())

        now = Iteration(
            iteration=iteration,
            update=update,
            parameters={name: parameter for parameter, name in self.setting.names.items()},
            optimizers=tuple(self.handle.handles) if isinstance(self.handle, Pair) else (self.handle,),
            scaler=self.scaler,
            ranks=self.setting.scenario.parallel.ranks,
        )
        return now

    def iterate(self, iteration: int) -> Tensor:
        now, intervention = self._now(iteration), self.intervention
        intervention.begin(now)
        intervention.before_forward(now)
        reported = self.micro_batches(iteration, lambda loss, last: self._backward(loss, last, now))
        scale = (self.setting.per_token if self.setting.scenario.token_normalised else 1.0) / self._loss_factor
        for parameter in now.parameters.values() if scale != 1 else ():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        intervention.after_backward(now)
        intervention.clip(now, self.clip)
        now.update()
        if self.scaler:
            self.scaler.update()
        return reported

    def _backward(self, loss: Tensor, last: bool, now: Iteration) -> None:
        loss = loss * self._loss_factor if self._loss_factor != 1 else loss
        scaled = self.scaled(loss)

        def call(**arguments: Any) -> None:
            this = replace(now, last=last and "retain_graph" not in arguments)
            self.intervention.backward(this, lambda: torch.autograd.backward(scaled, **arguments))

        self.backward(loss, now.iteration, call)

    def synchronised(self, last: bool) -> AbstractContextManager[None]:
        if self.intervention.reduces:
            return super().synchronised(last)
        unreduced: AbstractContextManager[None] = self.setting.spread.no_sync()  # type: ignore[operator]
        return unreduced

    def foreign_backward(self, act: Callable[[], None], iteration: int) -> None:
        self.intervention.foreign_backward(self._now(iteration), act)

    def _step(self) -> None:
        if self.scaler:
            self.scaler.step(self.handle)
        else:
            self.handle.step()

    @property
    def _loss_factor(self) -> float:
        """Where gradients are scaled or added up after the backward, any factor on the loss is as legal as another."""
        scenario = self.setting.scenario
        after = scenario.token_normalised or scenario.parallel.ranks > 1
        return self.intervention.loss_factor if after else 1.0

    def iterate_by_closure(self, iteration: int) -> Tensor:
        now, intervention = self._now(iteration), self.intervention
        reported: list[Tensor] = []

        def closure() -> Tensor:
            self.handle.zero_grad(**self.zero_grad_kwargs())
            intervention.before_forward(now)
            unscaled, loss = self.setting.loss(iteration)
            intervention.backward(now, loss.backward)
            intervention.after_backward(now)
            reported.append(unscaled)
            return loss

        intervention.begin(now)
        intervention.step(now, lambda: self.returned(self.handle.step(closure)))
        self.handle.zero_grad(**self.zero_grad_kwargs())
        return reported[-1]

    def make_schedule(self, last_epoch: int = -1) -> None:
        config = self.setting.scenario.schedule
        self.schedule = make_schedule(config, self.handle, last_epoch) if config else None

    def edit(self, event: Edit) -> None:
        groups = self.handle.param_groups
        for group in groups if event.group is None else [groups[event.group]]:
            write_hyperparameter(group, event.name, event.value, event.in_place)

    def recreate(self, event: Recreate) -> None:
        begin(self)

    def call(self, method: str) -> Any:
        return getattr(self.handle, method)()

    def shape(self) -> Any:
        return self.handle.handles if isinstance(self.handle, Pair) else self.handle

    def state_dict(self) -> Any:
        return self.handle.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.handle.load_state_dict(state_dict)

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
    wrap = implementation.wrap if implementation else None
    return drive(
        scenario, device, wrap, lambda setting: ReferenceDriver(setting, implementation, flavour, intervention)
    )


def train_unwatched(scenario: Scenario, device: torch.device) -> dict[str, Tensor]:
    """The parameters at the end of the bare loop, nothing recorded on the way: the observer's control."""
    with isolated(scenario.seed):
        driver = ReferenceDriver(Setting(scenario, device))
        begin(driver)
        for iteration in range(scenario.iterations):
            loss = driver.iterate(iteration)
            if scenario.schedule is not None:
                advance(scenario.schedule, driver.schedule, loss.item())
        return {name: local(parameter.detach()) for parameter, name in driver.setting.names.items()}
