"""The family *ranks*: the same verdicts across processes, each with data of its own.

A scenario is written for the fewest ranks that its strategy takes; ``across_ranks.at_size`` gives it as many as a run
has, and a model that so many can share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inbackward.requirements.arms import Arm
from inbackward.requirements.catalogue import requirement
from inbackward.requirements.numbers import MODELS, ONE_LAYER, step_lr
from inbackward.scenario import ClipConfig, GroupConfig, ModelConfig, ParallelConfig, Resume, Scenario, SkipBranch
from inbackward.scenario.configs import TWO_DIMENSIONAL

Arms = tuple[Arm, ...]

BIASES = replace(ONE_LAYER, bias=True)
DROPOUT = replace(ONE_LAYER, dropout=0.1)


def over(strategy: str, **options: Any) -> ParallelConfig:
    """The strategy over as few ranks as it takes."""
    return ParallelConfig(strategy=strategy, ranks=4 if strategy in TWO_DIMENSIONAL else 2, **options)


@requirement("ddp", "ranks", "plain under DistributedDataParallel, each rank with its own data.")
def ddp(arms: Arms) -> Iterator[Scenario]:
    several_buckets = ModelConfig(layers=1, dim=128, hidden=512, vocabulary=1024)
    for arm in arms:
        yield arm.run("llama", parallel=over("ddp"), expect=("moved",))
        yield arm.run("several-buckets", model=several_buckets, parallel=over("ddp"), expect=("moved",))
        yield arm.run("convolution", model=MODELS["convolution"], parallel=over("ddp"))
        yield arm.run("dropout", model=DROPOUT, parallel=over("ddp"), schedule=step_lr())
        yield arm.run("bucket-view", model=several_buckets, parallel=over("ddp", bucket_view=True))
        yield arm.run("static-graph", model=ONE_LAYER, parallel=over("ddp", static_graph=True))


@requirement("fsdp2", "ranks", "plain under fully_shard.")
def fsdp2(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("llama", parallel=over("fsdp2"), expect=("moved",))
        yield arm.run("convolution-biases", model=MODELS["convolution-biases"], parallel=over("fsdp2"))
        yield arm.run("dropout", model=DROPOUT, parallel=over("fsdp2"), schedule=step_lr())


@requirement("hsdp", "ranks", "plain under fully_shard on a two-dimensional mesh.")
def hsdp(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("biases", model=BIASES, parallel=over("hsdp"), expect=("moved",))


@requirement("tensor-parallel", "ranks", "plain under tensor parallelism, and under sequence parallelism with it.")
def tensor_parallel(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("llama", model=ONE_LAYER, parallel=over("tensor-parallel"), expect=("moved",))
        yield arm.run("sequence", model=ONE_LAYER, parallel=over("tensor-parallel", sequence=True), expect=("moved",))


@requirement("fsdp2-tensor-parallel", "ranks", "plain under both.")
def fsdp2_tensor_parallel(arms: Arms) -> Iterator[Scenario]:
    strategy = "fsdp2-tensor-parallel"
    for arm in arms:
        yield arm.run("sequence", model=ONE_LAYER, parallel=over(strategy, sequence=True), expect=("moved",))


@requirement("cpu-offload", "ranks", "plain under fully_shard with CPU offload.")
def cpu_offload(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("biases", model=BIASES, parallel=over("cpu-offload"), expect=("moved",))


@requirement("fsdp2-mixed-precision", "ranks", "plain under fully_shard that computes in bf16.")
def fsdp2_mixed_precision(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for reduce in ("float32", "bfloat16"):
            parallel = over("fsdp2", mixed_precision="bfloat16", reduce_dtype=reduce)
            yield arm.run(f"reduced-in-{reduce}", model=ONE_LAYER, parallel=parallel, expect=("moved",))


@requirement("fsdp2-resharding", "ranks", "plain with resharding after forward on and off.")
def fsdp2_resharding(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for reshard in (True, False):
            parallel = over("fsdp2", reshard=reshard)
            yield arm.run("on" if reshard else "off", model=BIASES, parallel=parallel, expect=("moved",))


@requirement("rank-agreement", "ranks", "Replicas agree with each other after every iteration, whatever the reference.")
def rank_agreement(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for strategy in ("ddp", "hsdp", "tensor-parallel"):
            yield arm.run(strategy, model=BIASES, parallel=over(strategy), expect=("ranks-agree",))


@requirement(
    "ranks-accumulation", "ranks", "no_sync and set_requires_gradient_sync(False): one update, at the last micro-batch."
)
def ranks_accumulation(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for strategy in ("ddp", "fsdp2"):
            for label, last in (("reduced-last", True), ("reduced-every-time", False)):
                parallel = over(strategy, sync_last=last)
                name = f"{strategy}-{label}"
                yield arm.run(name, model=ONE_LAYER, micro_batches=(2,), parallel=parallel, expect=("moved",))
            # The gradients of earlier micro-batches lie unreduced where no parameter shows them.
            clip, parallel = ClipConfig(max_norm=0.1), over(strategy, sync_last=True)
            yield arm.run(f"{strategy}-clipped", model=ONE_LAYER, micro_batches=(3,), clip=clip, parallel=parallel)


@requirement("ranks-unused", "ranks", "unused under FSDP2 on every rank, under DDP also on one rank only.")
def ranks_unused(arms: Arms) -> Iterator[Scenario]:
    branch = ModelConfig(layers=1, branch=True)
    for arm in arms:
        everywhere = SkipBranch(at=0), SkipBranch(at=2)
        yield arm.run("fsdp2", model=branch, parallel=over("fsdp2"), events=everywhere)
        parallel = over("ddp", find_unused=True)
        yield arm.run("ddp", model=branch, parallel=parallel, events=everywhere)
        one = SkipBranch(at=1, ranks=(1,)), SkipBranch(at=2, ranks=(0,))
        yield arm.run("ddp-on-one-rank", model=branch, parallel=parallel, events=one)


@requirement("ranks-checkpointed-activations", "ranks", "Both kinds of activation checkpointing under FSDP2 and DDP.")
def ranks_checkpointed_activations(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for kind in ("non-reentrant", "reentrant"):
            for strategy in ("ddp", "fsdp2"):
                model = replace(ONE_LAYER, checkpointing=kind)
                yield arm.run(f"{strategy}-{kind}", model=model, parallel=over(strategy), expect=("moved",))


@requirement(
    "token-normalised-loss",
    "ranks",
    "A loss normalised by the token count of all ranks equals gradients scaled after it, up to rounding.",
)
def token_normalised_loss(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for strategy in ("ddp", "fsdp2"):
            yield arm.run(strategy, model=ONE_LAYER, parallel=over(strategy), token_normalised=True)


@requirement("dcp-reshard", "ranks", "Saved at 2 ranks, a checkpoint loads at 1, 3, 4 and unsharded, and goes on.")
def dcp_reshard(arms: Arms) -> Iterator[Scenario]:
    def resume(ranks: int, **fields: Any) -> Resume:
        parallel = ParallelConfig(strategy="fsdp2", ranks=ranks) if ranks else ParallelConfig()
        return Resume(**{"at": 2, "route": "dcp", "parallel": parallel, **fields})

    for arm in arms:
        events = {
            "to-1": resume(1),
            "to-3": resume(3),
            "to-4": resume(4),
            "unsharded": resume(0),
            "async-to-3": resume(3, route="dcp-async"),
            "from-plain-to-3": resume(3, saved_by="plain"),
            "into-plain-at-3": resume(3, loaded_by="plain"),
        }
        for name, event in events.items():
            yield arm.run(name, model=BIASES, parallel=over("fsdp2"), events=(event,))
        two = GroupConfig(match=("@vector",), options={"lr": arm.lr / 3}), GroupConfig()
        yield arm.run("two-groups-to-3", model=BIASES, groups=two, parallel=over("fsdp2"), events=(resume(3),))
