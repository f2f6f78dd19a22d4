"""The in-backward loop: the loop of a user of the implementation under test."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward.scenario import Edit, Recreate, Resume, Scenario, ScheduleConfig
from inbackward.training.drive import begin, drive
from inbackward.training.driver import Driver
from inbackward.training.implementation import Implementation, Moment, ParameterGroups
from inbackward.training.pair import Pair
from inbackward.training.parallel import whole
from inbackward.training.reference import ReferenceDriver
from inbackward.training.resume import resume
from inbackward.training.schedules import make_schedule
from inbackward.training.setting import NotRun, Setting, optimizer_class
from inbackward.training.shapes import set_hyperparameter, write_hyperparameter
from inbackward.training.trace import Record, SavedState, Trace


class InBackwardDriver(Driver):
    """Forward and the implementation's ``backward``; ``step()`` and ``zero_grad()`` where the handle has them."""

    is_candidate = True
    implementation: Implementation

    def __init__(self, setting: Setting, implementation: Implementation) -> None:
        super().__init__(setting)
        self.implementation = implementation
        self.optimizer_cls = optimizer_class(setting.scenario.optimizer.cls, implementation)
        self.carrier: Optimizer | None = None

    def build(self) -> None:
        setting = self.setting
        self.carrier = None
        if setting.scenario.split:
            self.handle = Pair([self._build(model, groups) for model, groups in setting.halves()])
        else:
            self.handle = self._build(setting.spread, setting.groups)

    def _build(self, model: nn.Module, planned: ParameterGroups) -> Any:
        groups = ParameterGroups({**g, "params": list(g["params"])} for g in planned)
        groups.named = planned.named
        return self.implementation.build(model, groups, self.optimizer_cls, self.setting.optimizer_kwargs())

    def iterate(self, iteration: int) -> Tensor:
        with self.interrupting(iteration):
            return self._iterate(iteration)

    def _iterate(self, iteration: int) -> Tensor:
        if self.implementation.backward is not None:
            reported = self.micro_batches(iteration, lambda loss, last: self._own_backward(loss, last, iteration))
            if not self.scaler:  # else it was stepped through the scaler, or skipped
                self._call_if_there("step")
        else:
            reported = self.micro_batches(iteration, lambda loss, last: self.backward(loss, iteration))
            self.clip()
            if self.scaler:
                self.scaler.step(self.handle)
                self.scaler.update()
            else:
                self._call_if_there("step")
        self._zero_grad()
        return reported

    def iterate_by_closure(self, iteration: int) -> Tensor:
        reported: list[Tensor] = []

        def closure() -> Tensor:
            self._zero_grad()
            unscaled, loss = self.setting.loss(iteration)
            if self.implementation.backward is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self._own_backward(loss, True, iteration)
            reported.append(unscaled)
            return loss

        self.returned(self._method("step", "a closure needs it")(closure))
        self._zero_grad()
        return reported[-1] if reported else torch.tensor(float("nan"))  # ignored: no loss was ever computed

    def make_schedule(self, last_epoch: int = -1) -> None:
        config = self.setting.scenario.schedule
        if config is None:
            return

        def make(optimizer: Optimizer) -> Any:
            return make_schedule(self._rows_for(optimizer, config), optimizer, last_epoch)

        self.schedule = None
        if self.implementation.scheduler is not None:
            self.schedule = self.implementation.scheduler(self.handle, make)
        elif isinstance(self.handle, Optimizer):
            self.schedule = make(self.handle)
        if self.schedule is None:
            self.schedule = make(self._carrier())

    def _rows_for(self, optimizer: Optimizer, config: ScheduleConfig) -> ScheduleConfig:
        """The factors of the groups that ``optimizer`` holds, where it is one of several and holds not all of them."""
        planned = self.setting.groups
        if len(config.factors) < 2 or len(optimizer.param_groups) == len(planned):
            return config
        of = {p: i for i, group in enumerate(planned) for p in group["params"]}
        rows = [of.get(next(iter(group["params"]), None), 0) for group in optimizer.param_groups]
        return replace(config, factors=tuple(config.factors[row] for row in rows))

    def edit(self, event: Edit) -> None:
        own = getattr(self.handle, "param_groups", None)
        if own is not None:
            for group in own if event.group is None else [own[event.group]]:
                write_hyperparameter(group, event.name, event.value, event.in_place)
            return
        planned = self.setting.groups if event.group is None else [self.setting.groups[event.group]]
        parameters = [p for group in planned for p in group["params"]]
        set_hyperparameter(self.shape(), parameters, event.name, event.value, event.in_place)
        carried = self._carrier().param_groups
        for group in carried if event.group is None else [carried[event.group]]:
            write_hyperparameter(group, event.name, event.value, event.in_place)

    def recreate(self, event: Recreate) -> None:
        if event.how in ("close", "model-before", "model-after"):
            if not (self.implementation.close or callable(getattr(self.handle, "close", None))):
                raise NotRun(f"{type(self.handle).__name__} has no close(); or give Implementation(close=...)")
            self.close()
        elif event.how == "held":
            self._open.callback(lambda held: None, (self.handle, self.schedule))
        if event.how == "del":
            self.handle = self.schedule = None
            gc.collect()
        if event.how.startswith("model"):
            values, condition = self.setting.model.state_dict(), self.setting.condition()
            self.setting = Setting(self.setting.scenario, self.setting.device, fresh=True)
            self.setting.assume(condition)
            if event.how == "model-before":
                self.setting.model.load_state_dict(values)
                begin(self)
            else:
                begin(self)
                self.setting.model.load_state_dict(values)
        else:
            begin(self)

    def call(self, method: str) -> Any:
        return self._method(method, "extra calls need it")()

    def shape(self) -> Any:
        custom = self.implementation.state
        if isinstance(self.handle, Pair):
            return self.handle.shape(lambda handle: custom(handle, self.setting.model) if custom else handle)
        return custom(self.handle, self.setting.model) if custom else self.handle

    def hyperparameters(self) -> Any:
        custom = self.implementation.hyperparameters
        return custom(self.handle) if custom else super().hyperparameters()

    def state_dict(self) -> Any:
        custom = self.implementation.state_dict
        return custom(self.handle) if custom else self._method("state_dict", "or give Implementation(state_dict=...)")()

    def load_state_dict(self, state_dict: Any) -> None:
        custom = self.implementation.load_state_dict
        if custom:
            custom(self.handle, state_dict)
        else:
            self._method("load_state_dict", "or give Implementation(load_state_dict=...)")(state_dict)

    def close(self) -> None:
        if self.implementation.close:
            for handle in self.handle.handles if isinstance(self.handle, Pair) else [self.handle]:
                self.implementation.close(handle, self.setting.model)
        else:
            self._call_if_there("close")

    def _own_backward(self, loss: Tensor, last: bool, iteration: int) -> None:
        clip = self.setting.scenario.clip
        moment = Moment(
            groups=self._groups_now(),
            last=last,
            max_norm=clip.max_norm if clip else None,
            error_if_nonfinite=bool(clip and clip.error_if_nonfinite),
            scaler=self.scaler,
        )

        def call(**arguments: Any) -> None:
            assert self.implementation.backward is not None
            if arguments and not self.implementation.takes_arguments:
                raise NotRun(f"the implementation's backward takes no **arguments, and so no {', '.join(arguments)}=")
            norm = self.implementation.backward(self.handle, loss, moment, **arguments)
            if norm is not None and last:
                self.observed["total norm"] = whole(norm.detach()).clone()

        self.backward(loss, iteration, call)

    def foreign_backward(self, act: Callable[[], None], iteration: int) -> None:
        pause = self.implementation.pause
        with ExitStack() as stack:
            if pause is not None:
                for handle in self.handle.handles if isinstance(self.handle, Pair) else [self.handle]:
                    stack.enter_context(pause(handle))
            act()

    def _groups_now(self) -> tuple[dict[str, Any], ...]:
        carrier = self.carrier or (self.handle if isinstance(self.handle, Optimizer) else self._carrier())
        return tuple({k: v for k, v in group.items() if k != "params"} for group in carrier.param_groups)

    def _carrier(self) -> Optimizer:
        """An optimizer of the reference's class over stand-in parameters, for schedules to act on."""
        if self.carrier is None:
            planned = [{**g, "params": [torch.zeros(1, 1, requires_grad=True)]} for g in self.setting.groups]
            carrier: Optimizer = self.optimizer_cls(planned, **self.setting.optimizer_kwargs())
            self.carrier = carrier
        return self.carrier

    def _call_if_there(self, method: str) -> None:
        call = getattr(self.handle, method, None)
        if callable(call):
            call()

    def _zero_grad(self) -> None:
        call, told = getattr(self.handle, "zero_grad", None), self.zero_grad_kwargs()
        if not callable(call):
            return
        if told:
            try:
                inspect.signature(call).bind(**told)
            except TypeError:
                raise NotRun(f"{type(self.handle).__name__}.zero_grad() takes no set_to_none") from None
        call(**told)

    def _method(self, name: str, why: str) -> Any:
        method = getattr(self.handle, name, None)
        if not callable(method):
            raise NotRun(f"{type(self.handle).__name__} has no {name}(); {why}")
        return method


def side(implementation: Implementation, which: str, setting: Setting) -> Driver:
    """The driver of the ``candidate``, or of the ``plain`` optimizer that it takes over from or hands over to."""
    if which == "plain":
        return ReferenceDriver(setting, implementation)
    return InBackwardDriver(setting, implementation)


def train_in_backward(implementation: Implementation, scenario: Scenario, device: torch.device) -> Trace:
    """The trace of a scenario in the implementation's loop, saved and loaded where the scenario says so.

    Raises:
        NotRun: the implementation lacks what the scenario needs.
    """

    def elsewhere(driver: Driver, event: Resume) -> list[Record]:
        from inbackward.training.another_process import go_on_elsewhere  # it imports this module

        return go_on_elsewhere(implementation, driver, event)

    saves = [e for e in scenario.events if isinstance(e, Resume)]
    first = min(saves, key=lambda e: e.at).saved_by if saves else "candidate"
    return _train(implementation, scenario, device, first, lambda event: event.loaded_by, elsewhere)


def train_plain(implementation: Implementation, scenario: Scenario, device: torch.device) -> Trace:
    """The trace of a scenario in the usual loop, which is saved and loaded where the scenario says so.

    What another process would load goes through a file in this one.
    """
    return _train(implementation, scenario, device, "plain", lambda event: "plain")


def _train(
    implementation: Implementation,
    scenario: Scenario,
    device: torch.device,
    first: str,
    then: Callable[[Resume], str],
    elsewhere: Callable[[Driver, Resume], list[Record]] | None = None,
) -> Trace:
    """By the ``side`` that begins, and after each load by the one that loads."""
    wrap = implementation.wrap

    def resumed(driver: Driver, event: Resume) -> tuple[Driver, SavedState]:
        here = replace(event, route="file") if event.route == "process" else event
        return resume(
            driver,
            here,
            lambda: side(implementation, then(event), Setting(scenario, device, fresh=True, wrap=wrap)),
        )

    return drive(scenario, device, wrap, lambda setting: side(implementation, first, setting), resumed, elsewhere)
