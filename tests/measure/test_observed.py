"""A simulation says what a real run shows: the same storages, at the same instants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.measure import models
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from inbackward.measure import Memory, MemoryCurve, MemoryWatch, Setup, observe_memory, simulate_memory
from inbackward.measure.storages import LiveStorages
from inbackward.training.watching import GradientWatch

SMALL = {"dtype": torch.float32, "sequence_length": 16}


def agree(simulated: Memory, observed: Memory) -> bool:
    """Within 1 % for gradients, at their peak and at the total's; and for all there is."""
    return all(
        abs(figure(getattr(simulated, loop)) - figure(getattr(observed, loop)))
        <= 0.01 * figure(getattr(observed, loop))
        for loop in ("plain", "in_backward")
        for figure in FIGURES
    )


FIGURES: tuple[Callable[[MemoryCurve], int], ...] = (
    lambda curve: curve.gradient_peak,
    lambda curve: curve.peak.gradient,
    lambda curve: curve.peak.total,
    lambda curve: curve.points[0].total,
    lambda curve: curve.points[-1].total,
)


@pytest.fixture
def one_rank() -> Iterator[Callable[[], None]]:
    """Call it where ranks are to be real; before, there is no process group."""

    def start() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("build", "more"),
    [
        (models.llama, {}),
        (models.gpt2, {"micro_batches": 2, "activation_checkpointing": False, "optimizer_cls": torch.optim.SGD}),
        (models.odd, {"optimizer_cls": torch.optim.RMSprop}),
    ],
    ids=["llama", "gpt2", "odd"],
)
def test_they_agree(build: Callable[[], nn.Module], more: dict[str, Any]) -> None:
    setup = Setup(**SMALL, **more)
    observed = observe_memory(build, setup)
    assert agree(simulate_memory(build, setup), observed)
    assert observed.plain.gradient_peak > 0
    assert observed.plain.points[0].total == observed.plain.points[-1].total  # nothing stays


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_they_agree_on_ranks(strategy: str, one_rank: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(**SMALL, strategy=strategy, world_size=1)
    simulated = simulate_memory(models.llama, setup)
    one_rank()
    assert agree(simulated, observe_memory(models.llama, setup))
    other = replace(setup, dtype=torch.float16)
    assert not agree(simulated, observe_memory(models.llama, other)), "another run is seen"
    with monkeypatch.context() as patch:
        patch.setattr(LiveStorages, "_gone", lambda self, key: None)
        assert not agree(simulated, observe_memory(models.llama, setup)), "a tracker that misses what is freed is seen"
    if strategy == "fsdp2":
        monkeypatch.setattr(LiveStorages, "__enter__", TorchDispatchMode.__enter__)
        monkeypatch.setattr(LiveStorages, "__exit__", TorchDispatchMode.__exit__)
        assert not agree(simulated, observe_memory(models.llama, setup)), "and one that misses resize_"


def test_gradients_by_another_way_of_watching() -> None:
    """`GradientWatch` follows gradients alone, by polling: the peak is that of the curve."""
    model = models.llama()
    peaks: list[int] = []
    with MemoryWatch() as watch:
        watch.follow(model)
        other = GradientWatch(model.parameters(), copies=False)
        optimizer = torch.optim.SGD(model.parameters())

        def iterate() -> None:
            other.reset()
            model(torch.zeros(1, 8, dtype=torch.int64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            peaks.append(other.peak)

        curve = watch.record(iterate)
    assert curve.gradient_peak == peaks[0] == sum(p.nbytes for p in model.parameters())


def test_a_sparse_gradient_counts_by_what_it_holds() -> None:
    embedding = nn.Embedding(1000, 4, sparse=True)
    with MemoryWatch() as watch:
        watch.follow(embedding)
        curve = watch.record(lambda: embedding(torch.zeros(3, dtype=torch.int64)).sum().backward())
    assert curve.gradient_peak == 3 * 8 + 3 * 4 * 4  # indices and values


def test_where_time_stands() -> None:
    labels = [p.label for p in observe_memory(models.llama, Setup(**SMALL)).plain.points]
    once = [label for i, label in enumerate(labels) if i == 0 or label != labels[i - 1]]
    forward = ["embedding", *(f"layers.{i}" for i in range(3)), "norm", "head"]
    assert once == ["forward", *(f"forward {n}" for n in forward), *(f"backward {n}" for n in forward[::-1]), "step"]
