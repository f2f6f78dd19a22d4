"""The memory of a training iteration on one of many ranks, without weights, GPUs or the other ranks.

The real model, ``fully_shard``, ``DistributedDataParallel``, activation checkpointing and optimizers run, over fake
tensors, which have shapes and no bytes, and a fake process group, whose collectives return at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import Reducer  # type: ignore[attr-defined]
from torch.nn.parallel import distributed
from torch.overrides import TorchFunctionMode

from inbackward.forking import beside
from inbackward.measure.loop import PLAIN, curve_of, layer_bytes, prepare
from inbackward.measure.memory import Memory, MemoryCurve
from inbackward.measure.setup import Setup
from inbackward.training import Implementation, as_implementation

BUCKET = 25 * 2**20  # DDP's default, in bytes


def simulate_memory(
    build: Callable[[], nn.Module], setup: Setup | None = None, implementation: Implementation | None = None
) -> Memory:
    """What rank 0 holds over an iteration, in the usual loop and with the step inside the backward.

    The iteration is one in the middle of training: the optimizer has its state. Figures are those of storages: without
    what an allocator rounds up, or a kernel takes for itself.

    Args:
        build: makes the model, which maps int64 tokens ``(batch, time)`` to logits ``(batch, time, vocabulary)``, or to
            an object with ``logits``. It is called on the meta device.
        setup: the training run.
        implementation: what steps inside the backward; this package's own class where left out.

    Raises:
        RuntimeError: there is a default process group already, whose place the fake one would need.
        TypeError, ValueError: ``build`` makes no module, or one with nothing to train.
        Exception: whatever the model, or the implementation, raises.
    """
    from inbackward.optimizer import OptimizerInBackward

    setup = setup or Setup()
    with beside(lambda: _curve(build, setup, PLAIN)[0]) as plain:
        in_backward, sizes = _curve(build, setup, implementation or as_implementation(OptimizerInBackward))
        return Memory(plain(), in_backward, sizes)


def _curve(
    build: Callable[[], nn.Module], setup: Setup, implementation: Implementation
) -> tuple[MemoryCurve, tuple[int, ...]]:
    with _fake_ranks(setup):
        model = prepare(build, setup, "meta")
        tied = _names_of_each(model)
        with _FirstChunk():
            setup.shard(model)
        # An operation that raises logs its traceback as well.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        with FakeTensorMode(allow_non_fake_inputs=True), patch.object(log, "disabled", True):
            model.to_empty(device="cpu")
            _tie(model, tied)
            return curve_of(model, setup, implementation), layer_bytes(model)


class _FirstChunk(TorchFunctionMode):
    """``fully_shard`` cuts each parameter into a part for every rank, and takes its own: here, the first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.chunk and (length := args[0].shape[kwargs["dim"]]):
            tensor, dim = args[0], kwargs["dim"]
            size = -(-length // args[1])
            whole, rest = divmod(length, size)
            last = [tensor.narrow(dim, length - rest, rest)] if rest else []
            return [tensor.narrow(dim, 0, size)] * whole + last
        return func(*args, **(kwargs or {}))


def _names_of_each(model: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [each for each in names.values() if len(each) > 1]


def _tie(model: nn.Module, tied: list[list[str]]) -> None:
    """Make one parameter of several again: ``to_empty`` makes one for each name."""
    for first, *others in tied:
        for name in others:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, model.get_parameter(first))


@contextmanager
def _fake_ranks(setup: Setup) -> Iterator[None]:
    """A process group of which this process is rank 0, and in which nobody answers."""
    if setup.strategy == "single":
        yield
        return
    if dist.is_initialized():
        raise RuntimeError("there is a default process group already; simulate in a process that has none")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=setup.world_size, store=FakeStore())
    try:
        # DDP begins with one bucket, and after an iteration agrees with the other ranks on many, in which real numbers
        # take part. So it is given as many from the start: in the order of the parameters, from the last to the first.
        with (
            patch.object(Reducer, "_rebuild_buckets", lambda _: False),
            patch.object(distributed, "sys", SimpleNamespace(maxsize=BUCKET)),
        ):
            yield
    finally:
        dist.destroy_process_group()
