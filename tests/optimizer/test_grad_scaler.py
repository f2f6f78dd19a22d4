"""fp16 under a `GradScaler`: scale, growth, skipped iterations and all numbers are those of the usual loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.optimizer.toys import Twins, build, loss_of, same, snapshot
from torch import nn
from torch.nn.utils import clip_grad_norm_

from inbackward import OptimizerInBackward


def autocast_loss(model: nn.Module, iteration: int) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return loss_of(model, iteration)


def scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 256.0, "growth_interval": 2, **options})


class Scaled:
    """The loop of both, compared at every iteration."""

    def __init__(self, max_norm: float | None = None, **kwargs: Any) -> None:
        self.twins = Twins(**kwargs)
        self.scalers = scaler(), scaler()
        self.max_norm = max_norm

    def iterate(self, iteration: int, micro_batches: int = 1) -> None:
        plain_model, model, optimizer = self.twins.plain_model, self.twins.model, self.twins.optimizer
        for i in range(micro_batches):
            self.scalers[0].scale(autocast_loss(plain_model, iteration + i)).backward()
        self.scalers[0].unscale_(self.twins.plain)
        expected = clip_grad_norm_(plain_model.parameters(), self.max_norm) if self.max_norm else None
        for i in range(micro_batches - 1):
            with optimizer.no_step():
                optimizer.backward(autocast_loss(model, iteration + i), scaler=self.scalers[1])
        norm = optimizer.backward(
            autocast_loss(model, iteration + micro_batches - 1), max_norm=self.max_norm, scaler=self.scalers[1]
        )
        assert str(expected) == str(norm)
        for s, o in zip(self.scalers, (self.twins.plain, optimizer)):
            s.step(o)
            s.update()
            o.zero_grad()
        assert same(*(s.state_dict() for s in self.scalers))
        self.twins.check()


def overflow(model: nn.Module) -> Any:
    """In the last gradient of a backward, when all the others have come."""
    return model.embedding.weight.register_hook(lambda grad: grad * float("inf"))


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
def test_scaled(cls: Any, max_norm: float | None, micro_batches: int) -> None:
    loop = Scaled(max_norm, optimizer_cls=cls, lr=0.1)
    before = snapshot(loop.twins.model, loop.twins.optimizer)
    for iteration in range(2):
        loop.iterate(iteration, micro_batches)
    assert loop.scalers[1].get_scale() == 512
    assert not same(before["model"], loop.twins.model.state_dict())
    before = snapshot(loop.twins.model, loop.twins.optimizer)
    hooks = loop.twins.each(lambda model, _: overflow(model))
    loop.iterate(2, micro_batches)
    assert same(before, snapshot(loop.twins.model, loop.twins.optimizer))
    assert loop.scalers[1].get_scale() == 256
    for hook in hooks:
        hook.remove()
    loop.iterate(3, micro_batches)
    assert not same(before["model"], loop.twins.model.state_dict())


def test_control_a_plain_backward_of_the_scaled_loss_is_other_numbers() -> None:
    twins = Twins(torch.optim.SGD, lr=0.1)
    scaled = scaler()
    scaled.scale(autocast_loss(twins.plain_model, 0)).backward()
    scaled.step(twins.plain)
    scaler().scale(autocast_loss(twins.model, 0)).backward()
    with pytest.raises(AssertionError, match="model differs"):
        twins.check()


def test_a_scaler_that_is_disabled_costs_nothing() -> None:
    twins, off, passes = Twins(), scaler(enabled=False), []
    twins.model.head.bias.register_hook(lambda grad: passes.append(1))
    loss_of(twins.plain_model, 0).backward()
    twins.optimizer.backward(loss_of(twins.model, 0), scaler=off)
    for o in (twins.plain, twins.optimizer):
        off.step(o)
        off.update()
        o.zero_grad()
    twins.check()
    assert len(passes) == 1


def test_each_step_is_one_for_those_who_hook_it() -> None:
    loop, calls = Scaled(), []
    loop.twins.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    loop.iterate(0)
    overflow(loop.twins.plain_model)
    overflow(loop.twins.model)
    loop.iterate(1)
    assert len(calls) == 1


def test_fp16_parameters_are_refused_as_by_the_scaler() -> None:
    model = build().half()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD)
    before = snapshot(model, optimizer)
    with pytest.raises(ValueError, match=r"^Attempting to unscale FP16 gradients: keep the parameters in fp32, "):
        optimizer.backward(loss_of(model, 0), scaler=scaler())
    assert same(before, snapshot(model, optimizer))


def test_sparse_gradients() -> None:
    def train(optimizer: Any, model: nn.Embedding, s: torch.amp.GradScaler, ours: bool) -> Any:
        for token in ([1, 1, 2], [2, 3, 4]):
            loss = model(torch.tensor(token)).square().sum()
            if ours:
                optimizer.backward(loss, scaler=s)
            else:
                s.scale(loss).backward()
            s.step(optimizer)
            s.update()
            optimizer.zero_grad()
        return model.state_dict(), s.state_dict()

    models = [build(lambda: nn.Embedding(7, 3, sparse=True)) for _ in range(2)]
    plain = train(torch.optim.SGD(models[0].parameters(), 0.1), models[0], scaler(), ours=False)
    optimizer = OptimizerInBackward(models[1].parameters(), torch.optim.SGD, lr=0.1)
    assert same(plain, train(optimizer, models[1], scaler(), ours=True))
