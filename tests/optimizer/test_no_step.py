"""Backwards that must not step: micro-batches before the last, and those that are not meant to train the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Twins, build, loss_of, same, snapshot
from torch import nn

from inbackward import OptimizerInBackward


def accumulate(twins: Twins, micro_batches: int, first: int = 0) -> None:
    """One iteration; in the branch's turn some parameters have no gradient in the last micro-batch."""
    before = snapshot(twins.model, twins.optimizer)
    for i in range(first, first + micro_batches):
        (loss_of(twins.plain_model, i) / micro_batches).backward()
        if i < first + micro_batches - 1:
            with twins.optimizer.no_step():
                (loss_of(twins.model, i) / micro_batches).backward()
            assert same(before, snapshot(twins.model, twins.optimizer))
            assert same(*([p.grad for p in m.parameters()] for m in (twins.plain_model, twins.model)))
        else:
            (loss_of(twins.model, i) / micro_batches).backward()
    twins.each(lambda _, optimizer: (optimizer.step(), optimizer.zero_grad()))
    assert not same(before["model"], twins.model.state_dict())
    twins.check()


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4])
def test_accumulation(cls: Any, micro_batches: int) -> None:
    twins = Twins(cls, lr=0.1)
    for iteration in range(3):
        accumulate(twins, micro_batches, first=iteration * micro_batches)


def test_control_without_no_step_the_second_micro_batch_is_refused() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD)
    loss_of(model, 0).backward()
    with pytest.raises(RuntimeError, match="second gradient"):
        loss_of(model, 1).backward()
    assert optimizer.param_groups


@pytest.mark.parametrize("zero", [True, False])
def test_a_foreign_backward(zero: bool) -> None:
    """Its gradients are the plain loop's: they go with zero_grad(), and are added to without it."""
    twins = Twins()
    twins.iterate(1)
    for _ in range(2):
        loss_of(twins.plain_model, 7).backward()
        with twins.optimizer.no_step():
            loss_of(twins.model, 7).backward()
        twins.check()
        if zero:
            twins.each(lambda _, optimizer: optimizer.zero_grad())
        twins.iterate(1)


def test_contexts_within_each_other_and_an_exception() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD)
    with optimizer.no_step(), optimizer.no_step():
        pass

    def fails() -> None:
        with optimizer.no_step():
            with optimizer.no_step():
                pass
            loss_of(model, 0).backward()
            assert model.scale.grad is not None
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fails()
    optimizer.zero_grad()
    loss_of(model, 0).backward()
    assert model.scale.grad is None


def test_a_copy_made_within_is_not_within() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD)
    with optimizer.no_step():
        twin_model, twin = copy.deepcopy((model, optimizer))
        loss_of(twin_model, 0).backward()
        loss_of(model, 0).backward()
    assert twin_model.scale.grad is None
    assert model.scale.grad is not None
    assert twin.param_groups


class Counter(torch.optim.SGD):
    """Keeps a counter in its groups."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1


def test_counters_in_groups_advance_once_an_iteration() -> None:
    twins = Twins(Counter, groups=lambda model: [{"params": model.block.parameters()}, {"params": [model.scale]}])
    for iteration in range(3):
        accumulate(twins, 3, first=3 * iteration)
        twins.model.zero_grad()
        twins.plain_model.zero_grad()
    assert [group["k"] for group in twins.optimizer.param_groups] == [3, 3]


def test_a_generator_that_trains_through_its_discriminator() -> None:
    """The usual loop of a GAN, twice: two models, two optimizers, each with its own zero_grad()."""

    def train(make: Any, foreign: Any) -> list[dict[str, Any]]:
        generator, discriminator = build(lambda: nn.Linear(3, 4)), build(lambda: nn.Linear(4, 1))
        g, d = make(generator.parameters()), make(discriminator.parameters())
        for i in range(3):
            z = torch.full((2, 3), 0.5 + i)
            d.zero_grad()
            discriminator(generator(z).detach()).square().sum().backward()
            d.step()
            g.zero_grad()
            with foreign(d):
                (1 - discriminator(generator(z))).square().sum().backward()
            g.step()
        return [generator.state_dict(), discriminator.state_dict()]

    plain = train(lambda params: torch.optim.AdamW(params, lr=0.1), lambda d: torch.enable_grad())
    ours = train(
        lambda params: OptimizerInBackward(params, torch.optim.AdamW, lr=0.1),
        lambda discriminator: discriminator.no_step(),
    )
    assert same(plain, ours)
