"""A run in two halves on different numbers of ranks, with a checkpoint between that is laid out anew.

The first half saves through ``torch.distributed.checkpoint``, the second loads into a model that is spread otherwise.
A run never interrupted has no such second half, so the reference is carried over by hand: its tensors are put together
on the ranks that have them and split again on those that go on, without any checkpoint library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inbackward.scenario import Resume, Scenario
from inbackward.training.drive import begin, isolated, iterate
from inbackward.training.driver import Driver
from inbackward.training.implementation import Implementation
from inbackward.training.in_backward import side
from inbackward.training.parallel import split_like, whole
from inbackward.training.resume import dcp_parts, go_on, load_dcp
from inbackward.training.setting import Setting
from inbackward.training.trace import Trace, empty

BY_HAND = "by-hand.pt"


def resharding(scenario: Scenario) -> Resume | None:
    """The event at which the run goes on over other ranks, if there is one."""
    return next((e for e in scenario.events if isinstance(e, Resume) and e.parallel is not None), None)


class Halves:
    """The halves of one scenario, for one side of the comparison.

    Args:
        implementation: whose loops run where ``which`` says ``"candidate"``.
        folder: that all ranks see; the first half leaves its checkpoint there.
        by_hand: carry the tensors over by hand.
    """

    def __init__(
        self, implementation: Implementation, scenario: Scenario, device: torch.device, folder: Path, by_hand: bool
    ) -> None:
        event = resharding(scenario)
        assert event is not None
        assert event.parallel is not None
        self.event = event
        self._implementation, self._device, self._folder, self._by_hand = implementation, device, folder, by_hand
        rest = tuple(e for e in scenario.events if e is not event)
        self._first = scenario.with_(events=rest)
        self.second_parallel = event.parallel
        self._second = scenario.with_(events=rest, parallel=event.parallel)

    def first(self, which: str) -> Trace:
        """Train up to the event and save."""
        with isolated(self._first.seed):
            driver = self._driver(which, self._first, fresh=False)
            trace = empty()
            begin(driver)
            trace.records = [iterate(self._first, driver, i, observed=False) for i in range(self.event.at)]
            save = _save_by_hand if self._by_hand else _save_async if self.event.route == "dcp-async" else _save
            finish = save(driver, self._folder)
            if self.event.route == "dcp-async":  # what is trained while the checkpoint is written is not in it
                iterate(self._first, driver, self.event.at, observed=False)
            finish()
            driver.release()
        return trace

    def second(self, which: str) -> Trace:
        """Load over the other ranks and train to the end; the first record is what was loaded."""
        with isolated(self._second.seed):
            driver = self._driver(which, self._second, fresh=True)
            trace = empty()
            load = _load_by_hand if self._by_hand else load_dcp
            go_on(driver, self.event, lambda new: load(new, str(self._folder)), None)
            loaded = driver.record()
            rest = range(self.event.at, self._second.iterations)
            trace.records = [loaded, *(iterate(self._second, driver, i, observed=False) for i in rest)]
            driver.release()
        return trace

    def _driver(self, which: str, scenario: Scenario, fresh: bool) -> Driver:
        setting = Setting(scenario, self._device, fresh=fresh, wrap=self._implementation.wrap)
        return side(self._implementation, which, setting)


def _save(driver: Driver, folder: Path) -> Callable[[], Any]:
    from torch.distributed import checkpoint as dcp

    dcp.save(dcp_parts(driver), checkpoint_id=str(folder))  # type: ignore[attr-defined]
    return lambda: None


def _save_async(driver: Driver, folder: Path) -> Callable[[], Any]:
    from torch.distributed import checkpoint as dcp

    apart = torch.distributed.new_group(backend="gloo")  # the writer's collectives must not meet the training's
    writing: Any = dcp.async_save(  # type: ignore[attr-defined]
        dcp_parts(driver), checkpoint_id=str(folder), process_group=apart
    )
    return lambda: writing.result()


def _save_by_hand(driver: Driver, folder: Path) -> Callable[[], Any]:
    """Every tensor put together, in one file."""
    names = driver.setting.names
    tensors = {
        "parameters": {n: whole(p.detach()).clone() for p, n in names.items()},
        "buffers": {n: whole(b.detach()).clone() for n, b in driver.setting.model.named_buffers()},
        "state": {names[p]: _whole_entries(entries) for p, entries in driver.handle.state.items()},
    }
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        torch.save(tensors, folder / BY_HAND)
    return lambda: None


def _load_by_hand(driver: Driver, folder: str) -> None:
    """Each parameter's part of the file's tensors, and the state that the plain optimizer would have there."""
    tensors = torch.load(Path(folder) / BY_HAND, weights_only=True)
    with torch.no_grad():
        for p, name in driver.setting.names.items():
            p.copy_(split_like(tensors["parameters"][name], p))
            entries = tensors["state"].get(name, {})
            driver.handle.state[p] = {
                key: split_like(value, p) if isinstance(value, Tensor) and value.shape == p.shape else value
                for key, value in entries.items()
            }
        for name, buffer in driver.setting.model.named_buffers():
            buffer.copy_(tensors["buffers"][name])


def _whole_entries(entries: dict[str, Any]) -> dict[str, Any]:
    return {k: whole(v.detach()).clone() if isinstance(v, Tensor) else v for k, v in entries.items()}
