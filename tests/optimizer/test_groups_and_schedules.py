"""Groups, hyperparameters that change, and parameters that come, go, freeze and thaw."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Toy, Twins, build, iterate, loss_of, same, snapshot
from torch import nn
from torch.optim import lr_scheduler

from inbackward import OptimizerInBackward


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Out of the model's order, with values of their own and an empty group between."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    return [
        {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0, "lr": 0.02},
        {"params": []},
        {"params": matrices[::-1], "betas": (0.8, 0.95), "eps": 1e-6},
    ]


def named_groups(model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [{"params": iter(named[3:]), "lr": 0.02}, {"params": named[:3]}]


@pytest.mark.parametrize(
    "groups",
    [
        lambda model: list(model.parameters()),
        lambda model: (p for p in model.parameters()),
        lambda model: model.named_parameters(),
        lambda model: [{"params": model.parameters()}],
        lambda model: iter(two_groups(model)),
        two_groups,
        named_groups,
    ],
)
def test_every_form_of_params(groups: Callable[[nn.Module], Any]) -> None:
    twins = Twins(groups=groups)
    twins.iterate()
    names = [group.get("param_names") for group in twins.optimizer.state_dict()["param_groups"]]
    assert names == [group.get("param_names") for group in twins.plain.state_dict()["param_groups"]]


def test_a_group_is_the_dict_that_the_user_gave() -> None:
    group: dict[str, Any] = {"params": build().parameters()}
    optimizer = OptimizerInBackward([group], torch.optim.SGD, lr=0.1)
    assert optimizer.param_groups[0] is group


def test_a_parameter_twice_in_a_group() -> None:
    with pytest.warns(UserWarning, match="duplicate parameters"):
        twins = Twins(groups=lambda model: [*model.parameters(), model.scale])
    twins.iterate()
    assert twins.optimizer.state[twins.model.scale]["step"] == 8


def test_a_parameter_in_two_groups_is_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match="more than one parameter group"):
        OptimizerInBackward([{"params": model.parameters()}, {"params": [model.scale]}], torch.optim.SGD)
    assert not model.scale._post_accumulate_grad_hooks


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "warm-up from 0": lambda o: lr_scheduler.LambdaLR(o, lambda i: i / 3),
    "per group": lambda o: lr_scheduler.LambdaLR(o, [lambda i: 1 / (i + 1), lambda i: 1.0, lambda i: i]),
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.1),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=8),
    "cyclic momentum": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=True),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.5)], milestones=[2]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.5)]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str, cls: Any) -> None:
    if cls is torch.optim.SGD:
        groups: Any = lambda model: [{**group, "momentum": 0.5 + 0.2 * i} for i, group in enumerate(two_groups(model))]  # noqa: E731
        twins = Twins(cls, groups=groups, lr=0.1)
    else:
        twins = Twins(cls, groups=two_groups, lr=0.1)
    schedulers = twins.each(lambda model, optimizer: SCHEDULES[schedule](optimizer))
    used = set()
    for _ in range(6):
        twins.iterate(1)
        used.add(twins.optimizer.param_groups[0]["lr"])
        for scheduler in schedulers:
            scheduler.step(*[1.0] * (schedule == "plateau"))
    assert len(used) > 1
    assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr()


def test_a_scheduler_warns_where_step_is_not_called_as_for_a_plain_optimizer() -> None:
    model = build()
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.SGD, lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    loss_of(model, 0).backward()
    with pytest.warns(UserWarning, match="Detected call of `lr_scheduler.step\\(\\)` before `optimizer.step"):
        scheduler.step()


def test_edits_by_hand_act_at_the_next_update() -> None:
    twins = Twins(groups=two_groups)
    for lr, decay, betas in [(0.1, 0.0, (0.5, 0.5)), (0.0, 0.3, (0.9, 0.9)), (0.01, 0.1, (0.0, 0.999))]:
        twins.each(lambda _, optimizer: optimizer.param_groups[2].update(lr=lr, weight_decay=decay, betas=betas))  # noqa: B023
        twins.iterate(1)


def test_a_replaced_group() -> None:
    twins = Twins(groups=two_groups)
    twins.iterate(1)

    def replace(_: nn.Module, optimizer: Any) -> None:
        optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.3}
        optimizer.param_groups = [*optimizer.param_groups[::-1]]

    twins.each(replace)
    twins.iterate(2)


@pytest.mark.parametrize("flags", [{}, {"fused": True}])
def test_a_tensor_as_learning_rate_changed_in_place(flags: dict[str, bool]) -> None:
    twins = Twins(lr=torch.tensor(0.1), **flags)
    for _ in range(3):
        twins.iterate(1)
        twins.each(lambda _, optimizer: optimizer.param_groups[0]["lr"].mul_(0.5))
    assert twins.optimizer.param_groups[0]["lr"] == 0.1 / 8


def freeze(flag: bool) -> Callable[[nn.Module, Any], Any]:
    return lambda model, optimizer: model.block.requires_grad_(not flag)


def test_frozen_from_the_start_then_trained_then_frozen_again() -> None:
    twins = Twins(model=lambda: Toy().requires_grad_(False))
    assert not any(p.requires_grad for p in twins.model.parameters())
    twins.each(lambda model, optimizer: model.requires_grad_(True))
    twins.each(freeze(True))
    twins.iterate(2)
    assert twins.model.block.weight not in twins.optimizer.state
    for flag in (False, True, False):
        twins.each(freeze(flag))
        twins.iterate(2)
    assert twins.optimizer.state[twins.model.block.weight]["step"] == 4


def test_frozen_later_its_state_stays() -> None:
    twins = Twins()
    twins.iterate(2)
    twins.each(freeze(True))
    before = snapshot(twins.model, twins.optimizer)["state"]
    twins.iterate(2)
    after = snapshot(twins.model, twins.optimizer)["state"]
    names = [name for name, _ in twins.model.named_parameters()]
    assert [names[i] for i in before if same(before[i], after[i])] == ["block.weight", "block.bias"]


def test_a_parameter_that_can_never_be_trained() -> None:
    class Counting(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Parameter(torch.tensor(3), requires_grad=False)

    Twins(model=Counting).iterate(2)


def test_a_lazy_parameter() -> None:
    class Lazy(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.LazyLinear(4)

    torch.manual_seed(0)
    twins = Twins(model=Lazy)
    for model in (twins.plain_model, twins.model):
        torch.manual_seed(1)
        loss_of(model, 0)
    twins.iterate(3)


def test_a_group_added_during_training() -> None:
    twins = Twins(groups=lambda model: [*model.block.parameters(), *model.branch.parameters()])

    def add(model: nn.Module, optimizer: Any) -> None:
        optimizer.add_param_group({"params": iter([model.scale, model.empty]), "lr": 0.3})

    def rest(model: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        model.zero_grad()
        optimizer.add_param_group({"params": model.head.parameters()})

    for edit in (add, rest):
        twins.each(lambda model, optimizer: iterate(model, optimizer, 0))
        twins.each(lambda model, optimizer: model.zero_grad())
        twins.check()
        twins.each(edit)
    twins.iterate()
    assert len(twins.optimizer.param_groups) == 3


def test_a_group_that_the_wrapped_optimizer_refuses() -> None:
    model = build()
    optimizer = OptimizerInBackward([model.scale], torch.optim.SGD)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [model.scale, model.empty]})
    assert len(optimizer.param_groups) == 1
    assert not model.empty._post_accumulate_grad_hooks


def test_a_parameter_put_into_a_group_by_hand() -> None:
    twins = Twins(groups=lambda model: [p for p in model.parameters() if p is not model.scale])
    twins.each(lambda model, optimizer: optimizer.param_groups[0]["params"].append(model.scale))
    twins.iterate(3)
    twins.each(lambda model, optimizer: optimizer.param_groups[0]["params"].pop(0))
    twins.each(lambda model, optimizer: iterate(model, optimizer, 0))
    assert same(*twins.each(lambda model, optimizer: model.state_dict()))
    assert twins.model.embedding.weight.grad is None
    assert twins.model.empty.grad is not None  # as with the plain optimizer, it's nobody's


def test_a_parameter_replaced_in_the_model_is_lost_as_by_the_plain_optimizer() -> None:
    twins = Twins()
    twins.iterate(1)
    twins.each(
        lambda model, _: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    )
    before = snapshot(twins.model, twins.optimizer)
    twins.each(lambda model, optimizer: iterate(model, optimizer, 1))
    twins.check()
    assert same(before, snapshot(twins.model, twins.optimizer))


def test_two_optimizers_on_one_model() -> None:
    twins = Twins(torch.optim.SGD, groups=lambda model: model.block.parameters(), lr=0.1)

    def rest(model: nn.Module) -> list[nn.Parameter]:
        return [p for name, p in model.named_parameters() if not name.startswith("block")]

    others = torch.optim.AdamW(rest(twins.plain_model)), OptimizerInBackward(rest(twins.model), torch.optim.AdamW)
    for iteration in range(3):
        twins.each(lambda model, optimizer: iterate(model, optimizer, iteration))  # noqa: B023
        for other in others:
            other.step()
            other.zero_grad()
        twins.check()
        assert same(others[0].state_dict()["state"], dict(sorted(others[1].state_dict()["state"].items())))


class Counter(torch.optim.SGD):
    """Keeps a counter and a running weight in its groups, as schedule-free optimizers do."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            k = group.get("k", 0)
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-group["lr"] / (k + 1))
            group["weight"] = group.get("weight", 0.0) + 1 / (k + 1)
            group["k"] = k + 1


@pytest.mark.parametrize("bucket_bytes", [None, 0])
def test_what_the_optimizer_writes_into_its_groups(bucket_bytes: int | None) -> None:
    twins = Twins(
        Counter, groups=lambda model: [{"params": model.block.parameters()}, {"params": [model.scale]}], lr=0.1
    )
    twins.optimizer._limit = twins.optimizer._limit if bucket_bytes is None else bucket_bytes
    for iteration in range(4):
        twins.each(lambda model, optimizer: iterate(model, optimizer, iteration))  # noqa: B023
        twins.each(lambda model, optimizer: model.zero_grad())
        twins.check()
    assert [group["k"] for group in twins.optimizer.param_groups] == [4, 4]


def test_a_step_without_gradients_counts_where_the_plain_one_does() -> None:
    twins = Twins(Counter, groups=lambda model: [{"params": model.block.parameters()}, {"params": [model.scale]}])
    twins.each(lambda model, optimizer: optimizer.step())
    for iteration in range(4):
        twins.each(lambda model, optimizer: model.scale.requires_grad_(iteration < 2))  # noqa: B023
        twins.each(lambda model, optimizer: iterate(model, optimizer, iteration))  # noqa: B023
        twins.each(lambda model, optimizer: optimizer.step() if iteration == 1 else None)  # noqa: B023
        twins.check()
    assert [group["k"] for group in twins.optimizer.param_groups] == [6, 6]


@pytest.mark.parametrize(
    ("do", "then"),
    [
        (lambda optimizer: optimizer.step(), 8),
        (lambda optimizer: optimizer.close(), 7),
        (lambda optimizer: optimizer.state_dict(), 7),
        (copy.deepcopy, 7),
        (lambda optimizer: optimizer.load_state_dict({"state": {}, "param_groups": [{"k": 1, "params": [0, 1]}]}), 8),
    ],
)
def test_what_it_wrote_is_there_when_it_is_needed(do: Callable[[Any], Any], then: int) -> None:
    """The `step()` that ends an iteration has counted already; one without an iteration counts as the plain one's."""
    model = build()
    optimizer = OptimizerInBackward(model.block.parameters(), Counter)
    loss_of(model, 0).backward()
    assert "k" not in optimizer.param_groups[0]
    do(optimizer)
    assert optimizer.param_groups[0]["k"] == 1
    optimizer.param_groups[0]["k"] = 7
    optimizer.step()
    assert optimizer.param_groups[0]["k"] == then
