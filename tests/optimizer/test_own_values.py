"""What a class keeps beside the state of its parameters, such as a counter: seen and written as the plain one does."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import torch
from tests.optimizer.toys import Twins, build, iterate, loss_of, same, snapshot
from torch import nn

from inbackward import OptimizerInBackward


class Counts(torch.optim.SGD):
    """Its update depends on how often it has been called."""

    where = ""
    in_place = False

    def kept(self) -> Any:
        return {"group": self.param_groups[-1], "state": self.state, "attributes": vars(self)}[self.where]

    def called(self, entries: Any) -> float:
        if self.in_place:
            entries.setdefault("count", torch.zeros(1)).add_(1)
        else:
            entries["count"] = entries.get("count", 0) + 1
        return float(entries["count"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        groups = self.param_groups
        counts = [self.called(group) for group in groups] if self.where == "group" else [self.called(self.kept())]
        for i, group in enumerate(groups):
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - 0.01 * counts[i % len(counts)])


class ListAGroup(torch.optim.SGD):
    """Keeps something a group, in the order of the groups."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.bounds = [group["lr"] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group, bound in zip(self.param_groups, self.bounds, strict=False):
            for p in group["params"]:
                p.clamp_(-bound, bound)


class ListAGroupByIndex(ListAGroup):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert all(self.bounds[i] for i in range(len(self.param_groups)))
        super().step()


class FirstSpeaksForAll(torch.optim.SGD):
    """And each group says whether there is something in it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for p in (p for group in self.param_groups for p in group["params"]):
            p.clamp_(-1, self.param_groups[0]["lr"])
        for group in self.param_groups:
            group["used"] = len(group["params"]) > 0


class NoEmptyGroup(torch.optim.SGD):
    """Takes no group without parameters."""

    def step(self, closure: Any = None) -> None:
        assert all(group["params"] for group in self.param_groups)
        super().step()


class ZerosForNone(torch.optim.SGD):
    """Takes no gradient for a gradient of zeros, as Muon does so that ranks go in step."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["calls"] = group.get("calls", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
        super().step()


class SeesOneGroup(torch.optim.SGD):
    """A class of no needs sees the groups that are updated, however many there are."""

    most = 0

    def step(self, closure: Any = None) -> None:
        type(self).most = max(self.most, len(self.param_groups))
        super().step()


def two_groups(model: nn.Module) -> Any:
    first = list(model.block.parameters())
    return [{"params": first, "lr": 0.5}, {"params": [p for p in model.parameters() if all(p is not q for q in first)]}]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("where", ["group", "state", "attributes"])
def test_a_counter(where: str, in_place: bool) -> None:
    kind = type("Counts", (Counts,), {"where": where, "in_place": in_place})
    twins = Twins(kind, groups=two_groups, lr=0.1)
    twins.iterate(5)
    assert twins.plain.kept()["count"] == twins.optimizer._inner.kept()["count"] == 5  # type: ignore[attr-defined]
    saved = twins.plain.state_dict()
    twins.each(lambda model, optimizer: optimizer.load_state_dict(copy.deepcopy(saved)))
    twins.iterate(2)


@pytest.mark.parametrize("cls", [ListAGroup, FirstSpeaksForAll, NoEmptyGroup])
def test_groups_keep_their_places_where_they_must(cls: Any) -> None:
    Twins(cls, groups=two_groups, lr=0.1).iterate(5)


class FirstIsOn(torch.optim.SGD):
    """A switch that its first group has, and no group that is added later."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        for group in self.param_groups:
            group["on"] = False

    def train(self) -> None:
        for group in self.param_groups:
            group["on"] = True

    def step(self, closure: Any = None) -> None:
        assert self.param_groups[0]["on"]
        super().step()


@pytest.mark.parametrize("groups", [two_groups, lambda model: model.block.parameters()])
def test_and_where_they_must_once_another_is_added(groups: Any) -> None:
    twins = Twins(FirstIsOn, groups=groups, lr=0.1)
    twins.each(lambda model, optimizer: optimizer.train())
    twins.each(lambda model, optimizer: iterate(model, optimizer, 0))
    new = torch.nn.Linear(2, 2, bias=False).weight.data
    for model, optimizer in ((twins.plain_model, twins.plain), (twins.model, twins.optimizer)):
        model.new = nn.Parameter(new.clone())
        optimizer.add_param_group({"params": [model.new], "on": False})
        optimizer.zero_grad()
    for iteration in range(1, 4):
        twins.each(lambda model, optimizer, i=iteration: _with_new(model, i).backward())  # type: ignore[misc]
        twins.each(lambda model, optimizer: (optimizer.step(), optimizer.zero_grad()))
        twins.check()
    assert not same(twins.model.new.data, new)


def test_one_that_cannot_have_another_says_so_here_too() -> None:
    twins = Twins(ListAGroupByIndex, lr=0.1)
    twins.each(lambda model, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]}))
    for model, optimizer in ((twins.plain_model, twins.plain), (twins.model, twins.optimizer)):
        with pytest.raises(IndexError):
            iterate(model, optimizer, 0)


def _with_new(model: nn.Module, iteration: int) -> torch.Tensor:
    return loss_of(model, iteration) + model.new.square().sum()  # type: ignore[operator, union-attr]


def one_each(model: nn.Module) -> Any:
    return [{"params": [p]} for p in model.parameters()]


def test_where_they_need_not_no_more_are_shown_than_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    optimizer = OptimizerInBackward(one_each(model), SeesOneGroup, lr=0.1, bucket_bytes=0)
    assert SeesOneGroup.most == 2, "in the trial"
    monkeypatch.setattr(SeesOneGroup, "most", 0)
    loss_of(model, 0).backward()
    assert SeesOneGroup.most == 1
    optimizer.step()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("groups", [two_groups, lambda model: model.parameters()])
def test_no_gradient_may_be_one_of_zeros(groups: Any, frozen: bool) -> None:
    twins = Twins(ZerosForNone, groups=groups, lr=0.1, momentum=0.9, weight_decay=0.1)
    if frozen:
        twins.each(lambda model, optimizer: model.block.weight.requires_grad_(False))  # type: ignore[union-attr, operator]
    twins.iterate(5)  # a branch is not always taken


def test_they_keep_them_in_a_copy() -> None:
    twins = Twins(FirstSpeaksForAll, groups=two_groups, lr=0.1)
    twins.model, twins.optimizer = copy.deepcopy((twins.model, twins.optimizer))
    twins.iterate(5)


class Sums(torch.optim.SGD):
    """Its state has a number that comes from the gradients of all."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.state["sum"] = self.state.get("sum", 0) + sum(float(g.sum()) for g in grads)  # type: ignore[index, call-overload]
        super().step()


def test_state_that_comes_from_all_gradients() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"it wrote .* and .* as the state entry 'sum' for two parameters; use it"):
        OptimizerInBackward(model.parameters(), Sums, lr=0.1)


class RemembersTheLast(torch.optim.SGD):
    """An attribute that is of one parameter at a time couples nothing."""

    def step(self, closure: Any = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.norm = float(p.grad.norm())
        super().step()


def test_an_attribute_of_the_last_parameter() -> None:
    twins = Twins(RemembersTheLast, lr=0.1)
    twins.iterate(3)
    twins.each(lambda model, optimizer: iterate(model, optimizer, 3))
    twins.check()
    assert twins.optimizer.norm > 0


class Warms(torch.optim.SGD):
    """Counts in one tensor, that is known under several names."""

    def __init__(self, params: Any, where: str = "attribute", **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.where, self.count = where, torch.zeros(())
        self.defaults["count"] = self.count
        for group in self.param_groups:
            group["count"] = self.count  # not setdefault: that of another optimizer may be there
        self.scale = lambda count=self.count: 1 / (1 + count)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        if self.where == "data":
            self.count.data += 1
        else:
            {"attribute": self.count, "default": self.defaults["count"]}[self.where].add_(1)
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                p.mul_(1 - 0.01 * group["count"]).mul_(self.scale())


@pytest.mark.parametrize("where", ["attribute", "default", "data"])
def test_a_tensor_that_is_counted_in_place_stays_the_same_one(where: str) -> None:
    twins = Twins(Warms, groups=two_groups, lr=0.1, where=where)
    inner: Any = twins.optimizer._inner
    twins.iterate(5)
    assert all(group["count"] is inner.count is inner.defaults["count"] for group in inner.param_groups)
    assert inner.count.item() == 5


class WarmsTheUsersLr(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 1.05
        super().step()


def test_the_users_own_tensor_is_read_and_written() -> None:
    lrs = [torch.tensor(0.05), torch.tensor(0.05)]
    models = build(), build()
    optimizers: list[Any] = [
        WarmsTheUsersLr(models[0].parameters(), lr=lrs[0], foreach=False),
        OptimizerInBackward(models[1].parameters(), WarmsTheUsersLr, lr=lrs[1], foreach=False),
    ]
    for iteration in range(6):
        for model, optimizer, lr in zip(models, optimizers, lrs, strict=True):
            iterate(model, optimizer, iteration)
            if iteration == 3:
                lr.fill_(0.001)
        assert same(*(snapshot(m, o) for m, o in zip(models, optimizers, strict=True)))
    assert lrs[0] == lrs[1] == pytest.approx(0.001 * 1.05**2)


class KnowsTheScalar(torch.optim.SGD):
    """Has a parameter of one number, that it updates, under another name too."""

    where = ""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        scalar = next(p for group in self.param_groups for p in group["params"] if p.numel() == 1)
        {"attribute": vars(self), "state": self.state, "group": self.param_groups[0]}[self.where]["scalar"] = scalar


@pytest.mark.parametrize("where", ["attribute", "state", "group"])
def test_a_parameter_of_one_number_is_no_counter(where: str) -> None:
    kind = type("KnowsTheScalar", (KnowsTheScalar,), {"where": where})
    models = build(), build()
    optimizers = kind(models[0].parameters(), lr=0.1), OptimizerInBackward(models[1].parameters(), kind, lr=0.1)
    before = models[1].scale.item()  # type: ignore[operator]
    for iteration in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            iterate(model, optimizer, iteration)
        assert same(models[0].state_dict(), models[1].state_dict())
    assert models[1].scale.item() != before  # type: ignore[operator]


def decays_lr(optimizer: Any, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.9


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_of_an_optimizer_of_torch_writes_as_its_class_does(when: str) -> None:
    def decaying(params: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(params, **kwargs)
        getattr(optimizer, f"register_step_{when}_hook")(decays_lr)
        return optimizer

    Twins(decaying, groups=two_groups, lr=0.1).iterate(4)


class Writes(torch.optim.SGD):
    """A new value at each step, under a name that may be new."""

    kind = ""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.late: Any = None
        self.mode = "warm"
        self.calls = 0

    def step(self, closure: Any = None) -> None:
        assert self.mode == ("warm" if self.calls < 2 else "main")
        assert self.late == (None if self.calls < 2 else 0.5)
        super().step()
        self.calls += 1
        if self.calls == 2:
            self.mode, self.late = "main", 0.5
        for group in self.param_groups:
            rows = torch.tensor([group["lr"], float("nan")])
            group["written"] = {"array": rows.numpy(), "tensors": [rows], "number": numpy.float64(0.5)}[self.kind]
            assert group.pop("first", self.calls) == self.calls
            group["first"] = self.calls + 1


@pytest.mark.parametrize("kind", ["array", "tensors", "number"])
def test_values_of_any_type(kind: str) -> None:
    models = build(), build()
    cls = type("Writes", (Writes,), {"kind": kind})
    optimizers: list[Any] = [
        cls(two_groups(models[0]), lr=0.1),
        OptimizerInBackward(two_groups(models[1]), cls, lr=0.1, bucket_bytes=0),
    ]
    for iteration in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            iterate(model, optimizer, iteration)
        assert same(models[0].state_dict(), models[1].state_dict())
    assert optimizers[1].calls == 4
    assert optimizers[1].mode == "main"
    assert [type(group["written"]) for o in optimizers for group in o.param_groups] == [
        type(optimizers[0].param_groups[0]["written"])
    ] * 4


class Forgets(torch.optim.SGD):
    """An entry that it was given, and uses once."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            once = group.pop("once", 0.0)
            for p in (p for p in group["params"] if p.grad is not None):
                p.mul_(1 - once)


def test_an_entry_that_is_deleted() -> None:
    def groups(model: nn.Module) -> Any:
        return [{**group, "once": 0.5} for group in two_groups(model)]

    twins = Twins(Forgets, groups=groups, lr=0.1)
    twins.iterate(3)
    assert all("once" not in group for group in twins.optimizer.param_groups)


class Clamps(torch.optim.SGD):
    """To what is its attribute."""

    bound = 0.0

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.bound = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.clamp_(-self.bound, self.bound)


def test_an_attribute_that_is_set_is_the_optimizers() -> None:
    twins = Twins(Clamps, lr=0.1)
    twins.iterate(2)
    twins.each(lambda model, optimizer: setattr(optimizer, "bound", 0.1))
    twins.iterate(2)
    assert twins.optimizer.bound == 0.1
    del twins.optimizer.bound
    assert twins.optimizer.bound == 0.0  # that of the class, as for the plain one
    twins.optimizer.note = "mine"  # what the plain one does not have is the wrapper's
    assert not hasattr(twins.plain, "note")
    assert not hasattr(twins.optimizer._inner, "note")


class SetsFirst(OptimizerInBackward):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.early = 1
        super().__init__(*args, **kwargs)


def test_a_subclass_may_set_its_own_before_there_is_an_optimizer() -> None:
    optimizer = SetsFirst(build().parameters(), Clamps, lr=0.1)
    iterate(build(), optimizer, 0)
    assert "early" not in vars(optimizer._inner)


class CopiesDefaults(torch.optim.Optimizer):
    """Reads every entry that it has a default for, and takes no other."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            assert set(group) == {"params", "lr"}
            options = {name: group[name] for name in self.defaults}
            for p in (p for p in group["params"] if p.grad is not None):
                p.add_(p.grad, alpha=-options["lr"])


def test_the_defaults_are_the_optimizers_own() -> None:
    twins = Twins(CopiesDefaults)
    twins.iterate(2)
    assert twins.optimizer.defaults == twins.plain.defaults == {"lr": 0.1}
    copied = copy.deepcopy(twins.optimizer)
    assert copied.defaults == copy.deepcopy(twins.plain).defaults
