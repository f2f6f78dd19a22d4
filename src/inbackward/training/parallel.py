"""Spreading a model over ranks, and reading what lies on this one.

The default process group must exist, with as many ranks as the scenario asks for; ``ranks/`` makes it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from inbackward.scenario import ParallelConfig
from inbackward.scenario.configs import SHARDING, TWO_DIMENSIONAL

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# (model, strategy, mesh) -> model: ``Implementation.wrap``
Wrap = Callable[[nn.Module, str, Any], nn.Module]

INNER = 2  # size of the second dimension of a mesh that has two


def data_rank(config: ParallelConfig) -> int:
    """Which of the data this rank trains on: the ranks of a tensor-parallel group share theirs."""
    if config.strategy in ("single", "tensor-parallel"):
        return 0
    return dist.get_rank() // (INNER if config.strategy == "fsdp2-tensor-parallel" else 1)


_meshes: tuple[Any, dict[Any, DeviceMesh]] = (None, {})  # the default group they belong to, and they


def device_mesh(config: ParallelConfig, device: torch.device) -> DeviceMesh:
    """``("data",)``, ``("tensor",)``, ``("replicate", "shard")`` or ``("data", "tensor")``, over all ranks.

    One for all runs over a default group. torch's own caches take meshes of the same shape for the same, and use the
    groups of the first of them by name; so these must have the same names whenever such a mesh is made.
    """
    global _meshes
    from torch.distributed.device_mesh import init_device_mesh

    if _meshes[0] is not dist.group.WORLD:
        _meshes = dist.group.WORLD, {}
    if config.strategy in TWO_DIMENSIONAL:
        names: tuple[str, ...] = ("replicate", "shard") if config.strategy == "hsdp" else ("data", "tensor")
        shape: tuple[int, ...] = (config.ranks // INNER, INNER)
    else:
        names, shape = ("tensor" if config.strategy == "tensor-parallel" else "data",), (config.ranks,)
    key = device.type, names, shape
    if key not in _meshes[1]:
        _meshes[1][key] = init_device_mesh(device.type, shape, mesh_dim_names=names)
    return _meshes[1][key]


def spread(model: nn.Module, config: ParallelConfig, device: torch.device, wrap: Wrap | None = None) -> nn.Module:
    """The model as the strategy has it: the same object with other parameters, or a wrapper around it.

    Args:
        wrap: a framework's own way, in the place of this one.
    """
    if config.strategy == "single":
        return model
    if wrap is not None:
        return wrap(model, config.strategy, device_mesh(config, device))
    if config.strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(
            model,
            find_unused_parameters=config.find_unused,
            gradient_as_bucket_view=config.bucket_view,
            static_graph=config.static_graph,
        )
    mesh = device_mesh(config, device)
    if config.strategy.endswith("tensor-parallel"):
        _tensor_parallel(model, mesh["tensor"], config.sequence)
    if config.strategy in SHARDING:
        _shard(model, mesh["data"] if config.strategy == "fsdp2-tensor-parallel" else mesh, config)
    return model


def local(x: Tensor) -> Tensor:
    """The part of ``x`` that lies on this rank; it shares its memory."""
    part: Tensor = cast(Any, x).to_local() if hasattr(x, "to_local") else x
    return part


def whole(x: Tensor) -> Tensor:
    """All of ``x``, on every rank."""
    everything: Tensor = cast(Any, x).full_tensor() if hasattr(x, "full_tensor") else x
    return everything


def split_like(x: Tensor, pattern: Tensor) -> Tensor:
    """``x``, a tensor of the whole, laid out as ``pattern`` is."""
    if not hasattr(pattern, "to_local"):
        return x.clone()
    from torch.distributed.tensor import distribute_tensor

    like: Any = pattern
    return distribute_tensor(x, like.device_mesh, like.placements, src_data_rank=None)


def replica_of(x: Tensor) -> tuple[tuple[int, int], ...]:
    """What tells the parts of ``x`` apart: ranks with the same answer must hold the same numbers.

    It is this rank's coordinate in each mesh dimension along which ``x`` is sharded; a plain tensor has none.
    """
    if not hasattr(x, "to_local"):
        return ()
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    return tuple((i, mesh.get_local_rank(i)) for i, placement in enumerate(placements) if not placement.is_replicate())


@contextmanager
def synchronised(model: Any, config: ParallelConfig, last: bool) -> Iterator[None]:
    """Around forward and backward of a micro-batch: gradients are reduced in the last, where the scenario says so."""
    if config.sync_last and hasattr(model, "no_sync") and not last:
        with model.no_sync():
            yield
        return
    if config.sync_last and hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
    yield


class shared_folder:
    """A temporary folder that all ranks see, gone once all have left it; on one process, just that."""

    def __init__(self) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="inbackward-") if _rank() == 0 else None
        names = [self._own.name if self._own else None]
        if dist.is_initialized():
            dist.broadcast_object_list(names)
        self.name = str(names[0])

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        if dist.is_initialized():
            dist.barrier()
        if self._own:
            self._own.cleanup()


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _shard(model: nn.Module, mesh: DeviceMesh, config: ParallelConfig) -> None:
    """``fully_shard`` of every layer, then of what is left; a tied weight lies in that rest."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": config.reshard}
    if config.mixed_precision or config.reduce_dtype:
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=_dtype(config.mixed_precision), reduce_dtype=_dtype(config.reduce_dtype)
        )
    if config.strategy == "cpu-offload":  # pinned memory needs an accelerator
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    layers = dict.fromkeys(m for child in model.children() if isinstance(child, nn.ModuleList) for m in child)
    for layer in layers:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, **options)
    fully_shard(model, **options)


def _dtype(name: str) -> torch.dtype | None:
    return getattr(torch, name) if name else None


def _tensor_parallel(model: nn.Module, mesh: DeviceMesh, sequence: bool) -> None:
    """Megatron's split of a Llama (Shoeybi et al. 2019): columns, then rows; norms on parts of the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if sequence else Replicate()
    columns, rows = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
    around: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    block: dict[str, Any] = {
        **{f"attention.{name}": columns for name in ("query", "key", "value")},
        **{f"feed_forward.{name}": columns for name in ("gate", "up")},
        **{"attention.out": rows, "feed_forward.down": rows},
    }
    if sequence:
        around["norm"] = SequenceParallel()
        block.update({"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel()})
    parallelize_module(model, mesh, around)
    for layer in dict.fromkeys(model.blocks):  # type: ignore[arg-type]
        layer.attention.heads //= mesh.size()
        layer.attention.kv_heads //= mesh.size()
        parallelize_module(layer, mesh, block)
