"""What a rank does with a scenario: the same loop for a pool's workers and for torchrun's ranks."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from inbackward.ranks.world import StoreWorld
from inbackward.scenario import Scenario
from inbackward.training import World

T = TypeVar("T")
Serve = Callable[[Scenario, World], T]

# What a rank answers: ("answered", the outcome) or ("raised", a traceback), where what it raised is no verdict.
Answer = tuple[str, Any]


def answer(serve: Serve[Any], scenario: Scenario, store: Any, rank: int, device: torch.device) -> Answer:
    """Judge a scenario with the other ranks, over a process group of its own that is gone afterwards.

    Args:
        store: a ``torch.distributed.Store`` in which nobody else uses the same keys.
    """
    size = scenario.ranks
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.setdefault("LOCAL_RANK", str(rank))  # torchrun has said it
    world = None
    try:
        world = StoreWorld(store, rank, size, device)
        return "answered", serve(scenario, world)
    except BaseException:  # an implementation may raise anything, SystemExit included
        return "raised", traceback.format_exc()
    finally:
        if world is not None:
            world.leave()
