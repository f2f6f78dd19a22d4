"""Scenarios without what their requirement is about, and the fault of each that is then no longer seen."""

from __future__ import annotations

from inbackward.requirements import default_arms
from inbackward.scenario import ParallelConfig, Scenario, without

# A strategy is what these are about: the nearest one that another row has takes its place.
NEAREST = {
    "ddp": ParallelConfig(),
    "fsdp2": ParallelConfig(),
    "hsdp": ParallelConfig(strategy="fsdp2", ranks=2),
    "tensor-parallel": ParallelConfig(strategy="fsdp2", ranks=2),
    "fsdp2-tensor-parallel": ParallelConfig(strategy="fsdp2", ranks=2),
    "cpu-offload": ParallelConfig(strategy="fsdp2", ranks=2),
}

# Not here: plain, whose scenarios are what is left of all others; and rank-agreement, since of replicas that differ
# one differs from the reference too. What that row has of its own is that it needs no reference.
UNSEEN = {
    "optimizers": "flag-dropped",
    "param-groups": "looks-at-the-first-group",
    "lr-schedule": "rank-one-not-scheduled",
    "weight-decay-schedule": "momentum-frozen-by-hand",
    "tensor-lr": "tensor-lr-cloned",
    "gradient-scale": "tiny-gradients-flushed",
    "dtype": "wrong-sign-in-bfloat16",
    "autocast": "matrix-product",
    "non-finite": "non-finite-skipped",
    "resume": "forgets-the-second-moment",
    "resume-schedule": "schedule-dead-after-load",
    "resume-from-plain": "from-plain-layout-of-its-own",
    "resume-into-plain": "layout-of-its-own",
    "weights-only-load": "holds-parameters",
    "resume-at-zero": "no-state-yet",
    "model-only": "master-copies",
    "snapshot-independent": "snapshot-is-live",
    "mismatched-checkpoint": "raises-half-loaded",
    "dcp": "loads-into-empty-only",
    "resume-fresh-process": "state-in-a-registry",
    "closure": "closure-ignored",
    "extra-step-calls": "counts-every-call",
    "observer": "state-dict-makes-state",
    "rng": "reseeds",
    "accumulation": "last-micro-batch-only",
    "global-clip": "second-pass-unreduced",
    "grad-scaler": "loss-scale-kept",
    "two-backwards": "steps-each-backward",
    "gradient-hooks": "removes-hooks",
    "foreign-backward": "pauses-once",
    "checkpointed-activations": "steps-at-every-end",
    "compiled-model": "compiled-vectors-rounded",
    "re-created": "state-stays-with-the-parameter",
    "deepcopy": "copies-are-the-original",
    "step-hooks": "drops-post-hooks",
    "interrupted-backward": "remembers-what-it-did",
    "two-optimizers": "the-last-one-built",
    "gradient-access": "steps-in-tensor-hooks",
    "stale-read": "the-last-at-once",
    "gradient-freed": "frees-at-step",
    "gradient-peak": "stashes",
    "no-leak": "remembers",
    "tied-weights": "one-step-a-use",
    "frozen": "hooks-on-frozen",
    "unused": "unused-decayed",
    "freeze-later": "frozen-decayed-later",
    "unfreeze-later": "hooks-on-trainable",
    "add-param-group": "new-groups-unwatched",
    "duplicate-params": "duplicates-dropped",
    "cast-or-move": "hooks-on-nodes",
    "sparse-gradient": "rows-of-the-last-token",
    "zero-size": "empty-skipped",
    "ddp": "steps-before-the-reduction",
    "fsdp2": "does-nothing-for-shards",
    "hsdp": "divides-by-all-ranks-of-a-mesh",
    "tensor-parallel": "steps-local-tensors",
    "fsdp2-tensor-parallel": "divides-by-the-mesh",
    "cpu-offload": "reads-the-copy-before",
    "fsdp2-mixed-precision": "removes-a-scale",
    "fsdp2-resharding": "parameters-of-the-forward",
    "ranks-accumulation": "buckets-each-micro-batch",
    "ranks-unused": "buckets-of-unused",
    "ranks-checkpointed-activations": "at-the-end-of-every-backward",
    "token-normalised-loss": "counts-its-own-tokens",
    "dcp-reshard": "loses-moments",
}


def removed(scenario: Scenario, id: str) -> Scenario:
    """``scenario`` without the feature or the expectation of the requirement ``id``, else as it was."""
    if id in NEAREST:
        return scenario.with_(parallel=NEAREST[id])
    if id == "optimizers":
        return scenario.with_(optimizer=default_arms()[0].config)
    return without(scenario, id)
