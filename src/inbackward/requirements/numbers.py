"""The family *numbers*: the update itself, its hyperparameters, its dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inbackward.requirements.arms import Arm, is_default
from inbackward.requirements.catalogue import requirement
from inbackward.requirements.optimizer_table import TABLE
from inbackward.scenario import (
    DataConfig,
    Edit,
    GroupConfig,
    ModelConfig,
    NonFinite,
    Resume,
    Scenario,
    ScheduleConfig,
    betas_like,
)

Arms = tuple[Arm, ...]

MODELS = {
    "llama": ModelConfig(),
    "one-layer": ModelConfig(layers=1),
    "three-layers": ModelConfig(layers=3, dim=16, hidden=24),
    "all-biases": ModelConfig(bias=True),
    "one-kv-head": ModelConfig(layers=1, kv_heads=1),
    "convolution": ModelConfig(kind="convolution"),
    "convolution-biases": ModelConfig(kind="convolution", bias=True),
}
ONE_LAYER = MODELS["one-layer"]
TINY = ModelConfig(layers=1, dim=8, heads=1, kv_heads=1, hidden=8)


def step_lr(gamma: float = 0.5, step_size: int = 1) -> ScheduleConfig:
    return ScheduleConfig(cls="StepLR", kwargs={"step_size": step_size, "gamma": gamma})


def table(*rows: tuple[float, ...]) -> ScheduleConfig:
    """A learning rate given as factors: one row for all groups, or one a group."""
    return ScheduleConfig(cls="LambdaLR", factors=rows)


WARM_UP = table((0.0, 0.5, 1.0))


@requirement("plain", "numbers", "Iterations of the loop give the reference's numbers.", on_ranks=True)
def plain(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for name, model in MODELS.items():
            yield arm.run(name, model=model, expect=("moved",))
        yield arm.run("long", model=ONE_LAYER, iterations=20, expect=("moved",))
        yield arm.run("transposed", model=replace(ONE_LAYER, transposed=True), expect=("moved",))
        large = ModelConfig(layers=1, dim=128, hidden=512, vocabulary=1024)
        yield arm.run("large-matrices", model=large, iterations=2, expect=("moved",))
        yield arm.run("large-batch", model=ONE_LAYER, data=DataConfig(batch=8, length=32), expect=("moved",))
        yield arm.run("synthetic-data", model=ONE_LAYER, data=DataConfig(source="synthetic"), expect=("moved",))


@requirement("optimizers", "numbers", "Every torch.optim class that needs no closure, with each flag it has.")
def optimizers(arms: Arms) -> Iterator[Scenario]:
    if is_default(arms):
        for entry in TABLE:
            yield from entry.scenarios()
    else:  # an implementation with reference optimizers of its own is held to those, as it gives them
        for arm in arms:
            for name in ("llama", "convolution"):
                yield arm.run(name, model=MODELS[name], iterations=6)
    for arm in arms[:1]:  # tables of corrections and narrow counters come to an end
        yield arm.run("longer", model=TINY, iterations=66)


@requirement(
    "param-groups",
    "numbers",
    "Several groups, each with its own hyperparameters; empty, unordered and named ones.",
    on_ranks=True,
)
def param_groups(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        rest = GroupConfig()
        flags = {key: not arm.defaults[key] for key in ("maximize", "amsgrad", "nesterov") if arm.has(key)}
        for key, value in {**_other_values(arm), **flags}.items():
            label = key.replace("_", "-")
            groups = GroupConfig(match=("@vector",), options={key: value}), rest
            yield arm.run(f"own-{label}", model=ONE_LAYER, groups=groups)
            last = GroupConfig(match=("@vector",)), GroupConfig(options={key: value})
            yield arm.run(f"own-{label}-in-the-last", model=ONE_LAYER, groups=last)
        own_lr = GroupConfig(match=("@matrix",), options={"lr": arm.lr * 0.3})
        yield arm.run("empty-group", model=ONE_LAYER, groups=(own_lr, GroupConfig(match=()), rest))
        yield arm.run("out-of-order", groups=(GroupConfig(match=("@even",), reverse=True), own_lr, rest))
        yield arm.run("reversed", model=ONE_LAYER, groups=(GroupConfig(reverse=True),))
        yield arm.run("one-group-as-dict", model=ONE_LAYER, groups=(GroupConfig(options={"lr": arm.lr * 0.3}),))
        yield arm.run("named", model=ONE_LAYER, named=True)
        yield arm.run("named-groups", model=ONE_LAYER, named=True, groups=(own_lr, rest))


@requirement(
    "lr-schedule",
    "numbers",
    "The learning rate of every group, as any scheduler or hand sets it, is the one the update uses.",
    on_ranks=True,
)
def lr_schedule(arms: Arms) -> Iterator[Scenario]:
    def of(cls: str, **kwargs: object) -> ScheduleConfig:
        return ScheduleConfig(cls=cls, kwargs=kwargs)

    for arm in arms:
        if not arm.has("lr"):
            continue
        momentum = bool(arm.defaults.get("momentum")) or arm.has("betas")
        schedules = {
            "warm-up-from-0": WARM_UP,
            "starts-below-1": table((0.3, 0.6, 1.0)),
            "step": step_lr(),
            "step-every-2": step_lr(0.1, 2),
            "cosine": of("CosineAnnealingLR", T_max=3, eta_min=arm.lr / 50),
            "warm-restarts": of("CosineAnnealingWarmRestarts", T_0=2),
            "linear": of("LinearLR", start_factor=0.2, total_iters=3),
            "exponential": of("ExponentialLR", gamma=0.7),
            "one-cycle": of("OneCycleLR", max_lr=arm.lr * 3, total_steps=8, cycle_momentum=momentum),
            "cyclic": of("CyclicLR", base_lr=arm.lr / 5, max_lr=arm.lr * 2, step_size_up=2, cycle_momentum=momentum),
            "plateau": of("ReduceLROnPlateau", factor=0.5, patience=0, threshold=0.5),
            "sequential": ScheduleConfig(
                cls="SequentialLR", kwargs={"milestones": (2,)}, parts=(of("LinearLR", start_factor=0.1), step_lr())
            ),
            "chained": ScheduleConfig(cls="ChainedScheduler", parts=(of("ExponentialLR", gamma=0.9), step_lr(0.5, 2))),
        }
        for name, schedule in schedules.items():
            yield arm.run(name, model=ONE_LAYER, schedule=schedule)
        two = GroupConfig(match=("@vector",), options={"lr": arm.lr * 2}), GroupConfig()
        yield arm.run("per-group", model=ONE_LAYER, groups=two, schedule=table((0.0, 1.0, 0.1), (1.0, 0.5)))
        yield arm.run("two-groups-step", model=ONE_LAYER, groups=two, schedule=step_lr())
        yield arm.run("by-hand", model=ONE_LAYER, events=(Edit(at=2, value=arm.lr / 10),))
        yield arm.run("one-group-by-hand", model=ONE_LAYER, groups=two, events=(Edit(at=1, group=1, value=arm.lr / 7),))
        still = Edit(at=1, value=0.0), Edit(at=2, value=arm.lr)
        yield arm.run("zero-for-an-iteration", model=ONE_LAYER, events=still)


@requirement("weight-decay-schedule", "numbers", "Weight decay, betas and momentum edited by hand are used at once.")
def weight_decay_schedule(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        two = GroupConfig(match=("@vector",)), GroupConfig()
        for key, value in _other_values(arm).items():
            if key == "lr":
                continue
            label = key.replace("_", "-")
            yield arm.run(label, model=ONE_LAYER, events=(Edit(at=1, name=key, value=value),))
            back = Edit(at=1, name=key, value=value), Edit(at=3, name=key, value=arm.defaults[key])
            yield arm.run(f"{label}-and-back", model=ONE_LAYER, events=back)
            edit = Edit(at=2, name=key, value=value, group=1)
            yield arm.run(f"{label}-of-one-group", model=ONE_LAYER, groups=two, events=(edit,))


@requirement("tensor-lr", "numbers", "A learning rate given as a tensor and changed in place is used at once.")
def tensor_lr(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        if "lr" not in arm.config.kwargs:
            arm = arm.given(lr=arm.lr)
        tensor = _with_tensor_lr(arm)
        yield tensor.run("constant", model=ONE_LAYER)
        yield tensor.run("in-place", model=ONE_LAYER, events=(Edit(at=1, value=arm.lr / 10, in_place=True),))
        twice = tuple(Edit(at=i, value=arm.lr / (i + 1), in_place=True) for i in range(4))
        yield tensor.run("in-place-every-iteration", events=twice)
        yield tensor.run("replaced-by-hand", model=ONE_LAYER, events=(Edit(at=2, value=arm.lr / 10),))
        yield tensor.run("schedule", model=ONE_LAYER, schedule=step_lr())
        resumed = Resume(at=2), Edit(at=3, value=arm.lr / 10, in_place=True)
        yield tensor.run("resumed-in-place", model=ONE_LAYER, events=resumed)
        two = GroupConfig(match=("@vector",), options={"lr": arm.lr / 5}), GroupConfig()
        edit = Edit(at=1, group=1, value=arm.lr / 10, in_place=True)
        yield tensor.run("one-group-in-place", model=ONE_LAYER, groups=two, events=(edit,))


@requirement(
    "gradient-scale",
    "numbers",
    "A loss multiplied by k shows in the state as k and k squared.",
    on_ranks=True,
)
def gradient_scale(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for scale in (1e-3, 1e3, 0.0):
            yield arm.run(f"times-{scale:g}", model=ONE_LAYER, loss_scale=scale)
        yield arm.run("times-0.01-convolution", model=MODELS["convolution"], loss_scale=0.01)
        yield arm.run("times-tokens", model=ONE_LAYER, token_weighted=True)
        yield arm.run("tokens-over-100", model=ONE_LAYER, token_weighted=True, loss_scale=0.01)


@requirement("dtype", "numbers", "Parameters in bf16, fp16 and fp64, and mixed in one model.")
def dtype(arms: Arms) -> Iterator[Scenario]:
    mixed = ModelConfig(layers=1, mixed=(("*norm*", "float32"),))
    for arm in arms:
        for name in ("bfloat16", "float16", "float64"):
            yield arm.run(name, model=ONE_LAYER, dtype=name, expect=("moved",))
            yield arm.run(f"{name}-step", model=ONE_LAYER, dtype=name, schedule=step_lr())
        yield arm.run("bfloat16-convolution", model=MODELS["convolution"], dtype="bfloat16")
        yield arm.run("float64-convolution", model=MODELS["convolution"], dtype="float64")
        yield arm.run("bfloat16-with-float32-norms", model=mixed, dtype="bfloat16")
        yield arm.run("float16-with-float32-norms", model=mixed, dtype="float16")


@requirement("autocast", "numbers", "bf16 autocast over fp32 parameters.")
def autocast(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for name in ("one-layer", "all-biases", "convolution"):
            yield arm.run(name, model=MODELS[name], autocast="bfloat16")
        tied = ModelConfig(layers=1, tied=True)
        yield arm.run("tied-step", model=tied, autocast="bfloat16", schedule=step_lr())
        yield arm.run("backward-inside", model=ONE_LAYER, autocast="bfloat16", autocast_backward=True)


@requirement(
    "non-finite",
    "numbers",
    "NaN and infinite gradients in one or all parameters do what the plain optimizer makes of them.",
)
def non_finite(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for value in ("nan", "inf", "-inf"):
            yield arm.run(f"{value}-in-one", model=ONE_LAYER, events=(NonFinite(at=1, value=value, match=("@last",)),))
        yield arm.run("nan-in-all", model=ONE_LAYER, events=(NonFinite(at=2, match=("*",)),))
        yield arm.run("inf-in-every-other", model=ONE_LAYER, events=(NonFinite(at=1, value="inf", match=("@even",)),))


def _other_values(arm: Arm) -> dict[str, object]:
    """For each hyperparameter of the arm that is commonly set by group, a value far from the one it has."""
    others: dict[str, object] = {
        "lr": 0.3 * float(arm.defaults.get("lr", 1.0)),
        "weight_decay": 0.3,
        "momentum": 0.5,
        "betas": betas_like(arm.defaults.get("betas"), 0.6, 0.8),
        "eps": 0.05,
    }
    return {key: value for key, value in others.items() if arm.has(key) and value is not None}


def _with_tensor_lr(arm: Arm) -> Arm:
    return replace(arm, config=replace(arm.config, tensor_lr=True))
