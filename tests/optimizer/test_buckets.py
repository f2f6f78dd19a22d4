"""What waits to be updated together: how much of it, for how long, and that nothing stays."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Twins, build, iterate, loss_of, same
from torch import Tensor, nn

from inbackward import Implementation, OptimizerInBackward
from inbackward.training.implementation import ParameterGroups
from inbackward.training.watching import GradientWatch


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parameters each update had."""
    sizes: list[int] = []
    apply = OptimizerInBackward._apply

    def counted(self: OptimizerInBackward, parameters: Any) -> None:
        sizes.append(len(parameters))
        apply(self, parameters)

    monkeypatch.setattr(OptimizerInBackward, "_apply", counted)
    return sizes


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize(("bucket_bytes", "most"), [(None, 2.0), (0, 1.02), (10**9, 14.0)])
def test_bytes_alive_at_once(bucket_bytes: int | None, most: float, max_norm: float | None) -> None:
    model = build(Deep)
    watch = GradientWatch(model.parameters(), copies=False)  # the norms of two passes are no copies
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, bucket_bytes=bucket_bytes)
    peaks = []
    for _ in range(5):
        watch.reset()
        optimizer.backward(model(torch.ones(2, 8)).sum(), max_norm=max_norm)
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(watch.peak / watch.largest)
    assert max(peaks) <= most
    assert len(set(peaks)) == 1
    assert most < 3 or max(peaks) > 13  # control: what waits is seen


def test_several_parameters_are_updated_at_once_and_none_is_left(updates: list[int]) -> None:
    model = build(Deep)
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW)
    model(torch.ones(2, 8)).sum().backward()
    assert sum(updates) == 24
    assert len(updates) < 24
    assert all(p.grad is None for p in model.parameters())
    optimizer.step()
    assert sum(updates) == 24


def test_one_at_a_time(updates: list[int]) -> None:
    model = build(Deep)
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, bucket_bytes=0)
    model(torch.ones(2, 8)).sum().backward()
    assert updates == [1] * 24
    assert optimizer.param_groups


@pytest.mark.parametrize("bucket_bytes", [None, 0, 10**9])
def test_the_numbers_do_not_depend_on_the_bucket(bucket_bytes: int | None) -> None:
    twins = Twins(fused=True)
    twins.optimizer.close()
    twins.optimizer = OptimizerInBackward(
        twins.model.parameters(), torch.optim.AdamW, bucket_bytes=bucket_bytes, fused=True
    )
    twins.iterate(4)


def test_a_bucket_has_parameters_of_several_groups_and_dtypes(updates: list[int]) -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        model.branch.double()
        vectors = [p for p in model.parameters() if p.dim() < 2]
        return [{"params": vectors, "lr": 0.1}, {"params": [p for p in model.parameters() if p.dim() > 1]}]

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Linear(4, 4)
            self.block = nn.Linear(4, 4)

        def forward(self, tokens: Tensor, branch: bool) -> Tensor:
            x = self.block(nn.functional.one_hot(tokens % 4, 4).float())
            return torch.cat((x, self.branch(x.double()).float()[..., :3]), -1)

    Twins(groups=groups, model=Mixed, fused=True).iterate(3)
    assert max(updates) > 1


def test_copies_keep_the_size_of_the_bucket(updates: list[int]) -> None:
    model = build(Deep)
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD, bucket_bytes=10**9)
    for way in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        updates.clear()
        copied_model, copied = way((model, optimizer))
        copied_model(torch.ones(2, 8)).sum().backward()
        assert updates == [24]
        assert copied.param_groups


def test_what_waits_when_a_backward_raises_is_updated(updates: list[int]) -> None:
    model = build(Deep)
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD, bucket_bytes=10**9)

    def fail(grad: Tensor) -> None:
        raise ArithmeticError("no")

    model.layers[3].weight.register_hook(fail)
    with pytest.raises(ArithmeticError):
        model(torch.ones(2, 8)).sum().backward()
    assert len(updates) == 1
    assert 16 <= updates[0] < 24
    assert all(p.grad is None for p in model.parameters())
    assert not optimizer._backwards


def test_a_whole_model_in_one_bucket_would_hide_what_couples_its_parameters() -> None:
    """So an optimizer that is asked about is stepped one parameter at a time."""
    model = build()
    groups = ParameterGroups([{"params": list(model.block.parameters())}])
    optimizer = Implementation.of_optimizer(Coupled).build(model, groups, Coupled, {"lr": 0.1})
    with pytest.raises(RuntimeError, match="Coupled wrote 1 and 4 as the group entry 'largest' for two parameters"):
        loss_of(model, 0).backward()
    assert optimizer.param_groups


class Coupled(torch.optim.SGD):
    """Remembers the longest side of all its parameters' gradients."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            group["largest"] = max(p.dim() ** 2 for p in group["params"])


def test_another_iteration_after_a_parameter_was_frozen_in_the_middle() -> None:
    """A bucket that a frozen parameter no longer fills is emptied at the end of the backward."""
    model = build(Deep)
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD, lr=0.1)
    model.layers[0].requires_grad_(False)
    before = {n: p.clone() for n, p in model.named_parameters()}
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not same(before[n], p.detach())}
    assert moved == {n for n in before if not n.startswith("layers.0.")}


def test_hooks_that_read_a_waiting_gradient_see_it() -> None:
    """Until it is used, it is where a plain loop has it."""
    model = build()
    seen: list[bool] = []
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD, bucket_bytes=10**9)
    model.embedding.weight.register_hook(lambda grad: seen.append(model.scale.grad is not None))
    iterate(model, optimizer, 0)
    assert seen == [True]


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_a_gradient_that_somebody_removes_while_it_waits_is_not_used(max_norm: float | None) -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD, bucket_bytes=10**9, lr=0.1)
    before = model.scale.detach().clone()

    def remove(grad: Tensor) -> None:
        assert model.scale.grad is not None
        model.scale.grad = None

    model.embedding.weight.register_hook(remove)
    optimizer.backward(loss_of(model, 0), max_norm=max_norm)
    optimizer.step()
    assert same(before, model.scale.detach())
