"""The family *loop*: what a training loop does around the update."""

from __future__ import annotations

from collections.abc import Iterator

from inbackward.requirements.arms import Arm
from inbackward.requirements.catalogue import planned, requirement
from inbackward.requirements.numbers import ONE_LAYER, WARM_UP, step_lr
from inbackward.scenario import ExtraCalls, GroupConfig, ModelConfig, Observe, Scenario, StepClosure

Arms = tuple[Arm, ...]


@requirement("closure", "loop", "step(closure) is refused or evaluated, never ignored.", may_refuse=True)
def closure(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("at-first", model=ONE_LAYER, events=(StepClosure(at=0),))
        yield arm.run("later", model=ONE_LAYER, events=(StepClosure(at=2),))
        yield arm.run("always", model=ONE_LAYER, events=tuple(StepClosure(at=i) for i in range(4)))


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


planned(
    "loop",
    """
    accumulation          | R ranks | k micro-batches and one step; nothing changes before the last backward.
    global-clip           | R ranks | clip_grad_norm_ over all groups, and the norm it returns.
    grad-scaler           | R       | fp16 GradScaler: scale, growth and skipped iterations.
    two-backwards         | R       | Two backwards and no step between, over two graphs or one.
    gradient-hooks        |         | The user's tensor hooks and earlier post-accumulate hooks see the gradient.
    gradient-access       | R       | Code that reads or edits .grad between backward and step.
    foreign-backward      | R       | A backward that must not train this model.
    stale-read            |         | A parameter read after its own step inside the same backward.
    interrupted-backward  |         | An exception in the middle of the backward leaves nothing behind.
    checkpointed-activations | R ranks | Activation checkpointing, a weight shared across segments.
    compiled-model        | R       | torch.compile per layer and whole.
    two-optimizers        | R       | Two optimizers over disjoint parameters.
    re-created            |         | A new instance over the same parameters: fresh state, one update an iteration.
    deepcopy              | R       | A copy of model and optimizer trains as a plain copy does.
    step-hooks            |         | The optimizer's own step hooks fire once a step().
    """,
)
