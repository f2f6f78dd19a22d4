"""Hooks on the parameters, and the lives of optimizers: closed, deleted, replaced, copied, pickled."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Twins, build, iterate, loss_of, same, snapshot
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from inbackward import OptimizerInBackward


def make(model: nn.Module, **kwargs: Any) -> OptimizerInBackward:
    return OptimizerInBackward(model.parameters(), torch.optim.AdamW, **kwargs)


def hooks(model: nn.Module) -> int:
    return sum(len(p._post_accumulate_grad_hooks or {}) for p in model.parameters())


def trains(model: nn.Module) -> bool:
    """Whether a backward alone updates the model; it frees the gradients then and else leaves them."""
    before = copy.deepcopy(model.state_dict())
    loss_of(model, 0).backward()
    moved = not same(before, model.state_dict())
    assert {p.grad is None for p in model.parameters()} == {moved}
    model.zero_grad()
    return moved


def steps(optimizer: Any) -> set[float]:
    return {state["step"].item() for state in optimizer.state.values()}


def test_one_hook_a_parameter() -> None:
    model = build()
    make(model)
    assert hooks(model) == len(list(model.parameters())) == 8


def test_gradients_are_freed_one_by_one() -> None:
    model = build()
    optimizer = make(model, bucket_bytes=0)
    alive: list[int] = []
    for p in model.parameters():
        p.register_hook(lambda grad: alive.append(sum(q.grad is not None for q in model.parameters())))
    loss_of(model, 0).backward()
    assert alive == [0] * 8
    assert steps(optimizer) == {1}


def test_closed() -> None:
    model = build()
    optimizer = make(model)
    assert trains(model)
    optimizer.close()
    optimizer.close()
    assert optimizer.closed
    assert hooks(model) == 0
    assert not trains(model)
    before = snapshot(model, optimizer)
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert hooks(model) == 0
    assert same(before["model"], model.state_dict())
    optimizer.zero_grad()
    assert not any(p.grad is not None for p in model.parameters())


def test_closed_in_the_middle_of_a_backward() -> None:
    model = build()
    optimizer = make(model)
    model.block.weight.register_hook(lambda grad: optimizer.close())
    loss_of(model, 0).backward()
    assert model.head.bias.grad is None
    assert model.block.weight.grad is not None
    assert model.embedding.weight.grad is not None


def test_closed_by_a_hook_on_the_same_parameter() -> None:
    model = build()
    closing: list[OptimizerInBackward] = []
    model.block.weight.register_post_accumulate_grad_hook(lambda p: closing[0].close())
    closing.append(make(model))
    loss_of(model, 0).backward()
    assert model.block.weight.grad is not None


def test_deleted() -> None:
    model = build()
    optimizer = make(model)
    assert trains(model)
    dead = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert dead() is None
    assert hooks(model) == 0
    assert not trains(model)


def test_deleted_before_it_ever_stepped_warns_once() -> None:
    model = build()

    def set_up() -> None:
        make(model)

    set_up()
    with pytest.warns(
        UserWarning, match=r"^an OptimizerInBackward was deleted .* keep a reference to it, as in"
    ) as caught:
        loss_of(model, 0).backward()
    assert len(caught) == 1
    assert hooks(model) == 0
    assert all(p.grad is not None for p in model.parameters())


def test_kept_alive_by_a_scheduler() -> None:
    model = build()
    scheduler = torch.optim.lr_scheduler.StepLR(make(model), 1)
    gc.collect()
    assert trains(model)
    with pytest.warns(UserWarning, match="takes over"):
        optimizer = make(model)
    assert trains(model)
    assert steps(optimizer) == steps(scheduler.optimizer) == {1}


def test_a_new_one_takes_over_from_a_live_one_with_a_warning() -> None:
    model = build()
    old = make(model)
    iterate(model, old, 0)
    with pytest.warns(
        UserWarning, match=r"^a new OptimizerInBackward takes over .* call close\(\) on the old one before$"
    ) as caught:
        new = make(model)
    assert [warning.filename for warning in caught] == [__file__]
    assert old.closed
    assert hooks(model) == 8
    iterate(model, new, 2)
    assert steps(old) == steps(new) == {1}


def test_a_warning_that_is_an_error_changes_nothing() -> None:
    model = build()
    old = make(model)
    with pytest.raises(UserWarning, match="takes over"):  # pytest makes an error of it, by this project's configuration
        make(model)
    assert not old.closed
    assert hooks(model) == 8
    assert trains(model)
    assert steps(old) == {1}


@pytest.mark.parametrize("end", ["close", "del", "del before it stepped"])
def test_a_new_one_after_the_end_of_the_old_is_silent_and_fresh(end: str) -> None:
    twins = Twins()
    if end != "del before it stepped":
        iterate(twins.model, twins.optimizer, 0)
        twins.model.load_state_dict(twins.plain_model.state_dict())
    if end == "close":
        twins.optimizer.close()
    del twins.optimizer
    twins.optimizer = make(twins.model)
    assert hooks(twins.model) == 8
    twins.iterate(2)


def test_a_partial_overlap_is_refused_before_anything_changes() -> None:
    model = build()
    old = make(model)
    fresh = nn.Parameter(torch.ones(2))

    class Eager(torch.optim.SGD):
        """Makes its state when a group is added."""

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            super().add_param_group(param_group)
            self.state.update({p: {"momentum_buffer": torch.zeros_like(p)} for p in self.param_groups[-1]["params"]})

    message = (
        r"^3 of the 4 parameters are already stepped by another OptimizerInBackward: call its close\(\) first, or "
    )
    with pytest.raises(ValueError, match=message):
        OptimizerInBackward([fresh, *model.block.parameters(), model.scale], torch.optim.SGD)
    assert not fresh._post_accumulate_grad_hooks
    assert hooks(model) == 8
    assert not old.closed
    other = OptimizerInBackward([fresh], Eager)
    with pytest.raises(ValueError, match=r"^2 of the 3 parameters"):
        other.add_param_group({"params": model.block.parameters()})
    assert other.param_groups[0]["params"] == [fresh]
    assert len(other.param_groups) == 1
    assert len(other.state) == 1
    assert trains(model)
    assert steps(old) == {1}


def test_what_a_dead_one_owned_can_be_added() -> None:
    model = build()
    make(model)
    optimizer = OptimizerInBackward(model.block.parameters(), torch.optim.AdamW)
    optimizer.add_param_group({"params": [p for p in model.parameters() if p not in {*model.block.parameters()}]})
    assert hooks(model) == 8
    assert trains(model)
    assert steps(optimizer) == {1}


def test_no_leak() -> None:
    model = build()

    def live(iterations: int) -> tuple[int, int]:
        optimizer = make(model)
        for iteration in range(iterations):
            iterate(model, optimizer, iteration)
        count = hooks(model), len(optimizer._hook._handles)
        optimizer.close()
        gone = weakref.ref(optimizer), weakref.ref(optimizer._hook)
        del optimizer
        assert [ref() for ref in gone] == [None, None]  # without gc.collect(): there are no cycles
        return count

    assert live(3) == live(30) == (8, 8)
    gc.collect()
    registry = len(weakref.finalize._registry)  # type: ignore[attr-defined]
    live(1)
    assert len(weakref.finalize._registry) <= registry  # type: ignore[attr-defined]  # others' may die meanwhile


def test_parameters_are_not_kept_alive_by_hooks() -> None:
    model = build()
    optimizer = make(model)
    weight = weakref.ref(model.block.weight)
    hook = optimizer._hook
    del model, optimizer
    gc.collect()
    assert weight() is None
    assert hook.owner is None


# Copies


def both_train_alone(model: nn.Module, optimizer: Any, copied_model: nn.Module, copied: Any) -> None:
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    original = snapshot(model, optimizer)
    for iteration in range(3):
        iterate(copied_model, copied, iteration)
    assert same(original, snapshot(model, optimizer))
    for iteration in range(3):
        iterate(model, optimizer, iteration)
        iterate(twin, twin_optimizer, iteration)
    assert same(snapshot(copied_model, copied), snapshot(model, optimizer))
    assert same(snapshot(twin, twin_optimizer), snapshot(model, optimizer))
    assert hooks(model) == hooks(copied_model) == hooks(twin) == 8


@pytest.mark.parametrize("optimizer_first", [True, False])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_model_and_optimizer_copied_together(way: Any, optimizer_first: bool) -> None:
    model = build()
    optimizer = make(model)
    iterate(model, optimizer, 0)
    if optimizer_first:
        copied, copied_model = way((optimizer, model))
    else:
        copied_model, copied = way((model, optimizer))
    assert copied.param_groups[0]["params"][0] is next(copied_model.parameters())
    both_train_alone(model, optimizer, copied_model, copied)


def test_a_copy_after_loading_and_thawing_and_adding() -> None:
    model = build()
    model.branch.requires_grad_(False)
    optimizer = OptimizerInBackward([p for p in model.parameters() if p is not model.scale], torch.optim.AdamW)
    iterate(model, optimizer, 0)
    optimizer.load_state_dict(optimizer.state_dict())
    copied_model, copied = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (copied_model, copied)):
        m.branch.requires_grad_(True)
        m.scale.grad = None
        o.add_param_group({"params": [m.scale]})
    both_train_alone(model, optimizer, copied_model, copied)
    assert copied.state[copied_model.scale]["step"] == 3
    assert copied.state[copied_model.branch.weight]["step"] == 2


def test_a_copy_of_the_model_alone_has_no_hook() -> None:
    model = build()
    optimizer = make(model)
    average = copy.deepcopy(model)
    assert hooks(average) == 0
    assert not trains(average)
    assert steps(optimizer) == set()


def test_a_copy_of_the_optimizer_alone_steps_its_own_parameters() -> None:
    model = build()
    optimizer = make(model)
    before = copy.deepcopy(model.state_dict())
    copied = copy.deepcopy(optimizer)
    p = copied.param_groups[0]["params"][0]
    p.sum().backward()
    assert p.grad is None
    assert steps(copied) == {1}
    assert same(before, model.state_dict())
    assert steps(optimizer) == set()


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_of_a_closed_one_is_closed(way: Any) -> None:
    model = build()
    optimizer = make(model)
    optimizer.close()
    copied_model, copied = way((model, optimizer))
    assert copied.closed
    assert not trains(copied_model)
    assert trains(model) is False


# Step hooks


def test_step_hooks_fire_once_a_step_with_the_outer_optimizer() -> None:
    fired: list[tuple[str, Any]] = []
    handles = [
        register_optimizer_step_pre_hook(lambda o, args, kwargs: fired.append(("global pre", o))),
        register_optimizer_step_post_hook(lambda o, args, kwargs: fired.append(("global post", o))),
    ]
    try:
        model = build()
        optimizer = make(model)
        optimizer.register_step_pre_hook(lambda o, args, kwargs: fired.append(("pre", o)))
        optimizer.register_step_post_hook(lambda o, args, kwargs: fired.append(("post", o)))
        loss_of(model, 0).backward()
        assert fired == []
        optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert fired == [(name, optimizer) for name in ("global pre", "pre", "post", "global post")]


def test_the_profiler_sees_one_step() -> None:
    model = build()
    optimizer = make(model)
    iterate(model, optimizer, 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        iterate(model, optimizer, 0)
    names = [event.key for event in profile.key_averages() for _ in range(event.count) if "Optimizer.step" in event.key]
    assert names == ["Optimizer.step#OptimizerInBackward.step"]


class WithHooksOfItsOwn(torch.optim.SGD):
    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.register_step_pre_hook(WithHooksOfItsOwn.double)
        self.register_step_post_hook(WithHooksOfItsOwn.clamp)

    def double(self, args: Any, kwargs: Any) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(2)

    def clamp(self, args: Any, kwargs: Any) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.clamp_(-0.4, 0.4)


def test_step_hooks_that_belong_to_the_wrapped_class_act() -> None:
    twins = Twins(WithHooksOfItsOwn, groups=lambda model: [*model.block.parameters(), model.scale], lr=0.5)
    for iteration in (0, 2):
        twins.each(lambda model, optimizer: iterate(model, optimizer, iteration))  # noqa: B023
        twins.each(lambda model, optimizer: model.zero_grad())
        twins.check()


# Errors on the way, and several threads


class Failing(torch.optim.SGD):
    fail = True

    def step(self, closure: Any = None) -> None:
        if self.fail and any(p.grad is not None and p.shape == (4, 4) for p in self.param_groups[0]["params"]):
            raise ArithmeticError("no")
        super().step()


def test_an_exception_in_the_step() -> None:
    model = build()
    optimizer = OptimizerInBackward(
        [{"params": model.block.parameters()}, {"params": [model.scale]}], Failing, bucket_bytes=0, lr=0.1
    )
    groups = optimizer.param_groups
    before = model.block.weight.clone()
    with pytest.raises(ArithmeticError, match="no"):
        loss_of(model, 0).backward()
    assert optimizer.param_groups is groups
    assert [len(group["params"]) for group in groups] == [2, 1]
    assert model.block.weight.grad is not None
    assert torch.equal(model.block.weight, before)
    optimizer._inner.fail = False  # type: ignore[attr-defined]
    optimizer.zero_grad()
    assert model.block.weight.grad is None
    loss_of(model, 0).backward()
    assert not torch.equal(model.block.weight, before)


def test_an_exception_elsewhere_in_the_backward() -> None:
    model = build()
    optimizer = make(model)

    def fail(grad: torch.Tensor) -> None:
        raise ArithmeticError("no")

    handle = model.block.weight.register_hook(fail)
    with pytest.raises(ArithmeticError):
        loss_of(model, 0).backward()
    handle.remove()
    optimizer.zero_grad()
    iterate(model, optimizer, 0)
    assert steps(optimizer) == {1, 2}


def test_backwards_in_several_threads() -> None:
    twins = Twins(groups=lambda model: [*model.block.parameters(), *model.branch.parameters()])
    parts = [lambda model: model.block, lambda model: model.branch]

    def work(model: nn.Module) -> None:
        model(torch.ones(2, 4)).square().sum().backward()

    for _ in range(20):
        threads = [threading.Thread(target=work, args=(part(twins.model),)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        twins.optimizer.step()
        for part in parts:
            part(twins.plain_model)(torch.ones(2, 4)).square().sum().backward()
        twins.plain.step()
        twins.plain.zero_grad()
    twins.check()


# The loop's calls


def test_extra_calls_change_nothing() -> None:
    twins = Twins()
    for call in ("step", "zero_grad"):
        twins.each(lambda _, optimizer: getattr(optimizer, call)())  # noqa: B023
        twins.check()
    twins.iterate(2)
    for call in ("zero_grad", "step", "step", "zero_grad"):
        twins.each(lambda _, optimizer: getattr(optimizer, call)())  # noqa: B023
        twins.check()
    twins.iterate(2)


def test_a_closure_is_refused() -> None:
    model = build()
    optimizer = make(model)
    before = snapshot(model, optimizer)
    message = r"^step\(\) was given a closure, but .*: call loss.backward\(\) yourself and then step\(\) without a "
    with pytest.raises(RuntimeError, match=message):
        optimizer.step(lambda: loss_of(model, 0).item())
    assert same(before, snapshot(model, optimizer))


def test_the_wrapped_class_keeps_its_own_methods() -> None:
    class WithModes(torch.optim.SGD):
        mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    optimizer = OptimizerInBackward(build().parameters(), WithModes)
    optimizer.eval()
    assert optimizer.mode == "eval"
    assert not hasattr(optimizer, "train")
    assert not hasattr(optimizer, "_private")


def test_repr_names_both() -> None:
    optimizer = make(build(), lr=0.25)
    assert repr(optimizer).startswith("OptimizerInBackward over AdamW (\nParameter Group 0\n")
    assert "lr: 0.25" in repr(optimizer)
    optimizer.close()
    assert repr(optimizer).startswith("OptimizerInBackward (closed) over AdamW")
