"""Learning-rate schedules from their description."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer, lr_scheduler

from inbackward.scenario import ScheduleConfig


def make_schedule(config: ScheduleConfig, optimizer: Optimizer, last_epoch: int = -1) -> Any:
    """The ``torch.optim.lr_scheduler`` object that ``config`` describes, over ``optimizer``.

    ``last_epoch`` other than -1 resumes a schedule by its constructor, as some recipes do.
    """
    kwargs: dict[str, Any] = dict(config.kwargs)
    if last_epoch != -1:
        kwargs["last_epoch"] = last_epoch
    cls = getattr(lr_scheduler, config.cls)
    if config.cls == "LambdaLR":
        rows = config.factors if len(config.factors) > 1 else config.factors * len(optimizer.param_groups)
        return cls(optimizer, [_table(row) for row in rows], **kwargs)
    if config.cls == "SequentialLR":
        return cls(optimizer, [make_schedule(part, optimizer) for part in config.parts], **_lists(kwargs))
    if config.cls == "ChainedScheduler":
        return cls([make_schedule(part, optimizer) for part in config.parts])
    return cls(optimizer, **_lists(kwargs))


def advance(config: ScheduleConfig, schedule: Any, loss: float) -> None:
    """One ``step()``, with the loss where the schedule watches a metric, be it inside a wrapper of someone's own."""
    if config.cls == "ReduceLROnPlateau":
        schedule.step(loss)
    else:
        schedule.step()


def _table(row: tuple[float, ...]) -> Any:
    return lambda epoch: row[min(epoch, len(row) - 1)]


def _lists(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in kwargs.items()}
