"""The last reference runs, kept where many implementations are judged one after the other on the same scenarios."""

from __future__ import annotations

from collections import OrderedDict

import torch

from inbackward.scenario import Scenario
from inbackward.training.implementation import Implementation
from inbackward.training.reference import train_reference
from inbackward.training.trace import Trace

KEPT = 64  # each a few megabytes

_last: OrderedDict[tuple[str, str], Trace] | None = None


def remember_references() -> None:
    """Keep reference runs from now on, in this process."""
    global _last
    _last = OrderedDict()


def reference_run(scenario: Scenario, device: torch.device, implementation: Implementation) -> Trace:
    """``train_reference``, or what it gave before: a scenario says all that its numbers depend on.

    An implementation with a reference optimizer or a parallelism of its own has its own reference.
    """
    if _last is None or implementation.optimizers is not None or implementation.wrap is not None:
        return train_reference(scenario, device, implementation)
    key = scenario.digest, str(device)
    if key not in _last:
        _last[key] = train_reference(scenario, device, implementation)
        if len(_last) > KEPT:
            _last.popitem(last=False)
    _last.move_to_end(key)
    return _last[key]
