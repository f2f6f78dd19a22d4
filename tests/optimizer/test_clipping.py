"""Clipping: the numbers of the usual loop, with the gradients freed where two passes can be made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Toy, Twins, build, loss_of, same, snapshot
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.checkpoint import checkpoint

from inbackward import OptimizerInBackward


def iterate(twins: Twins, iteration: int, plain: Callable[[Any], Any], **options: Any) -> tuple[Any, Any]:
    """One iteration, the plain loop's gradients changed by `plain`; returns both norms."""
    loss_of(twins.plain_model, iteration).backward()
    expected = plain(list(twins.plain_model.parameters()))
    norm = twins.optimizer.backward(loss_of(twins.model, iteration), **options)
    twins.each(lambda _, optimizer: (optimizer.step(), optimizer.zero_grad()))
    twins.check()
    return expected, norm


@pytest.mark.parametrize("bucket_bytes", [None, 0])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.05, 1e6, float("inf")])
def test_the_total_norm(max_norm: float, norm_type: float, bucket_bytes: int | None) -> None:
    twins = Twins(torch.optim.SGD, model=partial(Toy, empty=1), lr=0.5, momentum=0.9)  # no elements, no maximum
    twins.optimizer._limit = twins.optimizer._limit if bucket_bytes is None else bucket_bytes
    for iteration in range(4):
        expected, norm = iterate(
            twins,
            iteration,
            lambda parameters: clip_grad_norm_(parameters, max_norm, norm_type),
            max_norm=max_norm,
            norm_type=norm_type,
        )
        assert same(expected, norm)


@pytest.mark.parametrize("kernel", [{}, {"foreach": True}, {"fused": True}])
def test_the_total_norm_by_every_kernel(kernel: dict[str, bool]) -> None:
    twins = Twins(**kernel)
    for iteration in range(4):
        assert same(*iterate(twins, iteration, lambda ps: clip_grad_norm_(ps, 0.05), max_norm=0.05))


class Mixed(Toy):
    """Norms are stacked by dtype, in torch's own order of these."""

    def __init__(self) -> None:
        super().__init__()
        self.block.bfloat16()
        self.branch.double()

    def forward(self, tokens: Tensor, branch: bool) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.scale * torch.tanh(self.block(x.bfloat16())).float() + self.empty.sum()
        return self.head(x + self.branch(x.double()).float() if branch else x)


def test_mixed_dtypes() -> None:
    twins = Twins(model=Mixed)
    for iteration in range(4):
        assert same(*iterate(twins, iteration, lambda ps: clip_grad_norm_(ps, 0.05), max_norm=0.05))


def test_groups_in_another_order_and_a_norm_that_leaves_frozen_parameters_out() -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        model.branch.requires_grad_(False)
        rest = [p for p in model.parameters() if p is not model.scale and p is not model.block.weight]
        return [{"params": [model.block.weight], "lr": 0.3}, {"params": rest}, {"params": [model.scale]}]

    twins = Twins(groups=groups)

    def plain(_: Any) -> Tensor:
        return clip_grad_norm_([p for group in twins.plain.param_groups for p in group["params"]], 0.05)

    for iteration in range(4):
        assert same(*iterate(twins, iteration, plain, max_norm=0.05))


def test_no_more_gradients_exist_at_once_than_without_clipping() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, bucket_bytes=0)
    alive: list[int] = []
    for p in model.parameters():
        p.register_hook(lambda grad: alive.append(sum(q.grad is not None for q in model.parameters())))
    optimizer.backward(loss_of(model, 0), max_norm=0.05)
    assert alive == [0] * 16
    assert all(p.grad is None for p in model.parameters())


def test_a_loss_that_reaches_nothing() -> None:
    model = build()
    optimizer = OptimizerInBackward([model.scale], torch.optim.AdamW)
    assert same(optimizer.backward(model.block.bias.sum(), max_norm=1.0), torch.tensor(0.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite(value: float) -> None:
    def spoiled() -> Twins:
        twins = Twins(torch.optim.SGD, groups=lambda model: [model.head.bias, model.scale], lr=0.1)
        twins.each(lambda model, _: model.scale.register_hook(lambda grad: grad * value))
        return twins

    twins = spoiled()
    loss_of(twins.plain_model, 0).backward()
    expected = clip_grad_norm_([twins.plain_model.head.bias, twins.plain_model.scale], 0.05)
    norm = twins.optimizer.backward(loss_of(twins.model, 0), max_norm=0.05)
    twins.each(lambda _, optimizer: optimizer.step())
    for a, b in ((expected, norm), *zip(twins.plain_model.parameters(), twins.model.parameters())):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert not twins.model.scale.isfinite()

    twins = spoiled()
    before = snapshot(twins.model, twins.optimizer)
    message = r"^the total norm of order 2.0 of the gradients is non-finite, .* or set error_if_nonfinite=False$"
    with pytest.raises(RuntimeError, match=message):
        twins.optimizer.backward(loss_of(twins.model, 0), max_norm=0.05, error_if_nonfinite=True)
    assert same(before, snapshot(twins.model, twins.optimizer))
    loss_of(twins.plain_model, 0).backward()
    with pytest.raises(RuntimeError, match="is non-finite"):
        clip_grad_norm_(twins.plain_model.parameters(), 0.05, error_if_nonfinite=True)


@pytest.mark.parametrize("micro_batches", [2, 3])
def test_accumulated_gradients_are_part_of_the_norm(micro_batches: int) -> None:
    """Those of the branch too, which takes no part in some last micro-batches."""
    twins = Twins()
    for first in range(0, 3 * micro_batches, micro_batches):
        for i in range(first, first + micro_batches - 1):
            loss_of(twins.plain_model, i).backward()
            with twins.optimizer.no_step():
                assert twins.optimizer.backward(loss_of(twins.model, i), max_norm=0.05) is None
        expected, norm = iterate(twins, first + micro_batches - 1, lambda ps: clip_grad_norm_(ps, 0.05), max_norm=0.05)
        assert same(expected, norm)


ONE_PASS = {
    "value": ({"clip_value": 0.001}, lambda ps: clip_grad_value_(ps, 0.001)),
    "per parameter": (
        {"max_norm_per_parameter": 0.01},
        lambda ps: [clip_grad_norm_(p, 0.01) for p in ps if p.grad is not None] and None,
    ),
    "nothing": ({}, lambda ps: None),
}


@pytest.mark.parametrize("accumulated", [True, False])
@pytest.mark.parametrize("way", ONE_PASS)
def test_one_pass(way: str, accumulated: bool) -> None:
    twins, (options, plain) = Twins(torch.optim.SGD, lr=0.5), ONE_PASS[way]
    passes: list[int] = []
    twins.model.head.bias.register_hook(lambda grad: passes.append(1))
    for iteration in range(0, 8, 2):
        if accumulated:
            loss_of(twins.plain_model, iteration).backward()
            with twins.optimizer.no_step():
                twins.optimizer.backward(loss_of(twins.model, iteration), **options)
        assert same(*iterate(twins, iteration + 1, plain, **options))
    assert len(passes) == 4 * (1 + accumulated)


def test_control_per_parameter_is_not_the_total_norm() -> None:
    twins = Twins(torch.optim.SGD, lr=0.5)
    with pytest.raises(AssertionError, match="model differs"):
        iterate(twins, 0, lambda ps: clip_grad_norm_(ps, 0.05), max_norm_per_parameter=0.05)


def test_two_ways_at_once() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD)
    message = r"^backward\(\) was given max_norm=1.0 and clip_value=0.0: choose one way to clip$"
    with pytest.raises(ValueError, match=message):
        optimizer.backward(loss_of(model, 0), max_norm=1.0, clip_value=0.0)


# What else is in the graph


def test_leaves_of_others_collect_the_gradients_of_one_backward() -> None:
    twins = Twins(groups=lambda model: [p for p in model.parameters() if p is not model.scale])
    for model in (twins.plain_model, twins.model):
        model.scale.grad = torch.ones(())

    def plain(parameters: list[nn.Parameter]) -> Tensor:
        return clip_grad_norm_([p for p in parameters if p is not twins.plain_model.scale], 0.05)

    for iteration in range(3):
        assert same(*iterate(twins, iteration, plain, max_norm=0.05))
        assert same(twins.plain_model.scale.grad, twins.model.scale.grad)
        assert twins.model.scale.grad.item() != 1


def test_another_optimizer_in_the_same_backward_steps_once() -> None:
    models = build(), build()
    pairs = [
        (make([p for p in model.parameters() if p is not model.scale], lr=0.01), make([model.scale], lr=0.1))
        for model, make in zip(
            models, (torch.optim.AdamW, partial(OptimizerInBackward, optimizer_cls=torch.optim.AdamW))
        )
    ]
    for iteration in range(3):
        loss_of(models[0], iteration).backward()
        expected = clip_grad_norm_([p for p in models[0].parameters() if p is not models[0].scale], 0.05)
        assert same(expected, pairs[1][0].backward(loss_of(models[1], iteration), max_norm=0.05))
        for optimizer in (*pairs[0], *pairs[1]):
            optimizer.step()
            optimizer.zero_grad()
        assert same(models[0].state_dict(), models[1].state_dict())


def test_a_foreign_backward_is_not_clipped() -> None:
    twins = Twins()
    loss_of(twins.plain_model, 1).backward()
    with twins.optimizer.no_step():
        assert twins.optimizer.backward(loss_of(twins.model, 1), max_norm=0.01) is None
    assert same(*([p.grad for p in m.parameters()] for m in (twins.plain_model, twins.model)))


@pytest.mark.parametrize("zero", [True, False])
def test_after_a_foreign_backward_memory_is_saved_again_from_zero_grad_on(zero: bool) -> None:
    twins = Twins()
    with twins.optimizer.no_step():
        loss_of(twins.model, 1).backward()
    if zero:
        twins.optimizer.zero_grad()
    twins.optimizer.backward(loss_of(twins.model, 2), max_norm=0.01)
    assert all((p.grad is None) == zero for p in twins.model.parameters())


def test_arguments_of_backward_are_passed_on() -> None:
    twins = Twins(torch.optim.SGD, lr=0.5)
    loss_of(twins.plain_model, 0).backward(torch.tensor(3.0), inputs=[twins.plain_model.scale])
    clip_grad_norm_(twins.plain_model.parameters(), 0.05)
    graph = loss_of(twins.model, 0)
    twins.optimizer.backward(
        graph, max_norm=0.05, gradient=torch.tensor(3.0), inputs=[twins.model.scale], retain_graph=True
    )
    twins.each(lambda _, optimizer: optimizer.step())
    twins.check()
    torch.autograd.grad(graph, twins.model.head.bias)


def test_a_tensor_hook_of_the_user_s_is_called_in_each_pass_and_its_change_is_made_once() -> None:
    twins, calls = Twins(torch.optim.SGD, lr=0.1), []
    for model in (twins.plain_model, twins.model):
        model.block.weight.register_hook(lambda grad, of=model: (calls.append(of), grad * 3)[1])
    iterate(twins, 0, lambda parameters: clip_grad_norm_(parameters, 0.1), max_norm=0.1)
    assert (calls.count(twins.plain_model), calls.count(twins.model)) == (1, 2)


def test_a_checkpointed_segment_is_recomputed_for_each_pass() -> None:
    twins, count = Twins(torch.optim.SGD, lr=0.5), []

    def segment(model: nn.Module, x: Tensor) -> Tensor:
        count.append(1)
        return torch.nn.functional.dropout(model.block(x), 0.5)

    def loss(model: nn.Module) -> Tensor:
        torch.manual_seed(3)
        return checkpoint(partial(segment, model), torch.ones(2, 4), use_reentrant=False).square().sum()

    with torch.random.fork_rng():
        loss(twins.plain_model).backward()
        expected = clip_grad_norm_(twins.plain_model.parameters(), 0.05)
        count.clear()
        norm = twins.optimizer.backward(loss(twins.model), max_norm=0.05)
    twins.each(lambda _, optimizer: (optimizer.step(), optimizer.zero_grad()))
    twins.check()
    assert same(expected, norm)
    assert len(count) == 3


class Once(torch.autograd.Function):
    """Its graph allows one backward only, as a compiled one with donated buffers does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch._C._autograd._get_current_graph_task_keep_graph():
            raise RuntimeError("this was compiled with donated buffers, which requires retain_graph=False")
        return grad


def reentrant(model: nn.Module) -> Tensor:
    return checkpoint(model.block, torch.ones(2, 4, requires_grad=True), use_reentrant=True).square().sum()


def donated(model: nn.Module) -> Tensor:
    return Once.apply(loss_of(model, 0))


@pytest.mark.parametrize(
    ("loss", "reason"),
    [(reentrant, "it has reentrant activation checkpointing"), (donated, "this was compiled with .*")],
)
def test_where_one_pass_only_can_be_made_all_gradients_are_kept_and_it_is_said_once(loss: Any, reason: str) -> None:
    twins = Twins()
    message = rf"^this graph allows no second backward, .* the numbers are the same, no memory is saved \({reason}\)$"
    for iteration in range(3):
        loss(twins.plain_model).backward()
        expected = clip_grad_norm_(twins.plain_model.parameters(), 0.05)
        if iteration:
            norm = twins.optimizer.backward(loss(twins.model), max_norm=0.05)
        else:
            with pytest.warns(UserWarning, match=message) as caught:
                norm = twins.optimizer.backward(loss(twins.model), max_norm=0.05)
            assert [warning.filename for warning in caught] == [__file__]
        assert same(*([p.grad for p in m.parameters()] for m in (twins.plain_model, twins.model)))
        twins.each(lambda _, optimizer: (optimizer.step(), optimizer.zero_grad()))
        twins.check()
        assert same(expected, norm)


def test_a_backward_that_raises_in_the_first_pass_changes_nothing() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD)
    before = snapshot(model, optimizer)

    def fail(grad: Tensor) -> None:
        raise RuntimeError("my own")

    handle = model.block.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match=r"^my own$"):
        optimizer.backward(loss_of(model, 0), max_norm=0.05)
    handle.remove()
    assert same(before, snapshot(model, optimizer))
    optimizer.zero_grad()
    passes: list[int] = []
    model.head.bias.register_hook(lambda grad: passes.append(1))
    optimizer.backward(loss_of(model, 0), max_norm=0.05)
    assert len(passes) == 2  # it is not taken for a graph that allows one pass only


class Spends(torch.autograd.Function):
    """Overwrites in its backward what it saved for it, which only a first backward does not notice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = torch.tensor(2.0)
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0] * ctx.factor
        ctx.factor.mul_(0.5)
        return gradient


def test_a_second_pass_that_brings_something_else_is_refused_before_anything_is_updated() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD, lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"in the first of two backward passes and of .* in the second"):
        optimizer.backward(Spends.apply(model(torch.ones(5, 3)).square().mean()), max_norm=0.1)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_second_backward_before_step_is_refused_here_too() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD)
    optimizer.backward(loss_of(model, 0), max_norm=0.05)
    once = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match="second gradient"):
        optimizer.backward(loss_of(model, 1), max_norm=0.05)
    assert same(once, snapshot(model, optimizer))


def test_a_parameter_twice_in_a_group_counts_twice() -> None:
    def groups(model: nn.Module) -> list[nn.Parameter]:
        return [*model.block.parameters(), model.block.weight]

    with pytest.warns(UserWarning, match="duplicate"):
        twins = Twins(torch.optim.SGD, groups=groups, lr=0.5)

    def plain(_: Any) -> Tensor:
        return clip_grad_norm_(groups(twins.plain_model), 0.05)

    assert same(*iterate(twins, 0, plain, max_norm=0.05))


def test_closed_and_copied() -> None:
    twins = Twins()
    iterate(twins, 0, lambda ps: clip_grad_norm_(ps, 0.05), max_norm=0.05)
    twins.model, twins.optimizer = copy.deepcopy((twins.model, twins.optimizer))
    iterate(twins, 1, lambda ps: clip_grad_norm_(ps, 0.05), max_norm=0.05)
    twins.optimizer.close()
    before = twins.model.state_dict()
    twins.optimizer.backward(loss_of(twins.model, 0), max_norm=0.05)
    assert same(before, twins.model.state_dict())
    assert twins.model.scale.grad is not None
