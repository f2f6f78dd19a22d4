"""The family *ranks*: the same verdicts across processes. No row has scenarios in this version."""

from __future__ import annotations

from inbackward.requirements.catalogue import planned

planned(
    "ranks",
    """
    ddp                      | | plain under DistributedDataParallel, each rank with its own data.
    fsdp2                    | | plain under fully_shard.
    hsdp                     | | plain under fully_shard on a two-dimensional mesh.
    tensor-parallel          | | plain under tensor and sequence parallel.
    fsdp2-tensor-parallel    | | plain under both.
    cpu-offload              | | plain under fully_shard with CPU offload.
    fsdp2-mixed-precision    | | plain under fully_shard with mixed precision.
    fsdp2-resharding         | | plain with resharding after forward on and off.
    rank-agreement           | | Replicas agree with each other after every iteration.
    ranks-accumulation       | | no_sync and set_requires_gradient_sync(False): hooks once, at the last micro-batch.
    ranks-unused             | | unused under FSDP2 on every rank, under DDP also on one rank only.
    ranks-checkpointed-activations | | Both kinds of activation checkpointing under FSDP2 and DDP.
    token-normalised-loss    | | Loss normalised by the global token count equals gradients scaled after it.
    dcp-reshard              | | Save at 2 ranks; load at 1, 3, 4 and unsharded.
    """,
)
