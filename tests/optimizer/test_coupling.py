"""Optimizers whose parameters depend on each other: refused beforehand, where three small ones show it."""

from __future__ import annotations

import logging
import random
from functools import partial
from typing import Any, ClassVar

import numpy
import pytest
import torch
from tests.optimizer.toys import build, iterate, loss_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook

from inbackward import OptimizerInBackward


class Coupled(torch.optim.SGD):
    """From one of its steps on, its groups hold something about all parameters."""

    def __init__(self, params: Any, in_place: bool, since: int, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.since = since
        for group in self.param_groups:
            group["total"] = torch.zeros(2) if in_place else 0

    def step(self, closure: Any = None) -> None:
        super().step()
        self.since -= 1
        for group in self.param_groups if self.since < 0 else ():
            group["total"] += sum(p.numel() for p in group["params"])


IN_PLACE = "changes the group entry 'total' in place"


@pytest.mark.parametrize(
    ("in_place", "what"),
    [(True, IN_PLACE), (False, "wrote 16 and 32 as the group entry 'total' for two parameters")],
)
def test_an_optimizer_that_couples_its_parameters_is_refused(in_place: bool, what: str) -> None:
    model = build()
    message = (
        r"^Coupled cannot step inside backward\(\), as its parameters depend on each other: tried on three small ones, "
        f"it {what}; use it as a plain optimizer$"
    )
    with pytest.raises(ValueError, match=message):
        OptimizerInBackward(model.block.parameters(), Coupled, in_place=in_place, since=0, lr=0.1)
    loss_of(model, 0).backward()  # no hook was left behind
    assert all(p.grad is not None for p in model.block.parameters())


@pytest.mark.parametrize(
    ("in_place", "what"),
    [(True, IN_PLACE), (False, "wrote [0-9]+ and [0-9]+ as the group entry 'total' for two parameters")],
)
def test_one_that_does_so_later_is_found_out_then(in_place: bool, what: str) -> None:
    model = build()
    optimizer = OptimizerInBackward(
        model.block.parameters(), Coupled, bucket_bytes=0, in_place=in_place, since=7, lr=0.1
    )
    with pytest.raises(RuntimeError, match=f"^Coupled {what}, so its parameters .*: use it as a plain optimizer$"):  # noqa: PT012
        for iteration in range(8):
            iterate(model, optimizer, iteration)
    assert optimizer.param_groups[0]["params"] == list(model.block.parameters())


class ClipsAll(torch.optim.SGD):
    """Clips to a total norm of its own, which no group shows."""

    def step(self, closure: Any = None) -> None:
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        super().step()


class HardlyCoupled(torch.optim.SGD):
    """So little that single precision does not show it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p in parameters:
            p.mul_(1 - 1e-11 * len(parameters))


class WhereTheyAreTiny(torch.optim.SGD):
    """Where a gradient is small it goes as far as there are parameters."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p in parameters:
            assert p.grad is not None
            p.sub_(len(parameters) * (p.grad.abs() - 1e-5).abs().lt(9e-6))


class OnceTrainIsCalled(ClipsAll):
    """Steps after `train()` only."""

    training = False

    def train(self) -> None:
        self.training = True

    def step(self, closure: Any = None) -> None:
        assert self.training
        super().step()


class CountsParameters(torch.optim.SGD):
    """In its groups, where the updates do not show it."""

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            for _ in group["params"]:
                group["count"] = group.get("count", 0) + 1


class NoSetter(torch.optim.SGD):
    """Shows the groups of another as its own, as wrappers do; those cannot be narrowed."""

    param_groups = property(lambda self: self.another.param_groups)  # type: ignore[assignment]

    def __init__(self, params: Any, **kwargs: Any) -> None:
        self.another = torch.optim.SGD(params, **kwargs)
        self._optimizer_step_pre_hooks = self._optimizer_step_post_hooks = {}  # type: ignore[assignment]
        self.defaults = self.another.defaults

    def step(self, closure: Any = None) -> None:
        self.another.step()


class DrawsNoise(torch.optim.SGD):
    """Adds noise, each time another."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.generator = torch.Generator()
        self.generator.seed()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        for p in (p for group in self.param_groups for p in group["params"]):
            p.add_(torch.randn(p.shape, generator=self.generator))


class Squares(torch.optim.SGD):
    """Takes square matrices only."""

    def step(self, closure: Any = None) -> None:
        if any(p.shape[0] != p.shape[1] for group in self.param_groups for p in group["params"]):
            raise ValueError("not a square")
        super().step()


class UsesTheLastNorm(torch.optim.SGD):
    """Which is of another parameter in a backward, that begins with the last."""

    norm = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        before = self.norm
        super().step()
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.mul_(1 - 0.01 / (1 + before))
            self.norm = float(p.grad.norm())


class CountsDeepInside(torch.optim.SGD):
    """In a container, and heeds it later only."""

    place = ""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.info: Any = {"calls": [0]}
        if self.place == "state":
            self.info = self.state["info"] = {"calls": [0]}  # type: ignore[index]
        if self.place == "group":
            self.info = self.param_groups[0].setdefault("info", {"calls": [0]})
        if self.place == "tensor":
            self.info = torch.zeros(3)

    def step(self, closure: Any = None) -> None:
        super().step()
        if self.place == "tensor":
            self.info += 1
        else:
            (self.param_groups[0] if self.place == "group" else vars(self))["info"]["calls"][0] += 1


@pytest.mark.parametrize("cls", [ClipsAll, HardlyCoupled, WhereTheyAreTiny, OnceTrainIsCalled])
def test_all_at_once_is_compared_with_one_after_the_other(cls: Any) -> None:
    with pytest.raises(ValueError, match="it updates them otherwise one after the other than all at once; use it"):
        OptimizerInBackward(build().parameters(), cls, lr=0.1)


def test_the_last_first_is_an_order_too() -> None:
    with pytest.raises(ValueError, match="it updates them otherwise one after the other, the last first, than all at"):
        OptimizerInBackward(build().parameters(), UsesTheLastNorm, lr=0.1)


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (CountsParameters, "group entry 'count'"),
        (CountsDeepInside, "attribute 'info'"),
        (type("OfState", (CountsDeepInside,), {"place": "state"}), "state entry 'info'"),
        (type("OfGroup", (CountsDeepInside,), {"place": "group"}), "group entry 'info'"),
        (type("OfTensor", (CountsDeepInside,), {"place": "tensor"}), "attribute 'info'"),
    ],
)
def test_so_is_what_it_keeps(cls: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"it writes another {what} when it updates them one after the other than all"):
        OptimizerInBackward(build().parameters(), cls, lr=0.1)


def test_one_that_raises_where_it_updates_one_alone() -> None:
    model = build()
    message = (
        "it updates all of them at once, but raises where it updates one alone "
        r"\(AttributeError: property 'param_groups' .*\); use it as a plain optimizer$"
    )
    with pytest.raises(ValueError, match=message):
        OptimizerInBackward(model.parameters(), NoSetter, lr=0.1)


class Listens(torch.optim.SGD):
    """Notes what it is given."""

    seen: ClassVar[list[Any]] = []

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.seen.append([(len(group["params"]), group["lr"]) for group in self.param_groups])


def test_it_is_tried_with_groups_like_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    groups = [{"params": [p], "lr": lr} for p, lr in zip(model.block.parameters(), (0.2, 0.3), strict=True)]
    monkeypatch.setattr(Listens, "seen", [])
    OptimizerInBackward([*groups, {"params": [model.scale], "lr": 0.4}], Listens, lr=0.1)
    assert Listens.seen == [[(1, 0.2), (1, 0.3), (1, 0.4)], *[[(2, 0.2), (1, 0.4)]] * 4, *[[(2, 0.2)]] * 2]
    monkeypatch.setattr(Listens, "seen", [])
    odd = [*groups, {"params": [model.scale], "lr": 0.2}]
    OptimizerInBackward(odd, Listens, lr=0.1)
    assert Listens.seen[1:5] == [[(2, 0.2), (1, 0.3)]] * 4  # two that differ
    monkeypatch.setattr(Listens, "seen", [])
    OptimizerInBackward([{"params": model.branch.parameters(), "lr": 0.5}], Listens, lr=0.1)
    assert Listens.seen == [[(2, 0.5)], *[[(2, 0.5), (1, 0.5)]] * 4, *[[(2, 0.5)]] * 2]


class TakesNoGroups(ClipsAll):
    def __init__(self, params: Any, **kwargs: Any) -> None:
        params = list(params)
        assert all(isinstance(p, torch.Tensor) for p in params)
        super().__init__(params, **kwargs)


def test_one_that_takes_no_groups_is_tried_without() -> None:
    with pytest.raises(ValueError, match="it updates them otherwise one after the other than all at once; use it"):
        OptimizerInBackward(build().parameters(), TakesNoGroups, lr=0.1)


@pytest.mark.parametrize("cls", [DrawsNoise, Squares])
def test_what_cannot_be_tried_on_two_small_parameters_is_let_through(cls: Any) -> None:
    OptimizerInBackward(nn.Linear(4, 4, bias=False).parameters(), cls, lr=0.1)


class WithFriends(torch.optim.SGD):
    """Is given what is the user's, and uses it up."""

    built = 0

    def __init__(self, params: Any, friend: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.friend = friend
        type(self).built += 1
        print("built")
        if isinstance(friend, nn.Module):
            friend.register_forward_hook(lambda *_: None)
        if isinstance(friend, torch.Generator):
            torch.rand(1, generator=friend)

    def step(self, closure: Any = None) -> None:
        super().step()
        if isinstance(self.friend, torch.Tensor):
            self.friend += 1
        elif callable(self.friend):
            self.friend("step")


def state_of(friend: Any) -> Any:
    if isinstance(friend, torch.Generator):
        return friend.get_state().tolist()
    if isinstance(friend, nn.Module):
        return len(friend._forward_hooks)
    return friend.tolist() if isinstance(friend, torch.Tensor) else list(friend)


@pytest.mark.parametrize("how", ["class", "partial", "function"])
@pytest.mark.parametrize("kind", [nn.ReLU, torch.Generator, list, lambda: torch.zeros(())])
def test_trying_touches_nothing_of_the_users(
    kind: Any, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(WithFriends, "built", 0)
    friend, alike = kind(), kind()
    if isinstance(friend, torch.Generator):
        friend.manual_seed(0), alike.manual_seed(0)
    given = friend.append if isinstance(friend, list) else friend
    make = {
        "class": WithFriends,
        "partial": partial(WithFriends, friend=given),
        "function": lambda params, **kwargs: WithFriends(params, given, **kwargs),
    }[how]
    OptimizerInBackward(build().parameters(), make, lr=0.1, **({"friend": given} if how == "class" else {}))
    WithFriends(build().parameters(), alike, lr=0.1)
    assert state_of(friend) == state_of(alike)
    assert capsys.readouterr().out == "built\n" * 2
    assert (WithFriends.built > 2) is (isinstance(friend, torch.Tensor) and how != "function")  # tried on a copy


def coupled_from(params: Any, **kwargs: Any) -> torch.optim.Optimizer:
    return ClipsAll(params, **kwargs)


@pytest.mark.parametrize(
    "make",
    [
        coupled_from,
        partial(coupled_from, momentum=0.9),
        partial(ClipsAll, momentum=0.9),
        lambda params, **kwargs: coupled_from(params, **kwargs),
        lambda params, lr, cls=ClipsAll, wanted=torch.float32: cls(params, lr=torch.tensor(lr, dtype=wanted)),
    ],
)
def test_a_function_of_constants_is_tried(make: Any) -> None:
    with pytest.raises(ValueError, match="it updates them otherwise one after the other than all at once; use it"):
        OptimizerInBackward(build().parameters(), make, lr=0.1)


NOTED: list[Any] = []


class Stats:
    calls = 0


def notes_within(what: Any) -> None:
    [NOTED.append(what) for _ in range(1)]


def notes_in_a_function(what: Any) -> None:
    (lambda: NOTED.append(what))()


def counts_in_a_class(what: Any) -> None:
    Stats.calls += 1


def counts_in_a_global(what: Any) -> None:
    global CALLS
    CALLS += 1


CALLS = 0


def logs(what: Any) -> None:
    logging.warning(what)


@pytest.mark.parametrize(
    "friend", [notes_within, notes_in_a_function, counts_in_a_class, counts_in_a_global, logs], ids=lambda f: f.__name__
)
def test_a_function_that_notes_something_is_not_tried(friend: Any, caplog: pytest.LogCaptureFixture) -> None:
    before = len(NOTED), Stats.calls, CALLS
    OptimizerInBackward(build().parameters(), WithFriends, friend=friend, lr=0.1)
    assert (len(NOTED), Stats.calls, CALLS) == before
    assert not caplog.records


class LeavesAtThree(torch.optim.SGD):
    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        if len(self.param_groups[0]["params"]) == 3:
            raise SystemExit("three")


def test_what_leaves_when_it_is_tried_is_let_through() -> None:
    OptimizerInBackward(build().parameters(), LeavesAtThree, lr=0.1)


def test_trying_leaves_the_state_empty() -> None:
    seen: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(1))
    try:
        optimizer = OptimizerInBackward(build().parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    finally:
        handle.remove()
    assert not optimizer.state
    assert not seen


class Draws(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step()
        random.random()
        numpy.random.rand()
        torch.rand(1)


def test_trying_draws_no_random_numbers() -> None:
    def drawn() -> list[Any]:
        return [random.getstate(), list(numpy.random.get_state()[1]), torch.get_rng_state().tolist()]

    before = drawn()
    OptimizerInBackward(build().parameters(), Draws, lr=0.1)
    assert drawn() == before


def test_trying_compiles_nothing() -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    decayed = torch.compile(lambda p: p * 0.9, backend=backend)

    class Compiled(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            super().step()
            for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                p.copy_(decayed(p))

    model = build()
    optimizer = OptimizerInBackward(model.parameters(), Compiled, lr=0.1)
    assert not compiled
    iterate(model, optimizer, 0)
    assert compiled


class Remembers(torch.optim.SGD):
    """In lists of its groups, as RAdam does."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        for group in self.param_groups:
            group.setdefault("buffer", [[None]])

    def step(self, closure: Any = None) -> None:
        super().step()
        for group in self.param_groups:
            group["buffer"][0][0] = group["lr"]


def test_trying_leaves_the_groups_alone() -> None:
    optimizer = OptimizerInBackward(build().parameters(), Remembers, lr=0.1)
    assert optimizer.param_groups[0]["buffer"] == [[None]]


def test_a_factory_over_parameters_of_its_own_is_not_tried_on_them() -> None:
    model = build()
    loss_of(model, 0).backward()
    before = [p.detach().clone() for p in model.parameters()]
    OptimizerInBackward(
        model.parameters(), lambda params, **kwargs: torch.optim.SGD(model.parameters(), **kwargs), lr=0.1
    )
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_under_fake_tensors_nothing_is_tried() -> None:
    with FakeTensorMode():
        OptimizerInBackward(build().parameters(), ClipsAll, lr=0.1)
