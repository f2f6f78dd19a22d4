"""The family *parameters*: which parameters are updated, and which are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inbackward.requirements.arms import Arm, is_default, make_arm
from inbackward.requirements.catalogue import requirement
from inbackward.requirements.numbers import ONE_LAYER, step_lr
from inbackward.scenario import (
    AddGroup,
    Cast,
    Edit,
    Event,
    Freeze,
    GroupConfig,
    ModelConfig,
    Resume,
    Scenario,
    SkipBranch,
    Unfreeze,
)

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
            yield arm.run(name, model=branch, iterations=4, events=tuple(SkipBranch(at=i) for i in iterations))
        skip = SkipBranch(at=1), SkipBranch(at=3)
        yield arm.run("step-schedule", model=branch, schedule=step_lr(), events=skip)
        yield arm.run("convolution", model=ModelConfig(kind="convolution", branch=True), events=skip)
        twice = tuple(SkipBranch(at=i) for i in (0, 1, 3, 4))  # before its first gradient nothing is zeroed for it
        yield arm.run("zeros", model=branch, events=twice, zero_grad="zeros")


@requirement(
    "freeze-later",
    "parameters",
    "Frozen between iterations, a parameter and its state are constant; unfreezing goes on from that state.",
)
def freeze_later(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for name, patterns in {"every-other": ("@even",), "vectors": ("@vector",), "first": ("@first",)}.items():
            yield arm.run(name, model=ONE_LAYER, events=(Freeze(at=2, match=patterns),))
            back = Freeze(at=1, match=patterns), Unfreeze(at=3, match=patterns)
            yield arm.run(f"{name}-and-back", model=ONE_LAYER, iterations=5, events=back)
        biases = Freeze(at=1, match=("*.bias",)), Unfreeze(at=3, match=("*.bias",))  # what belongs to a module parts
        yield arm.run("biases-and-back", model=replace(ONE_LAYER, bias=True), iterations=5, events=biases)
        again = Freeze(at=1, match=("@even",)), Unfreeze(at=2, match=("@even",)), Freeze(at=3, match=("@even",))
        yield arm.run("twice-under-a-schedule", model=ONE_LAYER, schedule=step_lr(), events=again)


@requirement(
    "unfreeze-later",
    "parameters",
    "Frozen at construction and trained later, a parameter steps from its first gradient on.",
)
def unfreeze_later(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for name, patterns in {"every-other": ("@even",), "vectors": ("@vector",), "matrices": ("@matrix",)}.items():
            events: tuple[Event, ...] = (Unfreeze(at=2, match=patterns),)
            yield arm.run(name, model=ONE_LAYER, frozen=patterns, events=events)
        events = Unfreeze(at=1, match=("@even",)), Freeze(at=3, match=("@even",))
        yield arm.run("and-frozen-again", model=ONE_LAYER, frozen=("@even",), events=events)
        events = (Unfreeze(at=2, match=("@even",)),)
        yield arm.run("under-a-schedule", model=ONE_LAYER, frozen=("@even",), schedule=step_lr(), events=events)


@requirement("add-param-group", "parameters", "A group added in mid-training is trained, with its own hyperparameters.")
def add_param_group(arms: Arms) -> Iterator[Scenario]:
    matrices = (GroupConfig(match=("@matrix",)),)
    for arm in arms:
        rest = GroupConfig(options={"lr": arm.lr * 2})
        for at in (0, 2):
            events = Unfreeze(at=at, match=("@vector",)), AddGroup(at=at, group=rest)
            yield arm.run(f"unfrozen-at-{at}", model=ONE_LAYER, groups=matrices, frozen=("@vector",), events=events)
        collected = (AddGroup(at=2, group=rest),)
        yield arm.run("with-gradients-collected", model=ONE_LAYER, groups=matrices, events=collected)
        yield arm.run("some-frozen", model=ONE_LAYER, groups=matrices, frozen=("norm*",), events=collected)
        yield arm.run("under-a-schedule", model=ONE_LAYER, groups=matrices, schedule=step_lr(), events=collected)
        edited = *collected, Edit(at=3, group=0, value=arm.lr / 5)
        yield arm.run("then-edited", model=ONE_LAYER, groups=matrices, events=edited)


@requirement(
    "duplicate-params",
    "parameters",
    "A parameter twice in a group or in two groups: as the plain optimizer, a warning or a ValueError.",
    may_refuse=True,
)
def duplicate_params(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("in-one-group", model=ONE_LAYER, groups=(GroupConfig(twice=True),))
        some = GroupConfig(match=("@first",), twice=True), GroupConfig()
        yield arm.run("one-of-them", model=ONE_LAYER, groups=some)
        yield arm.run("in-two-groups", model=ONE_LAYER, groups=(GroupConfig(), GroupConfig(again=True)))


@requirement(
    "cast-or-move",
    "parameters",
    "model.to(dtype) after construction, where parameters keep their identity: goes on as the plain optimizer does.",
)
def cast_or_move(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        for at in (0, 2):
            for name in ("float64", "bfloat16"):
                yield arm.run(f"{name}-at-{at}", model=ONE_LAYER, events=(Cast(at=at, dtype=name),))
        events = Cast(at=0), Cast(at=0, dtype="float32")
        yield arm.run("there-and-back", model=ONE_LAYER, events=events, schedule=step_lr())


@requirement(
    "sparse-gradient",
    "parameters",
    "Sparse embeddings, compared coalesced; where the plain optimizer raises, so must it.",
    may_refuse=True,
)
def sparse_gradient(arms: Arms) -> Iterator[Scenario]:
    sparse = ModelConfig(layers=1, sparse=True)
    taking = list(arms)
    if is_default(arms):
        import torch  # late, so that the catalogue can be listed without it

        adagrad = make_arm("adagrad", torch.optim.Adagrad, {"lr": 0.05})
        taking += [adagrad, make_arm("plain-sgd", torch.optim.SGD, {"lr": 0.1})]
    for arm in taking:
        yield arm.run("embedding", model=sparse)
        yield arm.run("accumulated", model=sparse, micro_batches=(2,))
        yield arm.run("step-schedule", model=sparse, schedule=step_lr())
    if is_default(arms):
        import torch

        adam = make_arm("sparse-adam", torch.optim.SparseAdam, {"lr": 0.01})
        only = {"groups": (GroupConfig(match=("embedding*",)),), "frozen": ("blocks*", "norm*", "head*")}
        yield adam.run("embedding", model=sparse, **only)
        yield adam.run("accumulated", model=sparse, micro_batches=(2,), **only)


@requirement("zero-size", "parameters", "Parameters with no elements, scalars and one-element tensors.")
def zero_size(arms: Arms) -> Iterator[Scenario]:
    odd = ModelConfig(layers=1, odd=True)
    for arm in arms:
        yield arm.run("plain", model=odd)
        groups = GroupConfig(match=("odd*",), options={"lr": arm.lr / 3}), GroupConfig()
        yield arm.run("in-a-group", model=odd, groups=groups, schedule=step_lr())
        yield arm.run("frozen", model=odd, frozen=("odd.empty*",))
        yield arm.run("resumed", model=odd, events=(Resume(at=2, route="file"),))
