"""Where each fault across ranks is caught: the scenario, the first divergence, and on which ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """A scenario of the requirement in question, and what shows there first.

    Attributes:
        rank: which the message names first.
        ranks: all on which something is wrong.
        passes: another scenario of the requirement, in which the same implementation is right.
    """

    scenario: str
    iteration: int
    quantity: str
    rank: int
    ranks: tuple[int, ...]
    passes: str = ""


WHERE: dict[str, Where] = {
    "steps-before-the-reduction": Where("llama-adamw", 0, "parameter", 0, (0, 1)),
    "replicas-part": Where("ddp-adamw", 0, "replica", 0, (0, 1)),
    "sums-buckets": Where("llama-adamw", 0, "parameter", 0, (0, 1)),
    "doubles-views": Where("bucket-view-adamw", 0, "parameter", 0, (0, 1), passes="several-buckets-adamw"),
    "trusts-static-graphs": Where("static-graph-adamw", 0, "parameter", 0, (0, 1), passes="llama-adamw"),
    "last-replica-parts": Where("llama-adamw", 0, "parameter", 1, (0, 1)),
    "buckets-of-unused": Where("ddp-adamw", 0, "parameter", 0, (0, 1), passes="ddp-on-one-rank-adamw"),
    "buckets-each-micro-batch": Where(
        "ddp-reduced-every-time-adamw", 0, "early", 0, (0, 1), passes="ddp-reduced-last-adamw"
    ),
    "unused-here-is-unused": Where("ddp-on-one-rank-sgd", 1, "parameter", 1, (1,)),
    "second-pass-unreduced": Where("always-acts-adamw", 0, "parameter", 0, (0, 1)),
    "rank-one-not-scheduled": Where("warm-up-from-0-adamw", 0, "parameter", 1, (0, 1)),
    "shard-one-not-scheduled": Where("warm-up-from-0-adamw", 0, "parameter", 1, (0, 1)),
    "sums-over-replicas": Where("biases-adamw", 0, "parameter", 0, (0, 1, 2, 3)),
    "sums-over-tensor-ranks": Where("llama-adamw", 0, "parameter", 0, (0, 1)),
    "sums-in-two-dimensions": Where("sequence-adamw", 0, "parameter", 0, (0, 1, 2, 3)),
    "sums-offloaded": Where("biases-adamw", 0, "parameter", 0, (0, 1)),
    "sums-recomputed": Where("fsdp2-non-reentrant-adamw", 0, "parameter", 0, (0, 1)),
    "sums-in-mixed-precision": Where("reduced-in-float32-adamw", 0, "state", 0, (0, 1)),
    "sums-while-resharding": Where("on-adamw", 0, "parameter", 0, (0, 1)),
    "state-in-bfloat16-offloaded": Where("biases-adamw", 0, "state", 0, (0, 1)),
    "state-in-mixed-precision": Where("reduced-in-float32-adamw", 0, "state", 0, (0, 1)),
    "reads-the-copy-before": Where("biases-adamw", 0, "parameter", 0, (0, 1)),
    "removes-a-scale": Where("reduced-in-float32-adamw", 0, "parameter", 0, (0, 1)),
    "hooks-before-sharding": Where("llama-adamw", 0, "parameter", 0, (0, 1)),
    "does-nothing-for-shards": Where("llama-adamw", 0, "parameter", 0, (0, 1)),
    "divides-by-all-ranks-of-a-mesh": Where("biases-adamw", 0, "parameter", 0, (0, 1, 2, 3)),
    "divides-by-the-mesh": Where("sequence-adamw", 0, "parameter", 0, (0, 1, 2, 3)),
    "last-rank-of-shards": Where("llama-adamw", 0, "parameter", 1, (0, 1)),
    "last-rank-of-replicas": Where("biases-adamw", 0, "parameter", 3, (0, 1, 2, 3)),
    "last-rank-in-two-dimensions": Where("sequence-adamw", 0, "parameter", 3, (0, 1, 2, 3)),
    "one-replica-parts": Where("hsdp-adamw", 0, "replica", 1, (1, 3)),
    "one-tensor-rank-parts": Where("tensor-parallel-adamw", 0, "replica", 0, (0, 1)),
    "steps-local-tensors": Where("sequence-adamw", 0, "parameter", 0, (0, 1), passes="llama-adamw"),
    "parameters-of-the-forward": Where("off-adamw", 0, "parameter", 0, (0, 1), passes="on-adamw"),
    "at-the-end-of-every-backward": Where(
        "fsdp2-reentrant-adamw", 0, "parameter", 0, (0, 1), passes="fsdp2-non-reentrant-adamw"
    ),
    "steps-each-reduced-micro-batch": Where(
        "fsdp2-reduced-every-time-adamw", 0, "early", 0, (0, 1), passes="fsdp2-reduced-last-adamw"
    ),
    "leaves-the-last-out": Where("fsdp2-reduced-last-adamw", 0, "parameter", 0, (0, 1)),
    "counts-its-own-tokens": Where("fsdp2-adamw", 0, "parameter", 0, (0, 1)),
    "counts-in-tens": Where("fsdp2-adamw", 0, "parameter", 0, (0, 1)),
    "rank-one-forgets": Where("at-3-file-adamw", 3, "parameter", 1, (0, 1)),
    "replica-one-forgets": Where("at-3-file-adamw", 3, "parameter", 1, (0, 1)),
    "loses-moments": Where("to-1-adamw", 1, "state", 0, (0,)),
    "loses-them-on-rank-2": Where("to-3-adamw", 1, "state", 2, (0, 1, 2), passes="to-1-adamw"),
    "counts-from-zero": Where("to-1-adamw", 1, "state", 0, (0,)),
    "knows-its-shapes": Where("to-1-adamw", 1, "exception", 0, (0,)),
}
