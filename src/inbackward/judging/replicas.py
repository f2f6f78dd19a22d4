"""Whether the ranks that hold the same part of the model hold the same numbers, after every iteration."""

from __future__ import annotations

import zlib
from collections import defaultdict

import torch
from torch import Tensor

from inbackward.judging.verdict import Divergence
from inbackward.training import Trace, World

Part = tuple[str, tuple[tuple[int, int], ...]]  # a tensor's name, and which part of it


def disagreement(world: World, trace: Trace) -> dict[int, Divergence]:
    """Where replicas first differ from each other, whatever the reference says, by each rank that holds one of them.

    The same answer on every rank; empty where they agree.
    """
    if world.size == 1:
        return {}
    everywhere = world.share([_digests(trace, iteration) for iteration in range(len(trace.records))])
    for iteration in range(min(map(len, everywhere))):
        holders: dict[Part, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, digests in enumerate(everywhere):
            for part, digest in digests[iteration].items():
                holders[part][digest].append(rank)
        for (name, _), found in holders.items():
            if len(found) > 1:
                sides = " and ".join(", ".join(map(str, ranks)) for ranks in found.values())
                detail = f"ranks {sides} hold different numbers of the same part"
                apart = Divergence(iteration=iteration, quantity="replica", name=name, detail=detail)
                return {rank: apart for ranks in found.values() for rank in ranks}
    return {}


def _digests(trace: Trace, iteration: int) -> dict[Part, int]:
    """A checksum of every parameter and state tensor that other ranks may hold as well.

    State of the parameter's shape is split as the parameter is; a single number, such as a counter, not at all.
    """
    record = trace.records[iteration]
    digests = {(name, trace.replicas[name]): _checksum(p) for name, p in record.parameters.items()}
    for name, entries in record.state.items():
        for key, value in entries.items():
            if name in record.parameters and value.shape == record.parameters[name].shape:
                digests[f"{name}.{key}", trace.replicas[name]] = _checksum(value)
            elif value.numel() == 1:
                digests[f"{name}.{key}", ()] = _checksum(value)
    return digests


def _checksum(x: Tensor) -> int:
    return zlib.crc32(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
