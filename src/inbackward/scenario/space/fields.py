"""Features that last the whole run: the model, its parameters, the groups, the dtype, the loss."""

from __future__ import annotations

from typing import Any

from inbackward.scenario.configs import ClipConfig, GroupConfig, HookConfig, ScalerConfig
from inbackward.scenario.space.draft import Draft, feature

# Whatever of these is frozen, together or in turn, at least one matrix inside the model is left to train.
FREEZABLE = (("@even",), ("@vector",), ("@first",), ("@last",), ("@first", "@vector"))
LEAVING_SOME = (("@vector",), ("@first",), ("@last",), ("@even",))
ANY = (*LEAVING_SOME, ("@matrix",), ("*.weight",))


def sizes(d: Draft) -> None:
    """A model, data and an optimizer's options that cost about as much as those of the fixed scenarios."""
    choose = d.choices
    d.iterations = choose.integer(3, 4)
    heads = choose.one_of((1, 2, 4))
    d.model = {
        "layers": choose.one_of((1, 1, 2)),
        "dim": choose.one_of((16, 32)),
        "heads": heads,
        "kv_heads": choose.one_of([k for k in (1, 2, 4) if heads % k == 0]),
        "hidden": choose.one_of((16, 24, 48)),
        "bias": choose.chance(0.3),
    }
    d.data = {
        "source": choose.one_of(("standard-library", "synthetic")),
        "batch": choose.integer(1, 3),
        "length": choose.one_of((4, 8, 16)),
    }
    d.fields["seed"] = choose.integer(0, 9999)
    if d.arm.config.cls.startswith("torch.optim:"):
        d.options = _options(d)


def _options(d: Draft) -> dict[str, Any]:
    """Some of the optimizer's flags and hyperparameters away from what its arm gives it."""
    choose, options = d.choices, dict[str, Any]()
    if d.knows("lr"):
        options["lr"] = d.lr * choose.one_of((1, 0.3, 2))
    if d.knows("momentum") and choose.chance(0.2):
        options["momentum"] = 0.5
    for name in ("amsgrad", "maximize"):
        if name in d.arm.defaults and choose.chance(0.1):
            options[name] = True
    if d.arm.defaults.get("momentum") and "dampening" in d.arm.defaults:
        flag, value = choose.one_of((("nesterov", False), ("nesterov", True), ("dampening", 0.3)))
        if not (d.arm.defaults["nesterov"] or d.arm.defaults["dampening"]):
            options[flag] = value
    return options


def other_options(d: Draft, last: bool = False) -> dict[str, Any]:
    """One or two hyperparameters of a group, far from the ones that the optimizer has.

    Where the lr is a tensor, all groups without an lr of their own share it, so the last group is to have it alone.
    """
    values: dict[str, Any] = {
        "lr": d.lr * d.choices.one_of((0.3, 2)),
        "weight_decay": d.choices.one_of((0.3, 0.0)),
        "momentum": 0.6,
        "betas": d.betas(0.6, 0.8),
        "eps": 0.05,
    }
    known = [name for name in values if d.knows(name)]
    if not known:
        return {}
    names = {d.choices.one_of(known) for _ in range(d.choices.integer(1, 2))}
    if d.tensor_lr:
        names = names - {"lr"} if last else names | {"lr"}
    return {name: values[name] for name in known if name in names}


@feature("convolution", share=0.25)
def convolution(d: Draft) -> None:
    d.model["kind"] = "convolution"


@feature("tied-weights", share=0.2)
def tied_weights(d: Draft) -> None:
    shared = not d.has("convolution") and d.choices.chance(0.4)
    d.model["shared"] = shared
    d.model["tied"] = not shared or d.choices.chance(0.3)
    if shared:
        d.model["layers"] = 2


@feature("zero-size", share=0.12)
def zero_size(d: Draft) -> None:
    d.model["odd"] = True


@feature("rng", share=0.2)
def rng(d: Draft) -> None:
    d.model["dropout"] = d.choices.one_of((0.2, 0.5))


@feature("stale-read")
def stale_read(d: Draft) -> None:
    d.model["late_read"] = True


@feature("sparse-gradient")
def sparse_gradient(d: Draft) -> None:
    d.model["sparse"] = True


@feature("checkpointed-activations")
def checkpointed_activations(d: Draft) -> None:
    d.model["checkpointing"] = d.choices.one_of(("non-reentrant", "reentrant"))
    d.model["layers"] = d.choices.integer(1, 3)


@feature("dtype", share=0.12)
def dtype(d: Draft) -> None:
    d.fields["dtype"] = d.choices.one_of(("bfloat16", "float64", "float16"))
    if not d.has("convolution") and d.choices.chance(0.3):
        d.model["mixed"] = (("*norm*", "float32"),)


@feature("autocast", share=0.08)
def autocast(d: Draft) -> None:
    d.fields["autocast"] = "bfloat16"


@feature("grad-scaler")
def grad_scaler(d: Draft) -> None:
    d.fields["autocast"] = "float16"
    scale = d.choices.one_of((65536.0, 1024.0, 8.0))
    d.fields["scaler"] = ScalerConfig(init_scale=scale, growth_interval=d.choices.integer(1, 3))


@feature("tensor-lr", share=0.1)
def tensor_lr(d: Draft) -> None:
    if d.knows("lr"):
        d.tensor_lr = True
        d.options["lr"] = d.lr


@feature("param-groups", share=0.4)
def param_groups(d: Draft) -> None:
    choose = d.choices
    d.fields["named"] = choose.chance(0.3)
    filled = d.fields["named"] or d.id == "dcp"  # torch can name no empty group, and its DCP API loses all but one
    for _ in range(choose.integer(0, 1 if filled else 2)):
        match = choose.one_of(LEAVING_SOME if filled else ANY)
        d.groups.append(GroupConfig(match=match, options=other_options(d), reverse=choose.chance(0.3)))
    if not filled and choose.chance(0.25):
        empty = GroupConfig(match=(), options={"lr": d.lr} if d.tensor_lr else {})
        d.groups.insert(choose.integer(0, len(d.groups)), empty)
    rest = other_options(d, last=True) if choose.chance(0.3) else {}
    d.groups.append(GroupConfig(options=rest, reverse=choose.chance(0.3)))


@feature("duplicate-params")
def duplicate_params(d: Draft) -> None:
    match = d.choices.one_of(ANY)
    again = GroupConfig(match=match, again=True, options=other_options(d))
    d.groups = d.choices.one_of(
        (
            [GroupConfig(match=match, twice=True), GroupConfig()],
            [GroupConfig(twice=True)],
            [GroupConfig(), again],
        )
    )


@feature("two-optimizers")
def two_optimizers(d: Draft) -> None:
    d.fields["split"] = d.choices.one_of(("model", "parts"))


@feature("frozen", share=0.15)
def frozen(d: Draft) -> None:
    d.fields["frozen"] = d.choices.one_of(FREEZABLE)


@feature("gradient-scale", share=0.15)
def gradient_scale(d: Draft) -> None:
    d.fields["loss_scale"] = d.choices.one_of((2.0, 0.01, 1e-3, 1e3, 0.0))
    d.fields["token_weighted"] = d.choices.chance(0.4)


@feature("gradient-hooks", share=0.12)
def gradient_hooks(d: Draft) -> None:
    kinds = ("scale", "mask") if d.has("two-backwards") else ("scale", "mask", "watch")
    d.fields["hooks"] = tuple(
        HookConfig(kind=d.choices.one_of(kinds), match=d.choices.one_of((("*",), *ANY)))
        for _ in range(d.choices.integer(1, 2))
    )


@feature("step-hooks", share=0.08)
def step_hooks(d: Draft) -> None:
    d.fields["step_hooks"] = True


@feature("accumulation")
def accumulation(d: Draft) -> None:
    first = d.choices.integer(2, 4)  # refused, if it is, in the first iteration, where no other event can be in the way
    more = tuple(d.choices.integer(1, 3) for _ in range(d.choices.integer(0, 2)))
    d.fields["micro_batches"] = (first, *more)


@feature("global-clip")
def global_clip(d: Draft) -> None:
    strict = d.choices.chance(0.3)
    norm = d.choices.one_of((0.05, 0.5, 1e6, float("inf")))
    d.fields["clip"] = ClipConfig(max_norm=norm, error_if_nonfinite=strict)


@feature("compiled-model")
def compiled_model(d: Draft) -> None:
    d.fields["compiled"] = d.choices.one_of(("layers", "layers", "whole"))


@feature("moved")
def moved(d: Draft) -> None:
    d.fields["expect"] = ("moved",)


@feature("gradient-freed")
def gradient_freed(d: Draft) -> None:
    d.fields["expect"] = ("gradients-freed",)


@feature("gradient-peak")
def gradient_peak(d: Draft) -> None:
    """Deep enough that no gradient has a tenth of all bytes; the default sizes but for that."""
    d.model = {"layers": d.choices.integer(12, 14), "bias": d.choices.chance(0.3)}
    d.iterations = 2
    d.fields["expect"] = ("gradient-peak",)


@feature("no-leak")
def no_leak(d: Draft) -> None:
    d.model |= {"layers": 1, "dim": 8, "heads": 1, "kv_heads": 1, "hidden": 8}
    d.fields["expect"] = ("no-leak",)


@feature("weights-only-load")
def weights_only_load(d: Draft) -> None:
    d.fields["expect"] = ("weights-only",)
