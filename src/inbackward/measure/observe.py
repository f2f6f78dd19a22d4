"""The memory of a training iteration that really runs here: what a simulation says, shown."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from inbackward.measure.loop import PLAIN, curve_of, layer_bytes, prepare
from inbackward.measure.memory import Memory
from inbackward.measure.setup import Setup
from inbackward.training import Implementation, as_implementation


def observe_memory(
    build: Callable[[], nn.Module],
    setup: Setup | None = None,
    implementation: Implementation | None = None,
    device: str = "cpu",
) -> Memory:
    """What this process holds over an iteration, in the usual loop and with the step inside the backward.

    As ``simulate_memory``, but of real tensors, that are trained: the model must fit. On a GPU each point also has what
    CUDA's allocator has handed out, and the curve its peak. Under a strategy each rank calls this, and is given its own
    memory; the default process group must be theirs, with ``setup.world_size`` ranks.

    Args:
        build: makes the model, with the weights it starts from. It is called with ``device`` as the default device.
        setup: the training run. It must be small enough: the default is 2048 tokens in bf16.
        implementation: what steps inside the backward; this package's own class where left out.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        TypeError, ValueError: ``build`` makes no module, or one with nothing to train.
        Exception: whatever the model, or the implementation, raises.
    """
    from inbackward.optimizer import OptimizerInBackward

    setup = setup or Setup()
    curves = []
    for each in (PLAIN, implementation or as_implementation(OptimizerInBackward)):
        model = prepare(build, setup, device)
        setup.shard(model, device)
        curves.append(curve_of(model, setup, each))
        sizes = layer_bytes(model)
    plain, in_backward = curves
    return Memory(plain, in_backward, sizes)
