"""A second gradient for a parameter since the last `step()` is refused, before anything of it is used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Twins, build, iterate, loss_of, same, snapshot
from torch import Tensor, nn

from inbackward import OptimizerInBackward

SECOND = (
    r"has been updated since the last step\(\) and gets a second gradient: call optimizer\.step\(\).*no_step\(\):`$"
)


def make(model: nn.Module, **kwargs: Any) -> OptimizerInBackward:
    return OptimizerInBackward(model.parameters(), torch.optim.AdamW, **kwargs)


@pytest.mark.parametrize("bucket_bytes", [None, 0])
def test_another_graph(bucket_bytes: int | None) -> None:
    """Its first gradients are those of a branch that the first backward left out; they are not used either."""
    model = build()
    optimizer = make(model, bucket_bytes=bucket_bytes)
    loss_of(model, 1).backward()
    once = snapshot(model, optimizer)
    loss = model.branch(torch.ones(2, 4)).sum() + model.block(torch.ones(2, 4)).sum()
    with pytest.raises(RuntimeError, match=r"^parameter \d of group 0, of shape .*" + SECOND):
        loss.backward()
    assert same(once, snapshot(model, optimizer))


def autocast(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_of(model, 0)


def frozen_head(model: nn.Module) -> Tensor:
    """But for its bias."""
    model.head.weight.requires_grad_(False)
    return loss_of(model, 0)


@pytest.mark.parametrize("loss", [autocast, frozen_head])
def test_one_graph_where_autograd_notices_late_that_a_weight_has_changed(loss: Callable[[nn.Module], Tensor]) -> None:
    model = build()
    optimizer = make(model)
    graph = loss(model)
    graph.backward(retain_graph=True)
    once = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match=SECOND):
        graph.backward()
    assert same(once, snapshot(model, optimizer))
    optimizer.zero_grad()
    optimizer.step()
    assert same(once, snapshot(model, optimizer))


def test_the_name_is_told_where_there_is_one() -> None:
    model = build()
    OptimizerInBackward(model.block.named_parameters(), torch.optim.SGD)  # type: ignore[arg-type]
    optimizer = OptimizerInBackward([("a weight", model.scale)], torch.optim.SGD)  # type: ignore[list-item]
    model.scale.sum().backward()
    with pytest.raises(RuntimeError, match=r"^parameter 0 of group 0, a weight of shape \(\), has been updated"):
        model.scale.sum().backward()
    assert optimizer.param_groups


def test_a_gradient_set_by_hand_after_the_update() -> None:
    model = build()
    optimizer = make(model)
    loss_of(model, 0).backward()
    once = snapshot(model, optimizer)
    model.scale.grad = torch.ones(())
    with pytest.raises(RuntimeError, match=r"^parameter 0 of group 0, of shape \(\), " + SECOND):
        optimizer.step()
    assert same(once, snapshot(model, optimizer))
    optimizer.zero_grad()
    optimizer.step()
    iterate(model, optimizer, 2)


@pytest.mark.parametrize("way", [OptimizerInBackward.no_step, lambda optimizer: nullcontext()])
def test_zero_grad_does_not_end_the_iteration(way: Callable[[OptimizerInBackward], Any]) -> None:
    """Else a generator's backward would train its discriminator, whose loop begins with zero_grad(), in silence."""
    model = build()
    optimizer = make(model)
    loss_of(model, 0).backward()
    optimizer.zero_grad()
    with way(optimizer), pytest.raises(RuntimeError, match=SECOND):
        loss_of(model, 0).backward()


def test_backwards_of_separate_parameters_make_one_iteration() -> None:
    twins = Twins()
    losses = (lambda m: m.block(torch.ones(2, 4)).square().sum(), lambda m: m.branch(torch.ones(2, 4)).square().sum())
    for _ in range(2):
        for loss in losses:
            twins.each(lambda model, _: loss(model).backward())  # noqa: B023
        twins.each(lambda _, optimizer: (optimizer.step(), optimizer.zero_grad()))
        twins.check()


def test_after_a_checkpoint_is_loaded_a_new_iteration_begins() -> None:
    model = build()
    optimizer = make(model)
    iterate(model, optimizer, 0)
    good = snapshot(model, optimizer)
    state_dict = optimizer.state_dict()
    loss_of(model, 1).backward()
    model.load_state_dict(good["model"])
    optimizer.load_state_dict(state_dict)
    loss_of(model, 1).backward()


def fail(grad: Tensor) -> None:
    raise ArithmeticError("no")


@pytest.mark.parametrize("bucket_bytes", [None, 0])
def test_after_an_interrupted_backward_zero_grad_begins_anew(bucket_bytes: int | None) -> None:
    """What was final when it was interrupted is used, so that no gradient is left; the rest has no gradient."""
    model = build()
    optimizer = make(model, bucket_bytes=bucket_bytes)
    handle = model.block.weight.register_hook(fail)
    with pytest.raises(ArithmeticError):
        loss_of(model, 0).backward()
    handle.remove()
    updated = [p for p in model.parameters() if optimizer.state[p]]
    assert 0 < len(updated) < 8
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match=SECOND):
        loss_of(model, 0).backward()
    optimizer.zero_grad()
    iterate(model, optimizer, 0)
    assert {optimizer.state[p]["step"].item() for p in updated} == {2}


class FailsOnce(torch.optim.SGD):
    """Updates its first parameter and raises, the first time that it is given two."""

    fails = True

    def step(self, closure: Any = None) -> None:
        if self.fails and len(self.param_groups[0]["params"]) > 1:
            self.fails = False
            self.param_groups[0]["params"][0].data.add_(1)
            raise ArithmeticError("no")
        super().step()


def test_what_an_optimizer_that_raises_may_have_updated_is_not_updated_again() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.block.parameters(), FailsOnce)
    with pytest.raises(ArithmeticError):
        loss_of(model, 0).backward()
    after = snapshot(model, optimizer)
    assert model.block.bias.grad is not None
    with pytest.raises(RuntimeError, match=SECOND):
        optimizer.step()
    assert same(after, snapshot(model, optimizer))
    optimizer.zero_grad()
    iterate(model, optimizer, 0)


def test_a_second_gradient_from_a_backward_within() -> None:
    """The outer backward has updated the weight when an inner one brings another gradient for it."""
    weight = nn.Parameter(torch.ones(2))

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            with torch.enable_grad():
                (weight * 2).sum().backward()
            return grad

    optimizer = OptimizerInBackward([weight], torch.optim.SGD, bucket_bytes=0)
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=SECOND):
        (Inner.apply(x).sum() + weight.sum() * 1.0).backward()
    assert torch.equal(weight, torch.full((2,), 1 - 1e-3))
    assert optimizer.param_groups
