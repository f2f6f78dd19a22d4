"""What a class keeps beside the state of its parameters, such as a counter: seen and written as the plain one does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Twins, iterate
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
