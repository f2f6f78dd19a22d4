"""Which features a requirement needs, and which do not go together. Reasons stand beside the rules."""

from __future__ import annotations

from collections.abc import Mapping

# What the scenarios of a requirement always have, where that is not the feature of the same name alone.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "plain": ("moved",),
    "optimizers": (),
    "unfreeze-later": ("frozen", "unfreeze-later"),
    "model-only": ("re-created",),
    "resume-schedule": ("resume", "lr-schedule"),
    "resume-from-plain": ("resume",),
    "resume-into-plain": ("resume",),
    "resume-at-zero": ("resume",),
    "resume-fresh-process": ("resume",),
    "dcp": ("resume",),
    "weights-only-load": ("resume", "weights-only-load"),
}

# What may be refused is drawn for the requirements that own it only: an implementation that refuses a closure must not
# be called wrong, nor refusing, at `resume`. These four meet in one training loop, so each may join the others.
LOOP = ("accumulation", "global-clip", "grad-scaler", "checkpointed-activations")
COMPANIONS: Mapping[str, tuple[str, ...]] = {
    **{id: tuple(other for other in LOOP if other != id) for id in LOOP},
    "sparse-gradient": ("accumulation",),
}

_STATIC = frozenset({"param-groups", "tied-weights", "frozen", "zero-size", "rng", "convolution"})
# Rows that cost much, or that take part in little else: all that may join them.
ONLY_WITH: Mapping[str, frozenset[str]] = {
    "compiled-model": _STATIC | {"lr-schedule", "weight-decay-schedule", "gradient-scale"},
    "gradient-peak": frozenset({"param-groups", "lr-schedule"}),
    "no-leak": _STATIC,
    "resume-fresh-process": _STATIC | {"lr-schedule", "weight-decay-schedule", "dtype", "unused", "gradient-scale"},
    "dcp": _STATIC - {"zero-size"} | {"lr-schedule", "weight-decay-schedule", "dtype", "gradient-scale"},
    "two-optimizers": _STATIC - {"param-groups"}
    | {"unused", "dtype", "autocast", "gradient-scale", "extra-step-calls", "gradient-hooks", "non-finite"},
    "duplicate-params": _STATIC - {"param-groups", "zero-size"}
    | {"lr-schedule", "weight-decay-schedule", "unused", "dtype", "gradient-scale", "extra-step-calls"},
    "sparse-gradient": frozenset({"accumulation", "lr-schedule", "unused", "rng", "extra-step-calls", "zero-size"}),
}

# Refused where it is asked for, in an iteration; those in LOOP are refused in the first, and these at construction.
_ASKED_FOR = ("closure", "two-backwards", "foreign-backward", "deepcopy", "mismatched-checkpoint", "gradient-access")
MAY_REFUSE = (*_ASKED_FOR, *LOOP, "duplicate-params", "sparse-gradient", "compiled-model", "two-optimizers")
_CONFLICTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "convolution": (
        ("zero-size", "stale-read", "checkpointed-activations", "accumulation", "foreign-backward"),
        "the first three are parts of the other model; a refusal within a backward comes after batch norm has counted",
    ),
    "dtype": (("autocast", "grad-scaler"), "autocast is for fp32 parameters"),
    "autocast": (
        ("grad-scaler", "cast-or-move"),
        "it is for fp32 parameters, and a scaler has its own",
    ),
    "cast-or-move": (
        ("resume", *MAY_REFUSE),
        "loading gives state the parameter's dtype; and a refusal is held against numbers as they were before the cast",
    ),
    "re-created": (_ASKED_FOR, "a refusal is held against the state as it was before the new optimizer"),
    "resume": (("step-hooks",), "hooks on the optimizer, and their counts, are in no checkpoint"),
    "add-param-group": (
        (
            "param-groups",
            "resume",
            "re-created",
            "extra-step-calls",
            "gradient-freed",
            "interrupted-backward",
            "frozen",
            "freeze-later",
            "unfreeze-later",
            "two-backwards",
        ),
        "it brings groups of its own; parameters that wait for their group collect gradients, which are in no "
        "checkpoint, and which the next step() uses, if it is reached",
    ),
    "interrupted-backward": (
        ("frozen", "freeze-later", "unfreeze-later", "non-finite", "gradient-hooks", "stale-read", *MAY_REFUSE),
        "the parameter that interrupts must have a gradient, and the reference is never interrupted: its hooks see all",
    ),
    "non-finite": (("closure", "two-backwards"), "one spoiled backward an iteration"),
    "moved": (("lr-schedule", "gradient-scale"), "a learning rate or a loss of zero moves nothing, and need not"),
    "observer": (("step-hooks",), "reading the dictionary for torch.distributed.checkpoint may take a step"),
    "deepcopy": (("gradient-hooks",), "a copy of a parameter has no hooks, and one of a later new model has"),
    "gradient-access": (("unused",), "autograd.grad raises for parameters that took no part"),
    "optimizers": (
        ("tensor-lr", "dtype", "cast-or-move"),
        "not every class takes a tensor, keeps its scalars' precision in a checkpoint, or steps twice alike in half "
        "precision (fused SGD does not)",
    ),
}


def conflict(a: str, b: str) -> bool:
    """Whether two features, or a requirement and a feature, do not go together."""
    return any(y in _CONFLICTS.get(x, ((), ""))[0] for x, y in ((a, b), (b, a)))


def allowed(id: str, feature: str, chosen: frozenset[str]) -> bool:
    """Whether ``feature`` may join what was chosen for ``id``."""
    if id in ONLY_WITH and feature not in ONLY_WITH[id]:
        return False
    return not any(conflict(feature, other) for other in (id, *chosen))
