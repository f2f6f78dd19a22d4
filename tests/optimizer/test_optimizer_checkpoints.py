"""Saving and loading: the layout of the wrapped optimizer, both ways between it and the plain one."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Matrices, Rows, Toy, Twins, build, iterate, loss_of, same, snapshot
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp

from inbackward import OptimizerInBackward

Make = Callable[[nn.Module], Any]
PLAIN: Make = lambda model: torch.optim.AdamW(groups(model), amsgrad=True)  # noqa: E731
OURS: Make = lambda model: OptimizerInBackward(groups(model), torch.optim.AdamW, amsgrad=True)  # noqa: E731


def groups(model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [{"params": named[:3], "lr": 0.02}, {"params": named[3:], "weight_decay": 0.0}]


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("save", [PLAIN, OURS])
@pytest.mark.parametrize("load", [PLAIN, OURS])
def test_resume(save: Make, load: Make, at: int) -> None:
    def scheduled(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def train(model: nn.Module, optimizer: Any, scheduler: Any, iterations: range) -> None:
        for iteration in iterations:
            iterate(model, optimizer, iteration)
            scheduler.step()

    plain_model = build()
    plain = PLAIN(plain_model)
    train(plain_model, plain, scheduled(plain), range(5))

    first = build()
    optimizer = save(first)
    scheduler = scheduled(optimizer)
    train(first, optimizer, scheduler, range(at))
    saved = through_a_file([first.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    second = build(lambda: Toy().requires_grad_(True))
    resumed = load(second)
    resumed_scheduler = scheduled(resumed)
    for target, state in zip((second, resumed, resumed_scheduler), saved, strict=True):
        target.load_state_dict(state)
    assert len(resumed.state) == (8 if at else 0)
    train(second, resumed, resumed_scheduler, range(at, 5))
    assert same(snapshot(second, resumed), snapshot(plain_model, plain))
    assert resumed.param_groups[0]["lr"] == 0.02 * 0.5**5


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adafactor", "ASGD", "NAdam", "Rprop", "Muon", "SparseAdam"])
def test_every_kind_of_state_passes_the_check_of_shapes(name: str) -> None:
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    models: dict[str, Any] = {"Muon": Matrices, "SparseAdam": Rows}
    twins = Twins(getattr(torch.optim, name), model=models.get(name, lambda: Toy(empty=1)))
    twins.iterate(2)
    twins.each(lambda model, optimizer: optimizer.load_state_dict(through_a_file(optimizer.state_dict())))
    twins.iterate(2)


def test_saved_when_some_parameters_have_no_state_yet() -> None:
    twins = Twins()
    twins.iteration = 1  # without the branch
    twins.iterate(1)
    assert len(twins.optimizer.state) == 6
    twins.each(lambda _, optimizer: optimizer.load_state_dict(through_a_file(optimizer.state_dict())))
    twins.iterate(3)


def test_a_scheduler_acts_after_loading() -> None:
    twins = Twins()
    schedulers = twins.each(lambda _, optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    twins.iterate(1)
    twins.each(lambda _, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())))
    for _ in range(2):
        twins.iterate(1)
        for scheduler in schedulers:
            scheduler.step()
    assert twins.optimizer.param_groups[0]["lr"] == 1e-3 / 4


def test_resumed_by_last_epoch() -> None:
    twins = Twins()
    schedulers = twins.each(lambda _, optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    twins.iterate(1)
    for scheduler in schedulers:
        scheduler.step()
    saved = twins.each(lambda _, optimizer: copy.deepcopy(optimizer.state_dict()))
    twins.optimizer.close()
    twins.plain = torch.optim.AdamW(twins.plain_model.parameters())
    twins.optimizer = OptimizerInBackward(twins.model.parameters(), torch.optim.AdamW)
    twins.plain.load_state_dict(saved[0])
    twins.optimizer.load_state_dict(saved[1])
    twins.each(lambda _, optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5, last_epoch=0))
    twins.iterate(2)
    assert twins.optimizer.param_groups[0]["initial_lr"] == 1e-3


def test_loading_registers_no_second_hook() -> None:
    model = build()
    optimizer = OURS(model)
    for _ in range(3):
        optimizer.load_state_dict(optimizer.state_dict())
        torch.optim.Optimizer.load_state_dict(optimizer, torch.optim.Optimizer.state_dict(optimizer))
    assert {len(p._post_accumulate_grad_hooks) for p in model.parameters()} == {1}
    iterate(model, optimizer, 0)
    assert {state["step"].item() for state in optimizer.state.values()} == {1}


def test_the_state_dict_holds_no_parameter_and_reading_creates_nothing() -> None:
    model = build()
    optimizer = OURS(model)
    for _ in range(2):
        state = optimizer.state_dict()
        assert state["state"] == {}
        assert len(optimizer.state) == 0
        assert repr(optimizer)
    iterate(model, optimizer, 0)
    owned = {p.data_ptr() for p in model.parameters() if p.numel()}
    state = optimizer.state_dict()
    tensors = [value for entries in state["state"].values() for value in entries.values()]
    assert len(tensors) == 8 * 4
    assert owned.isdisjoint(tensor.data_ptr() for tensor in tensors)
    assert all(isinstance(index, int) for group in state["param_groups"] for index in group["params"])


def test_nothing_of_the_optimizer_is_in_the_models_state_dict() -> None:
    model = build()
    names = list(model.state_dict())
    iterate(model, OURS(model), 0)
    assert list(model.state_dict()) == names


def test_a_snapshot_is_independent() -> None:
    model = build()
    optimizer = OURS(model)
    iterate(model, optimizer, 0)
    taken = copy.deepcopy(optimizer.state_dict())
    again = copy.deepcopy(taken)
    iterate(model, optimizer, 1)
    assert same(taken, again)


def test_state_dict_hooks_get_the_outer_optimizer() -> None:
    optimizer = OURS(build())
    seen: list[tuple[str, Any]] = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append(("save", o)))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: {key: state[key] for key in ("state", "param_groups")})
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append(("load", o)))
    state = optimizer.state_dict()
    assert state["extra"] == 1
    optimizer.load_state_dict(state)
    assert seen == [("save", optimizer), ("load", optimizer)]
    assert state["extra"] == 1


class OwnLayout(torch.optim.SGD):
    """An optimizer with a layout of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"mine": super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["mine"])


def test_the_wrapped_class_decides_on_the_layout() -> None:
    twins = Twins(OwnLayout, momentum=0.9)
    iterate(twins.model, twins.optimizer, 0)
    saved = copy.deepcopy(twins.optimizer.state_dict())
    assert list(saved) == ["mine"]
    iterate(twins.plain_model, twins.plain, 0)
    twins.plain.load_state_dict(saved)
    assert len(twins.plain.state) == 8


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda s: s.pop("state"),
            r"^this is no optimizer state dict, as it lacks 'state' and has \['param_groups'\]: pass what ",
        ),
        (
            lambda s: s["param_groups"].pop(),
            "^the checkpoint has 1 parameter groups and the optimizer 2: build the optimizer with",
        ),
        (
            lambda s: s["param_groups"][1]["params"].pop(),
            "^group 1 has 4 parameters in the checkpoint and 5 in the optimizer: ",
        ),
        (
            lambda s: s["param_groups"][0]["params"].append(9),
            "^group 0 has 4 parameters in the checkpoint and 3 in the opt",
        ),
        (
            lambda s: s["state"].update({99: {}}),
            "^the checkpoint has state for parameter 99, which is in none of its groups$",
        ),
        (
            lambda s: s["state"][2].update(exp_avg=torch.zeros(4, 7)),
            r"^the checkpoint's 'exp_avg' of parameter 2 has shape \(4, 7\) and the parameter \(7, 4\):",
        ),
        (
            lambda s: s["state"][4].update(exp_avg_sq=torch.zeros(3)),
            r"^the checkpoint's 'exp_avg_sq' of parameter 4 has shape \(3,\) and the parameter \(4,\)",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit(edit: Callable[[Any], Any], message: str) -> None:
    model = build()
    optimizer = OURS(model)
    iterate(model, optimizer, 0)
    before = snapshot(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    edit(saved)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert same(before, snapshot(model, optimizer))


def test_something_else_than_a_state_dict() -> None:
    with pytest.raises(TypeError, match=r"^state_dict must be a dict, as state_dict\(\) returns it, got a list$"):
        OURS(build()).load_state_dict([])


@pytest.mark.parametrize("at", [0, 2])
def test_reading_through_distributed_checkpoint_changes_nothing(at: int) -> None:
    model, twin = build(), build()
    optimizer, twin_optimizer = OURS(model), OURS(twin)
    for iteration in range(4):
        if iteration == at:
            before = copy.deepcopy(model.state_dict())
            state = dcp.get_optimizer_state_dict(model, optimizer)
            assert max(float(entries["step"]) for entries in state["state"].values()) == at
            assert len(state["state"]) == 8
            assert same(before, model.state_dict())
        iterate(model, optimizer, iteration)
        iterate(twin, twin_optimizer, iteration)
        assert same(snapshot(model, optimizer), snapshot(twin, twin_optimizer))


class CountsFromTheFirstStep(torch.optim.SGD):
    """In an entry of its groups that no group has before."""

    where = "group"

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            entries = {"group": group, "attribute": vars(self), "state": self.state}[self.where]
            entries["calls"] = entries.get("calls", torch.zeros(1) if self.where == "state" else 0) + 1
            for p in (p for p in group["params"] if p.grad is not None):
                p.grad.div_(float(entries["calls"]))
        super().step()


def counting(where: str) -> Make:
    cls = type("Counts", (CountsFromTheFirstStep,), {"where": where})
    return lambda model: OptimizerInBackward(model.parameters(), cls, lr=0.1, momentum=0.9)


class MovesAtZero(torch.optim.SGD):
    """By a bit, whatever the lr."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.mul_(1.001)


def test_nor_does_it_where_a_step_at_lr_0_moves_parameters() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), MovesAtZero, lr=0.1, momentum=0.9)
    before = copy.deepcopy(model.state_dict())
    assert len(dcp.get_optimizer_state_dict(model, optimizer)["state"]) == 8
    assert same(before, model.state_dict())


class CachesItsFactor(torch.optim.SGD):
    """In a list of its groups, for the other parameters of the iteration, as RAdam once did."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        for group in self.param_groups:
            group["cache"] = [[None, None]]

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                calls = self.state[p].setdefault("step", 0)
                if group["cache"][0][0] != calls:
                    group["cache"][0] = [calls, group["lr"]]
                p.grad.mul_(group["cache"][0][1])
                self.state[p]["step"] += 1
        super().step()


def test_nor_does_it_to_what_is_kept_in_lists() -> None:
    model, twin = build(), build()
    optimizer, twin_optimizer = (
        OptimizerInBackward(side.parameters(), CachesItsFactor, lr=0.1) for side in (model, twin)
    )
    assert len(dcp.get_optimizer_state_dict(model, optimizer)["state"]) == 8
    iterate(model, optimizer, 0)
    iterate(twin, twin_optimizer, 0)
    assert same(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize("where", ["group", "attribute", "state"])
def test_nor_does_it_of_what_a_class_counts_for_itself(where: str) -> None:
    model, twin = build(), build()
    optimizer, twin_optimizer = counting(where)(model), counting(where)(twin)
    state = dcp.get_optimizer_state_dict(model, optimizer)
    assert len(state["state"]) == 8
    if where == "group":
        assert state["param_groups"][0]["calls"] == 0
    for iteration in range(3):
        iterate(model, optimizer, iteration)
        iterate(twin, twin_optimizer, iteration)
        assert same(snapshot(model, optimizer), snapshot(twin, twin_optimizer))


def test_an_entry_that_comes_with_the_first_step_is_loaded() -> None:
    model, other = build(), build()
    optimizer, resumed = counting("group")(model), counting("group")(other)
    for iteration in range(2):
        iterate(model, optimizer, iteration)
    state = through_a_file(dcp.get_optimizer_state_dict(model, optimizer))
    other.load_state_dict(model.state_dict())
    dcp.set_optimizer_state_dict(other, resumed, state)
    assert resumed.param_groups[0]["calls"] == 2
    iterate(model, optimizer, 2)
    iterate(other, resumed, 2)
    assert same(snapshot(model, optimizer), snapshot(other, resumed))


def test_a_checkpoint_taken_before_the_first_iteration_starts_afresh() -> None:
    model, other = build(), build()
    optimizer, resumed = OURS(model), OURS(other)
    state = through_a_file(dcp.get_optimizer_state_dict(model, optimizer))
    dcp.set_optimizer_state_dict(other, resumed, state)
    for iteration in range(2):
        iterate(model, optimizer, iteration)
        iterate(other, resumed, iteration)
    assert same(snapshot(model, optimizer), snapshot(other, resumed))


def test_a_gradient_set_by_hand_is_used_by_step_as_in_the_plain_optimizer() -> None:
    model, twin = build(), build()
    ours, plain = OURS(model), PLAIN(twin)
    for side in (model, twin):
        for p in side.parameters():
            p.grad = torch.full_like(p, 0.25)
    ours.step()
    plain.step()
    assert all(p.grad is None for p in model.parameters())
    assert same(snapshot(model, ours), snapshot(twin, plain))


def test_a_step_on_zeros_at_lr_0_is_no_rehearsal_where_a_backward_came_before() -> None:
    """A warm-up from 0, and a loss that is masked out at first: the counters count."""
    sides = [(build(), make) for make in (OURS, PLAIN)]
    optimizers = [make(model) for model, make in sides]
    for iteration in range(4):
        for (model, _), optimizer in zip(sides, optimizers, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = 0.0 if iteration < 2 else 0.01
            waiting = optimizer.no_step() if hasattr(optimizer, "no_step") else nullcontext()
            with waiting:  # so that step() is what uses the gradients
                loss = model(torch.tensor([1, 2, 3]), True).square().mean() * (iteration >= 2)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        (ours, _), (plain, _) = sides
        assert same(snapshot(ours, optimizers[0]), snapshot(plain, optimizers[1])), iteration


@pytest.mark.parametrize(("save", "load"), [(OURS, PLAIN), (PLAIN, OURS), (OURS, OURS)])
def test_through_distributed_checkpoint(save: Make, load: Make) -> None:
    model, other = build(), build()
    optimizer, resumed = save(model), load(other)
    iterate(model, optimizer, 0)
    state = through_a_file(dcp.get_optimizer_state_dict(model, optimizer))
    other.load_state_dict(model.state_dict())
    dcp.set_optimizer_state_dict(other, resumed, state)
    iterate(model, optimizer, 1)
    iterate(other, resumed, 1)
    assert len(resumed.state) == 8
    assert same(snapshot(model, optimizer), snapshot(other, resumed))
    assert loss_of(other, 0) == loss_of(model, 0)
