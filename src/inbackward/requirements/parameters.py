"""The family *parameters*: which parameters are updated, and which are left alone."""

from __future__ import annotations

from collections.abc import Iterator

from inbackward.requirements.arms import Arm
from inbackward.requirements.catalogue import planned, requirement
from inbackward.requirements.numbers import ONE_LAYER, step_lr
from inbackward.scenario import GroupConfig, ModelConfig, Scenario, SkipBranch

Arms = tuple[Arm, ...]


@requirement(
    "tied-weights",
    "parameters",
    "A weight used twice, or an embedding tied to the head, is updated once an iteration.",
    on_ranks=True,
)
def tied_weights(arms: Arms) -> Iterator[Scenario]:
    tied = ModelConfig(layers=1, tied=True)
    for arm in arms:
        yield arm.run("embedding-and-head", model=tied)
        yield arm.run("two-layers-with-biases", model=ModelConfig(tied=True, bias=True))
        yield arm.run("convolution", model=ModelConfig(kind="convolution", tied=True))
        two = GroupConfig(match=("embedding*",), options={"lr": arm.lr / 3}), GroupConfig()
        yield arm.run("in-a-group-of-its-own", model=tied, groups=two)
        yield arm.run("step-schedule", model=tied, schedule=step_lr())
        yield arm.run("frozen", model=tied, frozen=("embedding*",))


@requirement(
    "frozen",
    "parameters",
    "A parameter frozen before construction stays as it is and has no state, though it is in the groups.",
    on_ranks=True,
)
def frozen(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for name, patterns in {
            "first": ("@first",),
            "last": ("@last",),
            "vectors": ("@vector",),
            "every-other": ("@even",),
            "all-but-vectors": ("@matrix",),
        }.items():
            yield arm.run(name, model=ONE_LAYER, frozen=patterns)
        groups = GroupConfig(match=("@vector",), options={"lr": arm.lr / 3}), GroupConfig()
        yield arm.run("a-whole-group", model=ONE_LAYER, frozen=("@vector",), groups=groups)
        yield arm.run("step-schedule", model=ONE_LAYER, frozen=("@even",), schedule=step_lr())


@requirement(
    "unused",
    "parameters",
    "A parameter without a gradient in an iteration is not decayed, counted or otherwise touched.",
    on_ranks=True,
)
def unused(arms: Arms) -> Iterator[Scenario]:
    branch = ModelConfig(layers=1, branch=True)
    for arm in arms:
        for name, iterations in {
            "never": (),
            "at-first": (0,),
            "once": (2,),
            "every-other": (0, 2),
            "always": (0, 1, 2, 3),
        }.items():
            yield arm.run(name, model=branch, events=tuple(SkipBranch(at=i) for i in iterations))
        skip = SkipBranch(at=1), SkipBranch(at=3)
        yield arm.run("step-schedule", model=branch, schedule=step_lr(), events=skip)
        yield arm.run("convolution", model=ModelConfig(kind="convolution", branch=True), events=skip)


planned(
    "parameters",
    """
    freeze-later     |   | Frozen between iterations: constant, state kept; unfreezing goes on from it.
    unfreeze-later   |   | Frozen at construction, trained later: steps from its first gradient on.
    add-param-group  |   | A group added in mid-training.
    duplicate-params | R | A parameter twice in a group or in two: as the plain optimizer.
    cast-or-move     |   | .double() or .to(dtype) after construction: goes on as the plain optimizer does.
    sparse-gradient  | R | Sparse embeddings, with the optimizers that take them.
    zero-size        |   | Parameters with no elements, scalars, one-element tensors.
    """,
)
