"""The training run whose memory is asked for, and how its strategy lays out the model over the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from inbackward.measure.outline import layers

STRATEGIES = ("single", "ddp", "fsdp2", "hsdp")
RANKS_AT_MOST = 4096


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The training run whose memory is asked for.

    Attributes:
        dtype: of parameters, gradients and optimizer state.
        strategy: one of ``STRATEGIES``.
        world_size: ranks; ``single`` has one, whatever this says.
        shard_size: under ``hsdp``, how many ranks share one copy of the parameters.
        batch_size: sequences of a micro-batch on one rank.
        sequence_length: tokens of a sequence.
        micro_batches: backwards before a step.
        activation_checkpointing: keep only what enters each layer, and compute the rest again in the backward.
        optimizer_cls: the plain optimizer, and what is wrapped; Adam and AdamW are given their fused kernel.
        optimizer_kwargs: its arguments, beside the parameters.

    Raises:
        ValueError: a value is outside what the field allows; one line with the mend.
    """

    dtype: torch.dtype = torch.bfloat16
    strategy: str = "single"
    world_size: int = 2
    shard_size: int = 8
    batch_size: int = 1
    sequence_length: int = 2048
    micro_batches: int = 1
    activation_checkpointing: bool = True
    optimizer_cls: Any = torch.optim.AdamW
    optimizer_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"no memory is simulated under {self.strategy!r}; choose from {', '.join(STRATEGIES)}")
        for name in ("world_size", "shard_size", "batch_size", "sequence_length", "micro_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"the {name.replace('_', ' ')} is {getattr(self, name)}; it must be at least 1")
        if self.world_size > RANKS_AT_MOST:
            raise ValueError(f"the world size is {self.world_size}; it must be at most {RANKS_AT_MOST}")
        if self.strategy == "hsdp" and self.world_size % self.shard_size:
            raise ValueError(
                f"the world size {self.world_size} is no multiple of the {self.shard_size} ranks that share the "
                "parameters; choose another shard size"
            )

    def kwargs(self) -> dict[str, Any]:
        """The optimizer's arguments, and the fused kernel, which takes no memory for itself, of those that shard it."""
        kernel = {"fused": True} if self.optimizer_cls in (torch.optim.Adam, torch.optim.AdamW) else {}
        return {**kernel, **self.optimizer_kwargs}

    def shard(self, model: nn.Module, device: str = "cpu") -> None:
        """``fully_shard`` of every layer, then of what is left, where the strategy does so.

        The default process group must exist, and have as many ranks.
        """
        if self.strategy not in ("fsdp2", "hsdp"):
            return
        from torch.distributed.device_mesh import init_device_mesh  # half a second, for those who shard
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device, (self.world_size,), mesh_dim_names=("data",))
        if self.strategy == "hsdp":
            shape = self.world_size // self.shard_size, self.shard_size
            mesh = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))
        for layer in layers(model).values():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
