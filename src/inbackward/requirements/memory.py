"""The family *memory*: what stepping inside the backward is for."""

from __future__ import annotations

from collections.abc import Iterator

from inbackward.requirements.arms import Arm
from inbackward.requirements.catalogue import requirement
from inbackward.requirements.numbers import MODELS, ONE_LAYER, TINY, step_lr
from inbackward.scenario import GroupConfig, ModelConfig, Scenario, SkipBranch

Arms = tuple[Arm, ...]


@requirement("gradient-freed", "memory", "When backward() returns no gradient exists.", on_ranks=True)
def gradient_freed(arms: Arms) -> Iterator[Scenario]:
    freed = ("gradients-freed",)
    two = GroupConfig(match=("@vector",)), GroupConfig()
    for arm in arms:
        for name in ("llama", "all-biases", "convolution"):
            yield arm.run(name, model=MODELS[name], expect=freed)
        yield arm.run("tied", model=ModelConfig(layers=1, tied=True), expect=freed)
        yield arm.run("frozen", model=ONE_LAYER, frozen=("@even",), expect=freed)
        yield arm.run("two-groups", model=ONE_LAYER, groups=two, schedule=step_lr(), expect=freed)
        branch = ModelConfig(layers=1, branch=True)
        yield arm.run("unused", model=branch, events=(SkipBranch(at=1),), expect=freed)


@requirement(
    "gradient-peak",
    "memory",
    "Never more bytes of gradients alive at once than twice the largest gradient has, stashed ones included.",
)
def gradient_peak(arms: Arms) -> Iterator[Scenario]:
    deep = ModelConfig(layers=12)  # no gradient has a tenth of all bytes
    for arm in arms:
        yield arm.run("deep", model=deep, iterations=2, expect=("gradient-peak",))
        two = GroupConfig(match=("@vector",)), GroupConfig()
        yield arm.run("deep-two-groups", model=deep, iterations=2, groups=two, expect=("gradient-peak",))


@requirement(
    "no-leak",
    "memory",
    "Hooks, tensors and objects stay constant over iterations, and nothing outlives close() or the last reference.",
)
def no_leak(arms: Arms) -> Iterator[Scenario]:
    for arm in arms:
        yield arm.run("tiny", model=TINY, expect=("no-leak",))
