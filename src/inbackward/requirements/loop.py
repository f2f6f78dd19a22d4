"""The family *loop*: what a training loop does around the update."""

from __future__ import annotations

from collections.abc import Iterator

from inbackward.requirements.arms import Arm
from inbackward.requirements.catalogue import requirement
from inbackward.requirements.numbers import ONE_LAYER, WARM_UP, step_lr
from inbackward.scenario import (
    AccessGradient,
    ClipConfig,
    Copy,
    ExtraCalls,
    ForeignBackward,
    GroupConfig,
    HookConfig,
    Interrupt,
    ModelConfig,
    NonFinite,
    Observe,
    Recreate,
    Resume,
    ScalerConfig,
    Scenario,
    SecondBackward,
    SkipBranch,
    StepClosure,
)

Arms = tuple[Arm, ...]


@requirement("closure", "loop", "step(closure) is refused or evaluated, never ignored.", may_refuse=True)
def closure(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("at-first", model=ONE_LAYER, events=(StepClosure(at=0),))
        yield arm.run("later", model=ONE_LAYER, events=(StepClosure(at=2),))
        yield arm.run("always", model=ONE_LAYER, iterations=3, events=tuple(StepClosure(at=i) for i in range(3)))


@requirement(
    "extra-step-calls",
    "loop",
    "step() and zero_grad() again after zero_grad(), twice, or before the first backward do nothing.",
)
def extra_step_calls(arms: Arms) -> Iterator[Scenario]:
    combinations = {
        "step": ("step",),
        "zero-grad": ("zero_grad",),
        "step-zero-grad": ("step", "zero_grad"),
        "twice-each": ("step", "step", "zero_grad", "zero_grad"),
    }
    for arm in arms:
        for name, calls in combinations.items():
            every = tuple(ExtraCalls(at=i, calls=calls) for i in range(4))
            yield arm.run(f"after-{name}", model=ONE_LAYER, events=every)
        first = ExtraCalls(at=0, calls=("step", "zero_grad"), when="before")
        yield arm.run("before-the-first-backward", model=ONE_LAYER, events=(first,))
        later = ExtraCalls(at=2, calls=("zero_grad", "step"), when="before")
        yield arm.run("before-a-later-backward", model=ONE_LAYER, events=(later,), schedule=step_lr())


@requirement("observer", "loop", "Reading the optimizer's state, groups and state dict changes nothing.", on_ranks=True)
def observer(arms: Arms) -> Iterator[Scenario]:
    two = GroupConfig(match=("@vector",)), GroupConfig()
    for arm in arms:
        for what in ("state", "groups", "state-dict", "dcp"):
            yield arm.run(f"{what}-at-first", model=ONE_LAYER, events=(Observe(at=0, what=(what,)),))
        every = tuple(Observe(at=i) for i in range(4))
        yield arm.run("all-every-iteration", model=ONE_LAYER, events=every)
        yield arm.run("all-under-warm-up", model=ONE_LAYER, events=every, schedule=WARM_UP, groups=two)


@requirement("rng", "loop", "The global generator is drawn from as in the reference; dropout sees the same masks.")
def rng(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("dropout", model=ModelConfig(dropout=0.2))
        yield arm.run("heavy-dropout", model=ModelConfig(layers=1, dropout=0.6), iterations=6)
        yield arm.run("convolution-dropout", model=ModelConfig(kind="convolution", dropout=0.2))
        yield arm.run("no-dropout", model=ONE_LAYER)


@requirement(
    "accumulation",
    "loop",
    "k micro-batches and one step: nothing changes before the last backward, and the scheduler advances once a window.",
    may_refuse=True,
    on_ranks=True,
)
def accumulation(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for k in (1, 2, 3, 4):
            yield arm.run(f"{k}-micro-batches", model=ONE_LAYER, micro_batches=(k,))
        yield arm.run("shorter-last-window", model=ONE_LAYER, micro_batches=(3, 3, 3, 1))
        yield arm.run("step-schedule", model=ONE_LAYER, micro_batches=(2,), schedule=step_lr())
        branch = ModelConfig(layers=1, branch=True)
        yield arm.run("unused", model=branch, micro_batches=(2,), events=(SkipBranch(at=1),))
        yield arm.run("batch-norm", model=ModelConfig(kind="convolution"), micro_batches=(2,))
        yield arm.run("resumed", model=ONE_LAYER, micro_batches=(2,), events=(Resume(at=2),))


@requirement(
    "global-clip",
    "loop",
    "clip_grad_norm_ over all groups, and the norm that it returns.",
    may_refuse=True,
    on_ranks=True,
)
def global_clip(arms: Arms) -> Iterator[Scenario]:
    two = GroupConfig(match=("@vector",)), GroupConfig()
    for arm in arms:
        for name, norm in {"always": 0.05, "never": 1e6, "infinite": float("inf")}.items():
            yield arm.run(
                f"{name}-acts" if norm < 1e9 else "infinite-norm", model=ONE_LAYER, clip=ClipConfig(max_norm=norm)
            )
        yield arm.run("two-groups", model=ONE_LAYER, groups=two, clip=ClipConfig(max_norm=0.1), schedule=step_lr())
        branch = ModelConfig(layers=1, branch=True)
        yield arm.run("unused", model=branch, clip=ClipConfig(max_norm=0.1), events=(SkipBranch(at=1),))
        for strict in (False, True):
            clip = ClipConfig(max_norm=0.1, error_if_nonfinite=strict)
            name = "non-finite-raises" if strict else "non-finite"
            yield arm.run(name, model=ONE_LAYER, clip=clip, events=(NonFinite(at=2),))
        yield arm.run("accumulated", model=ONE_LAYER, clip=ClipConfig(max_norm=0.1), micro_batches=(2,))


@requirement(
    "grad-scaler",
    "loop",
    "fp16 autocast under GradScaler: scale, growth and skipped iterations; an overflow changes no byte.",
    may_refuse=True,
)
def grad_scaler(arms: Arms) -> Iterator[Scenario]:
    scaled = {"model": ONE_LAYER, "autocast": "float16", "scaler": ScalerConfig()}
    for arm in arms:
        yield arm.run("scaled", **scaled)
        yield arm.run("small-scale", **{**scaled, "scaler": ScalerConfig(init_scale=8.0, growth_interval=1)})
        yield arm.run("overflow", **scaled, events=(NonFinite(at=1, value="inf"),))
        yield arm.run("overflow-at-first", **scaled, events=(NonFinite(at=0, match=("@last",)),))
        yield arm.run("clipped", **scaled, clip=ClipConfig(max_norm=0.1))
        yield arm.run("clipped-overflow", **scaled, clip=ClipConfig(max_norm=0.1), events=(NonFinite(at=2),))


@requirement(
    "two-backwards",
    "loop",
    "Two backwards and no step between: over two graphs as accumulation; over one graph equal, or an exception in the "
    "second with the parameters exactly one reference iteration on.",
    may_refuse=True,
)
def two_backwards(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("two-graphs", model=ONE_LAYER, micro_batches=(1, 2, 1), loss_scale=2.0)
        for at in (0, 2):
            yield arm.run(f"one-graph-at-{at}", model=ONE_LAYER, events=(SecondBackward(at=at),))
        again = (SecondBackward(at=1),)
        yield arm.run("one-graph-tied", model=ModelConfig(layers=1, tied=True), events=again)
        # The graph holds casts of the weights, so autograd notices late, or never, that they have changed.
        yield arm.run("one-graph-autocast", model=ONE_LAYER, autocast="bfloat16", events=again)


@requirement(
    "gradient-hooks",
    "loop",
    "The user's tensor hooks change the gradient, and post-accumulate hooks registered before construction see it.",
)
def gradient_hooks(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for kind in ("scale", "mask", "watch"):
            for name, patterns in {"all": ("*",), "some": ("@even",)}.items():
                yield arm.run(f"{kind}-{name}", model=ONE_LAYER, hooks=(HookConfig(kind=kind, match=patterns),))
        both = HookConfig(kind="mask", match=("@matrix",)), HookConfig(kind="scale"), HookConfig(kind="watch")
        yield arm.run("together", model=ModelConfig(layers=1, tied=True), hooks=both, schedule=step_lr())


@requirement(
    "foreign-backward",
    "loop",
    "A backward that must not train this model: a generator's through its discriminator, or one whose step is skipped.",
    may_refuse=True,
)
def foreign_backward(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for how in ("through", "skipped"):
            yield arm.run(how, model=ONE_LAYER, events=(ForeignBackward(at=1, how=how),))
            every = tuple(ForeignBackward(at=i, how=how) for i in range(4))
            yield arm.run(f"{how}-every-iteration", model=ONE_LAYER, events=every, schedule=step_lr())


@requirement(
    "checkpointed-activations",
    "loop",
    "Activation checkpointing of both kinds, with a weight shared across segments: one update an iteration.",
    may_refuse=True,
    on_ranks=True,
)
def checkpointed_activations(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for kind in ("non-reentrant", "reentrant"):
            yield arm.run(kind, model=ModelConfig(checkpointing=kind))
            yield arm.run(f"{kind}-shared", model=ModelConfig(layers=3, checkpointing=kind, shared=True))
            yield arm.run(f"{kind}-dropout", model=ModelConfig(checkpointing=kind, dropout=0.2, tied=True))


@requirement(
    "compiled-model",
    "loop",
    "torch.compile of every layer, or of the whole model; the reference is compiled too.",
    may_refuse=True,
)
def compiled_model(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("layers", model=ONE_LAYER, compiled="layers")
    yield arms[-1].run("whole", model=ONE_LAYER, compiled="whole")  # a second or two each, so on one arm only


@requirement(
    "re-created",
    "loop",
    "A new instance over the same parameters, the old one closed, deleted, rebound or held: one update an iteration.",
)
def re_created(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for how in ("close", "del", "rebind", "held"):
            yield arm.run(how, model=ONE_LAYER, events=(Recreate(at=2, how=how),))
        yield arm.run("twice", model=ONE_LAYER, events=(Recreate(at=1, how="rebind"), Recreate(at=3, how="rebind")))
        yield arm.run("schedule", model=ONE_LAYER, schedule=step_lr(), events=(Recreate(at=2, how="held"),))


@requirement(
    "deepcopy",
    "loop",
    "A copy of model and optimizer trains as a plain copy does and the original does not move; a copy of the model "
    "alone carries no hook that acts.",
    may_refuse=True,
)
def deepcopy(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for how in ("deepcopy", "pickle", "model"):
            yield arm.run(how, model=ONE_LAYER, events=(Copy(at=2, how=how),))
        yield arm.run("at-first", model=ONE_LAYER, events=(Copy(at=0),))
        yield arm.run(
            "tied-under-a-schedule", model=ModelConfig(layers=1, tied=True), schedule=step_lr(), events=(Copy(at=1),)
        )


@requirement("step-hooks", "loop", "The optimizer's own step hooks, and torch's global ones, fire once a step().")
def step_hooks(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("counted", model=ONE_LAYER, step_hooks=True)
        extra = (ExtraCalls(at=1, calls=("step",)),)
        yield arm.run("extra-step", model=ONE_LAYER, step_hooks=True, events=extra)
        yield arm.run("schedule", model=ONE_LAYER, step_hooks=True, schedule=step_lr())


@requirement(
    "interrupted-backward",
    "loop",
    "An exception in the middle of the backward: no left-over gradient and no double step in the next iteration.",
)
def interrupted_backward(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for name, patterns in {"late": ("@first",), "early": ("@last",), "between": ("*key*", "@even")}.items():
            yield arm.run(name, model=ModelConfig(), events=(Interrupt(at=1, match=patterns),))
        yield arm.run("at-first", model=ONE_LAYER, events=(Interrupt(at=0),), schedule=step_lr())


@requirement(
    "two-optimizers",
    "loop",
    "Two optimizers over disjoint parameters, of one model and of two.",
    may_refuse=True,
)
def two_optimizers(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for split in ("model", "parts"):
            yield arm.run(split, split=split)
            yield arm.run(f"{split}-convolution", model=ModelConfig(kind="convolution"), split=split)


@requirement(
    "gradient-access",
    "loop",
    "torch.autograd.grad changes nothing, backward(inputs=...) updates those inputs, and a .grad that is read before "
    "the step is gone or the reference's.",
    may_refuse=True,
)
def gradient_access(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for how in ("autograd-grad", "inputs", "read"):
            yield arm.run(how, model=ONE_LAYER, events=(AccessGradient(at=1, how=how, match=("@even",)),))
        every = tuple(AccessGradient(at=i, how="autograd-grad", match=("*",)) for i in range(3))
        yield arm.run("autograd-grad-always", model=ModelConfig(tied=True), events=every, schedule=step_lr())


@requirement(
    "stale-read",
    "loop",
    "A parameter read after its own step, inside the same backward, still has the value that the reference sees.",
)
def stale_read(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        late = ModelConfig(layers=1, late_read=True)
        yield arm.run("head-read-last", model=late, expect=("moved",))
        yield arm.run("step-schedule", model=late, schedule=step_lr(), expect=("moved",))
