"""The loop around the loops: events in their fixed order, and the trace that comes of it."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inbackward.scenario import (
    AddGroup,
    Cast,
    Copy,
    Edit,
    Event,
    ExtraCalls,
    ForeignBackward,
    Freeze,
    LoadUnfit,
    Observe,
    Recreate,
    Resume,
    Scenario,
    Snapshot,
    StepClosure,
    Unfreeze,
)
from inbackward.training.driver import Driver
from inbackward.training.observing import observe
from inbackward.training.parallel import Wrap, replica_of
from inbackward.training.schedules import advance
from inbackward.training.setting import NotRun, Setting
from inbackward.training.trace import Record, SavedState, Trace


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed the global generators for one run, and leave them and whatever else a run could leak as found."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), ExitStack() as stack:
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, numpy)
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(os.chdir, os.getcwd())
        random.seed(seed)
        np.random.seed(seed)
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        yield


def drive(
    scenario: Scenario,
    device: torch.device,
    wrap: Wrap | None,
    start: Callable[[Setting], Driver],
    resume: Callable[[Driver, Resume], tuple[Driver, SavedState]] | None = None,
    elsewhere: Callable[[Driver, Resume], list[Record]] | None = None,
) -> Trace:
    """Run a scenario and return its trace, which ends early where an exception was raised.

    Args:
        wrap: a framework's own way to spread the model over ranks.
        start: makes the driver that begins, over the scenario's model.
        resume: saves a driver and gives the one that goes on. ``None`` is the reference, which is neither interrupted
            nor observed.
        elsewhere: saves a driver and gives the records of another process that goes on to the end.
    """
    with isolated(scenario.seed):
        setting = Setting(scenario, device, wrap=wrap)
        trainable = frozenset(n for p, n in setting.names.items() if p.requires_grad)
        driver = start(setting)
        trace = Trace(initial=_model_alone(setting), trainable=trainable)
        trace.replicas = {name: replica_of(parameter) for parameter, name in setting.names.items()}
        try:
            begin(driver)
            trace.initial = driver.record()
            for iteration in range(scenario.iterations):
                for event in scenario.at(iteration, Resume) if resume else ():
                    if event.route == "process" and elsewhere:
                        trace.records += elsewhere(driver, event)
                        return trace
                    driver, saved = resume(driver, event)  # type: ignore[misc]
                    trace.saved.append(saved)
                trace.records.append(iterate(scenario, driver, iteration, observed=resume is not None))
        except (KeyboardInterrupt, NotRun):
            raise
        except BaseException as error:  # an implementation may raise anything, SystemExit included
            _note(trace, error)
            trace.optimizer_built = driver.handle is not None
            with _noting(trace):  # what is half built may raise again where it is read
                trace.aftermath = driver.record() if driver.handle is not None else _model_alone(driver.setting)
        finally:
            with _noting(trace):
                driver.release()
    return trace


def _note(trace: Trace, error: BaseException) -> None:
    """The exception that ended a run; one that comes after it says less."""
    if trace.error is None:
        trace.traceback = "".join(traceback.format_exception(error))
        trace.error = error.with_traceback(None)


@contextmanager
def _noting(trace: Trace) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, NotRun):
        raise
    except BaseException as error:
        _note(trace, error)


def begin(driver: Driver) -> None:
    """Build the handle and the schedule."""
    driver.set_up()
    driver.count_step_hooks()
    driver.make_schedule()


def _model_alone(setting: Setting) -> Record:
    return Record(
        loss=None,
        parameters=setting.values(),
        buffers={n: b.detach().clone() for n, b in setting.model.named_buffers()},
        state={},
    )


def iterate(scenario: Scenario, driver: Driver, iteration: int, observed: bool) -> Record:
    """One iteration with its events; ``observed`` says whether the optimizer is read where the scenario says so."""
    for kind, act in _BEFORE.items():
        if observed or kind is not Observe:
            for event in scenario.at(iteration, kind):
                act(driver, event)
    by_closure = scenario.at(iteration, StepClosure)
    loss = driver.iterate_by_closure(iteration) if by_closure else driver.iterate(iteration)
    for event in scenario.at(iteration, ExtraCalls):
        _extra_calls(driver, event, "after")
    record = driver.record(loss)
    if scenario.schedule is not None:
        advance(scenario.schedule, driver.schedule, loss.item())
    return record


def _copy(driver: Driver, event: Copy) -> None:
    if event.how == "deepcopy":
        driver.copied(copy.deepcopy)
    elif event.how == "pickle":
        driver.copied(lambda objects: pickle.loads(pickle.dumps(objects)))
    else:
        twin = Setting(driver.setting.scenario, driver.setting.device, model=copy.deepcopy(driver.setting.model))
        driver.watch_model("the model's copy", twin.model)
        _, loss = twin.loss(event.at)
        loss.backward()  # type: ignore[no-untyped-call]


def _cast(driver: Driver, event: Cast) -> None:
    driver.setting.model.to(getattr(torch, event.dtype))


def _require_grad(driver: Driver, event: Freeze | Unfreeze) -> None:
    for parameter in driver.setting.select(event.match):
        parameter.requires_grad_(isinstance(event, Unfreeze))


def _snapshot(driver: Driver, event: Snapshot) -> None:
    taken = copy.deepcopy(driver.state_dict())
    if event.route == "file":
        file = io.BytesIO()
        torch.save(driver.state_dict(), file)
        file.seek(0)
        taken = torch.load(file, weights_only=False)
    kept = _values(taken)
    driver.bystanders.append(("a snapshot of the state dict", lambda: not _same(taken, kept)))


def _values(value: Any) -> Any:
    """A copy by its values alone: a class of the state dict's own may copy and pickle itself as it likes."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _values(item) for key, item in value.items()}
    return [_values(item) for item in value] if isinstance(value, (list, tuple)) else value


def _load_unfit(driver: Driver, event: LoadUnfit) -> None:
    state_dict = copy.deepcopy(driver.state_dict())
    if not (isinstance(state_dict, dict) and {"state", "param_groups"} <= state_dict.keys()):
        raise NotRun("its state dict is not in an optimizer's layout, so it cannot be made unfit")
    first = min(state_dict["state"], default=None)
    if event.what == "no-groups":
        del state_dict["param_groups"]
    elif event.what == "missing-parameter":
        state_dict["param_groups"][-1]["params"].pop()
    elif event.what == "extra-parameter":
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        state_dict["param_groups"][-1]["params"].append(max(ids) + 1)
    elif first is None:
        raise NotRun("no parameter has state yet that could be made unfit")
    elif event.what == "missing-state":
        del state_dict["state"][first]
    else:
        entries = state_dict["state"][first]
        state_dict["state"][first] = {k: v[:-1] if isinstance(v, Tensor) and v.dim() else v for k, v in entries.items()}
    driver.load_state_dict(state_dict)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _foreign_backward(driver: Driver, event: ForeignBackward) -> None:
    _, loss = driver.setting.loss(event.at)
    if event.how == "through":  # another model's parameter takes part, as a generator's would
        other = torch.ones((), device=loss.device, requires_grad=True)
        loss = loss * other
    driver.foreign_backward(loss.backward, event.at)
    driver.setting.model.zero_grad()


def _extra_calls(driver: Driver, event: ExtraCalls, when: str) -> None:
    for method in event.calls if event.when == when else ():
        driver.call(method)


# What happens before the forward, in this order.
_BEFORE: dict[type[Event], Callable[[Driver, Any], None]] = {
    Recreate: lambda driver, event: driver.recreate(event),
    Copy: _copy,
    Cast: _cast,
    Freeze: _require_grad,
    Unfreeze: _require_grad,
    AddGroup: lambda driver, event: driver.add_group(event),
    Edit: lambda driver, event: driver.edit(event),
    Observe: observe,
    Snapshot: _snapshot,
    LoadUnfit: _load_unfit,
    ForeignBackward: _foreign_backward,
    ExtraCalls: lambda driver, event: _extra_calls(driver, event, "before"),
}
