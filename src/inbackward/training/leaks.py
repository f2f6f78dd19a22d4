"""What an implementation leaves behind: over many iterations, after ``close()``, and after it was deleted."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import suppress

import torch

from inbackward.scenario import Scenario
from inbackward.training.drive import begin, isolated
from inbackward.training.implementation import Implementation
from inbackward.training.in_backward import InBackwardDriver
from inbackward.training.setting import NotRun, Setting
from inbackward.training.watching import Census, census, count_hooks

WARM_UP, HALF, LAST, LONGER = 20, 110, 200, 290


def find_leak(implementation: Implementation, scenario: Scenario, device: torch.device) -> str:
    """What stays behind, or ``""``.

    Between iteration 20 and 200 the hooks, the live storages and their bytes must not change, and in the later half of
    them, when caches are filled, there must not be one more object for every iteration, of those that the collector
    tracks or (numbers, strings) of Python's small blocks; nor in as many iterations more, where there were, since a
    process has other things to remember, but once. Then, after an iteration and a load, ``close()`` (where there
    is one), and in a second run dropping the last reference, must leave the parameters' hooks as they were before
    construction and the handle dead.
    """
    with isolated(scenario.seed):
        return _growth(implementation, scenario, device) or _remains(implementation, scenario, device)


def _growth(implementation: Implementation, scenario: Scenario, device: torch.device) -> str:
    driver = InBackwardDriver(Setting(scenario, device), implementation)
    begin(driver)
    census(driver.setting.names)

    def after(first: int, last: int) -> Census:
        for iteration in range(first, last):
            driver.iterate(iteration)
        return census(driver.setting.names)

    try:
        early, half, late = after(0, WARM_UP), after(WARM_UP, HALF), after(HALF, LAST)
        for what in ("hooks", "storages", "bytes"):
            a, b = getattr(early, what), getattr(late, what)
            if a != b:
                return f"{what}: {a} after {WARM_UP} iterations, {b} after {LAST}"
        grown = _grown(half, late)
        if grown:
            grown &= _grown(late, after(LAST, LONGER))
        for what in sorted(grown):
            return f"{what}: {getattr(half, what)} after {HALF} iterations, {getattr(late, what)} after {LAST}"
        return ""
    finally:
        driver.release()


def _grown(before: Census, after: Census) -> set[str]:
    """Of what there is one more for every iteration."""
    return {what for what in ("objects", "blocks") if getattr(after, what) - getattr(before, what) >= LAST - HALF}


def _remains(implementation: Implementation, scenario: Scenario, device: torch.device) -> str:
    for way in ("close", "del"):
        setting = Setting(scenario, device)
        before = sum(map(count_hooks, setting.names))
        driver = InBackwardDriver(setting, implementation)
        begin(driver)
        driver.iterate(0)
        with suppress(NotRun):  # what a load builds must go, too
            driver.load_state_dict(copy.deepcopy(driver.state_dict()))
        closes = implementation.close or callable(getattr(driver.handle, "close", None))
        try:
            alive = weakref.ref(driver.handle)
        except TypeError:
            raise NotRun(f"{type(driver.handle).__name__} takes no weak reference, so its end cannot be seen") from None
        if way == "close" and closes:
            driver.close()
        driver.handle = driver.schedule = None
        gc.collect()
        after = sum(map(count_hooks, setting.names))
        if alive() is not None:
            return f"the optimizer is alive after {way} and the last reference to it gone"
        if after != before:
            return f"hooks on the parameters: {before} before construction, {after} after {way}"
    return ""
