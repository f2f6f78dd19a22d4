"""Save everything, make new objects, load: the checkpoint routes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward.scenario import Resume
from inbackward.training.driver import Driver
from inbackward.training.parallel import local, shared_folder
from inbackward.training.setting import NotRun
from inbackward.training.trace import SavedState
from inbackward.wording import named, printable

# A route saves at once and returns the function that loads into another driver.
Load = Callable[[Driver], None]


def resume(driver: Driver, event: Resume, start: Callable[[], Driver]) -> tuple[Driver, SavedState]:
    """The driver that goes on from a checkpoint of ``driver``, over a new model, and what the checkpoint held."""
    optimizer_state = driver.state_dict()
    asked = "weights-only" in driver.setting.scenario.expect
    saved = SavedState(
        iteration=event.at,
        refused=_refused(optimizer_state) if asked else "",
        foreign=tuple(_foreign(optimizer_state, "state_dict", set(driver.setting.names))) if asked else (),
    )
    schedule_state = copy.deepcopy(driver.schedule.state_dict()) if driver.schedule is not None else None
    scaler_state = driver.scaler.state_dict() if driver.scaler else None
    load = _ROUTES[event.route](driver, optimizer_state)
    condition = driver.setting.condition()
    driver.release()
    new = start()
    new.setting.assume(condition)
    go_on(new, event, load, schedule_state)
    if scaler_state is not None:
        new.scaler.load_state_dict(scaler_state)
    return new, saved


def go_on(driver: Driver, event: Resume, load: Load, schedule_state: Any) -> None:
    """Build what a driver needs and load it, in the order in which recipes do."""
    driver.set_up()
    if event.schedule == "state-dict":
        driver.make_schedule()
    load(driver)
    if event.schedule == "last-epoch":
        driver.make_schedule(last_epoch=event.at - 1)
    elif schedule_state is not None:
        driver.schedule.load_state_dict(schedule_state)


def load_both(checkpoint: Any) -> Load:
    def load(driver: Driver) -> None:
        driver.setting.model.load_state_dict(checkpoint["model"])
        driver.load_state_dict(checkpoint["optimizer"])

    return load


def _by_memory(driver: Driver, optimizer_state: Any) -> Load:
    return load_both(copy.deepcopy({"model": driver.setting.model.state_dict(), "optimizer": optimizer_state}))


def _by_file(driver: Driver, optimizer_state: Any) -> Load:
    checkpoint = {"model": driver.setting.model.state_dict(), "optimizer": optimizer_state}
    return load_both(_through_file(checkpoint, weights_only=False))


def _by_dcp(driver: Driver, optimizer_state: Any) -> Load:
    from torch.distributed import checkpoint as dcp

    parts = dcp_parts(driver)
    folder = shared_folder()
    dcp.save(parts, checkpoint_id=folder.name)  # type: ignore[attr-defined]

    def load(new: Driver) -> None:
        with folder as name:
            load_dcp(new, name)

    return load


def dcp_parts(driver: Driver) -> dict[str, Any]:
    """What ``torch.distributed.checkpoint`` saves of a driver, and loads into what one like it has.

    Raises:
        NotRun: the handle is no ``Optimizer``.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict

    if not isinstance(driver.handle, Optimizer):
        raise NotRun(f"torch.distributed.checkpoint takes optimizers, and {type(driver.handle).__name__} is none")
    model, optimizer = get_state_dict(driver.setting.model, driver.handle)
    return {"model": model, "optimizer": optimizer}


def load_dcp(driver: Driver, folder: str) -> None:
    """Load what was saved in ``folder``, on however many ranks."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    parts = dcp_parts(driver)
    dcp.load(parts, checkpoint_id=folder)  # type: ignore[attr-defined]
    set_state_dict(
        driver.setting.model, driver.handle, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )


_ROUTES: dict[str, Callable[[Driver, Any], Load]] = {"memory": _by_memory, "file": _by_file, "dcp": _by_dcp}


def _through_file(checkpoint: Any, weights_only: bool) -> Any:
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def _refused(state_dict: Any) -> str:
    """What ``torch.save`` or ``torch.load(weights_only=True)`` says against it."""
    try:
        _through_file(state_dict, weights_only=True)
    except Exception as error:  # whatever it is, the user would meet it too
        return first_line(error)
    return ""


def _memory(x: Tensor) -> int:
    """Where the numbers lie, on this rank."""
    return local(x).untyped_storage().data_ptr()


def first_line(error: BaseException) -> str:
    """The exception in one line, without the colours that torch puts into some."""
    return printable(named(error).splitlines()[0])


def _foreign(value: Any, where: str, parameters: set[nn.Parameter]) -> Iterator[str]:
    """Where a module, a parameter, or a tensor over a parameter's storage hides in ``value``."""
    storages = {_memory(p) for p in parameters if p.numel()}
    if isinstance(value, nn.Module):
        yield f"{where} is a module ({type(value).__name__})"
    elif isinstance(value, nn.Parameter):
        yield f"{where} is a parameter"
    elif isinstance(value, Tensor):
        if value.numel() and _memory(value) in storages:
            yield f"{where} shares a parameter's storage"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _foreign(key, f"{where} key", parameters)
            yield from _foreign(item, f"{where}[{key!r}]" if not isinstance(key, Tensor) else where, parameters)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _foreign(item, f"{where}[{index}]", parameters)
