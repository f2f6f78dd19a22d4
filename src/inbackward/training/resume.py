"""Save everything, make new objects, load: the checkpoint routes."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from inbackward.scenario import Resume
from inbackward.training.driver import Driver
from inbackward.training.trace import SavedState


def resume(driver: Driver, event: Resume, start: Callable[[], Driver]) -> tuple[Driver, SavedState]:
    """The driver that goes on from a checkpoint of ``driver``, over a new model, and what the checkpoint held."""
    optimizer_state = driver.state_dict()
    saved = SavedState(
        iteration=event.at,
        refused=_refused(optimizer_state),
        foreign=tuple(_foreign(optimizer_state, "state_dict", set(driver.setting.names))),
    )
    checkpoint = {"model": driver.setting.model.state_dict(), "optimizer": optimizer_state}
    schedule_state = copy.deepcopy(driver.schedule.state_dict()) if driver.schedule is not None else None
    loaded = copy.deepcopy(checkpoint) if event.route == "memory" else _through_file(checkpoint, weights_only=False)
    driver.close()

    new = start()
    new.setting.model.load_state_dict(loaded["model"])
    if event.schedule == "state-dict":
        new.make_schedule()
    new.load_state_dict(loaded["optimizer"])
    if event.schedule == "last-epoch":
        new.make_schedule(last_epoch=event.at - 1)
    elif schedule_state is not None:
        new.schedule.load_state_dict(schedule_state)
    return new, saved


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
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _foreign(value: Any, where: str, parameters: set[nn.Parameter]) -> Iterator[str]:
    """Where a module, a parameter, or a tensor over a parameter's storage hides in ``value``."""
    storages = {p.untyped_storage().data_ptr() for p in parameters if p.numel()}
    if isinstance(value, nn.Module):
        yield f"{where} is a module ({type(value).__name__})"
    elif isinstance(value, nn.Parameter):
        yield f"{where} is a parameter"
    elif isinstance(value, Tensor):
        if value.numel() and value.untyped_storage().data_ptr() in storages:
            yield f"{where} shares a parameter's storage"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _foreign(key, f"{where} key", parameters)
            yield from _foreign(item, f"{where}[{key!r}]" if not isinstance(key, Tensor) else where, parameters)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _foreign(item, f"{where}[{index}]", parameters)
