"""The plain optimizer and the one in backward side by side, whatever happens to both and in whatever order."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from inbackward import OptimizerInBackward
from inbackward.judging.bits import same_bits

# Derandomised: the same examples on every run. Without a database: nothing is left behind.
SETTINGS = settings(
    max_examples=40, stateful_step_count=20, derandomize=True, database=None, deadline=None, print_blob=False
)
# A copy of a schedule does not know the step() that it watches, with plain optimizers as well; torch warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:Seems like .optimizer.step... has been overridden:UserWarning")

ADAMW = torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}
AMSGRAD = torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}
SGD = torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
LATE = ("wide.weight", "wide.bias")  # come into the optimizer by add_param_group; until then they are frozen
FREEZABLE = ("first.weight", "first.bias", "norm.weight", "wide.weight")  # the rest always trains


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.wide, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, wide: bool) -> Tensor:
        x = self.norm(torch.tanh(self.first(x)))
        return self.last(x + self.wide(x) if wide else x)


class Side:
    """One model, its optimizer and its schedule."""

    def __init__(self, make: Any, groups: list[tuple[tuple[str, ...], dict[str, Any]]], trainable: set[str]) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model = Net()
        for name, p in self.model.named_parameters():
            p.requires_grad_(name in trainable)
        self.optimizer = make([self.group(*group) for group in groups])
        self.schedule = StepLR(self.optimizer, step_size=2, gamma=0.5)

    def group(self, names: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
        return {"params": [self.model.get_parameter(name) for name in names], **options}

    def train(self, seed: int, wide: bool) -> Tensor:
        loss = self.backward(seed, wide)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def accumulate(self, seed: int, wide: bool) -> Tensor:
        """A micro-batch that does not step; a plain optimizer needs no telling."""
        with getattr(self.optimizer, "no_step", nullcontext)():
            return self.backward(seed, wide)

    def backward(self, seed: int, wide: bool) -> Tensor:
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        loss: Tensor = self.model(x, wide).square().mean()
        loss.backward()
        return loss.detach()

    def observed(self) -> dict[str, Any]:
        """Parameters, state and groups by name; reading the state creates none."""
        names = {p: n for n, p in self.model.named_parameters()}
        return {
            "parameters": {n: p.detach().clone() for p, n in names.items()},
            "gradients": {n: p.grad.clone() for p, n in names.items() if p.grad is not None},
            "state": {names[p]: dict(entries) for p, entries in self.optimizer.state.items()},
            "groups": [
                {**group, "params": [names[p] for p in group["params"]]} for group in self.optimizer.param_groups
            ],
            "schedule": self.schedule.get_last_lr(),
        }


class SideBySide(RuleBasedStateMachine):
    """Every rule does the same to both sides; after each, everything must agree bit for bit."""

    def __init__(self, candidate: Any) -> None:
        super().__init__()
        self.candidate = candidate

    @initialize(optimizer=st.sampled_from((ADAMW, AMSGRAD, SGD)), two_groups=st.booleans())
    def begin(self, optimizer: Any, two_groups: bool) -> None:
        self.cls, self.options = optimizer
        present = [n for n, _ in Net().named_parameters() if n not in LATE]
        self.groups = [(tuple(present), {})]
        if two_groups:
            self.groups = [(tuple(present[:2]), {"lr": 0.03}), (tuple(present[2:]), {"weight_decay": 0.2})]
        self.trainable = set(present)
        self.standing_by: list[tuple[nn.Module, dict[str, Tensor]]] = []
        self.trained = self.accumulated = False
        self.plain, self.tested = self.sides()

    def sides(self) -> tuple[Side, Side]:
        """Both sides anew, as at the start but for groups that were added and parameters that are frozen now."""
        self.trained = self.accumulated = False
        plain = Side(lambda groups: self.cls(groups, **self.options), self.groups, self.trainable)
        make = self.candidate
        return plain, Side(lambda groups: make(groups, self.cls, **self.options), self.groups, self.trainable)

    def both(self) -> tuple[Side, Side]:
        return self.plain, self.tested

    @rule(seed=st.integers(0, 99), wide=st.booleans())
    def train(self, seed: int, wide: bool) -> None:
        losses = [side.train(seed, wide) for side in self.both()]
        self.trained, self.accumulated = True, False
        assert same_bits(*losses)

    @rule(seed=st.integers(0, 99), wide=st.booleans())
    def accumulate(self, seed: int, wide: bool) -> None:
        losses = [side.accumulate(seed, wide) for side in self.both()]
        self.accumulated = True
        assert same_bits(*losses)

    @precondition(lambda self: self.trained)  # else the schedule warns
    @rule()
    def step_the_schedule(self) -> None:
        for side in self.both():
            side.schedule.step()

    @rule(index=st.integers(0, 2), lr=st.sampled_from((0.0, 0.003, 0.05)))
    def edit_the_lr(self, index: int, lr: float) -> None:
        self.edit(index, "lr", lr)

    @rule(index=st.integers(0, 2), large=st.booleans())
    def edit_another_hyperparameter(self, index: int, large: bool) -> None:
        if self.cls is torch.optim.SGD:
            self.edit(index, "momentum", 0.8 if large else 0.4)
        else:
            self.edit(index, "betas", (0.8, 0.9) if large else (0.5, 0.6))

    def edit(self, index: int, name: str, value: Any) -> None:
        for side in self.both():
            side.optimizer.param_groups[index % len(self.groups)][name] = value

    @precondition(lambda self: not any(names == LATE for names, _ in self.groups))
    @rule(lr=st.sampled_from((0.02, 0.2)))
    def add_a_group(self, lr: float) -> None:
        self.groups.append((LATE, {"lr": lr}))
        for side in self.both():
            for name in LATE:
                side.model.get_parameter(name).requires_grad_(True)
            side.optimizer.add_param_group(side.group(LATE, {"lr": lr}))
        self.trainable |= set(LATE)

    @precondition(lambda self: not self.accumulated)  # frozen between backward and step is left out (freeze-later)
    @rule(name=st.sampled_from(FREEZABLE))
    def freeze(self, name: str) -> None:
        for side in self.both():
            side.model.get_parameter(name).requires_grad_(False)
        self.trainable.discard(name)

    @rule(name=st.sampled_from(FREEZABLE))
    def unfreeze(self, name: str) -> None:
        if not any(name in names for names, _ in self.groups):
            return
        for side in self.both():
            side.model.get_parameter(name).requires_grad_(True)
        self.trainable.add(name)

    @rule(cross=st.booleans())
    def save_and_load_into_new_objects(self, cross: bool) -> None:
        """Each loads its own checkpoint, or the other's."""
        saved = [
            copy.deepcopy((s.model.state_dict(), s.optimizer.state_dict(), s.schedule.state_dict()))
            for s in self.both()
        ]
        self.plain, self.tested = self.sides()
        for side, (model, optimizer, schedule) in zip(self.both(), reversed(saved) if cross else saved, strict=True):
            side.model.load_state_dict(model)
            side.optimizer.load_state_dict(optimizer)
            side.schedule.load_state_dict(schedule)

    @rule()
    def read_the_tested_one(self) -> None:
        """The plain one is left unread: reading must change nothing."""
        optimizer = self.tested.optimizer
        optimizer.state_dict()
        repr(optimizer)
        for p in self.tested.model.parameters():
            optimizer.state.get(p)

    @rule(calls=st.lists(st.sampled_from(("step", "zero_grad")), min_size=1, max_size=3))
    def call_again(self, calls: list[str]) -> None:
        for side in self.both():
            for call in calls:
                getattr(side.optimizer, call)()
        self.accumulated &= "zero_grad" not in calls

    @rule()
    def copy_all_and_go_on_with_the_copy(self) -> None:
        for side in self.both():
            model = side.model
            self.standing_by.append((model, {n: p.detach().clone() for n, p in model.named_parameters()}))
            side.model, side.optimizer, side.schedule = copy.deepcopy((model, side.optimizer, side.schedule))
        self.trained = False

    @invariant()
    def everything_agrees(self) -> None:
        plain, tested = (side.observed() for side in self.both())
        assert not difference(tested, plain), difference(tested, plain)

    @invariant()
    def what_was_copied_stands_still(self) -> None:
        for model, before in self.standing_by:
            now = {n: p.detach() for n, p in model.named_parameters()}
            assert not difference(now, before, " of the original"), difference(now, before, " of the original")


def difference(a: Any, b: Any, where: str = "") -> str:
    """Where the first value stands in which ``a`` is not ``b`` bit for bit, and what either has there; or ``""``."""
    if isinstance(b, dict):
        if a.keys() != b.keys():
            return f"{where.strip()}: has {sorted(a)}, not {sorted(b)}"
        return next(filter(None, (difference(a[key], b[key], f"{where} {key}") for key in b)), "")
    if isinstance(b, list) and len(a) == len(b):
        return next(filter(None, (difference(x, y, f"{where} {i}") for i, (x, y) in enumerate(zip(a, b)))), "")
    same = same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else not isinstance(b, Tensor) and a == b
    return "" if same else f"{where.strip()}: {a}, not {b}"


def test_the_two_agree_whatever_happens_to_both() -> None:
    run_state_machine_as_test(lambda: SideBySide(OptimizerInBackward), settings=SETTINGS)


class KeepsItsLrAfterLoading(OptimizerInBackward):
    """Loads the state and leaves the groups as they were built."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        built = [group["lr"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, lr in zip(self.param_groups, built, strict=True):
            group["lr"] = lr


class CountsAReading(OptimizerInBackward):
    """A checkpoint counts as a step of whatever counts its steps."""

    def state_dict(self) -> dict[str, Any]:
        for entries in self.state.values():
            if "step" in entries:
                entries["step"] += 1
        return super().state_dict()


class ForgetsWhatIsThawed(OptimizerInBackward):
    """A parameter that trains again begins with fresh state."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for p in [p for group in self.param_groups for p in group["params"] if not p.requires_grad]:
            self.state.pop(p, None)


class StepsAtEveryMicroBatch(OptimizerInBackward):
    """Does not listen when it is told to wait."""

    def no_step(self) -> Any:
        return nullcontext()


@pytest.mark.parametrize(
    "candidate", [KeepsItsLrAfterLoading, CountsAReading, ForgetsWhatIsThawed, StepsAtEveryMicroBatch]
)
def test_a_mistake_is_found(candidate: Any) -> None:
    # That it is found will do: shrinking takes a minute. What is drawn depends on the modules that other tests have
    # imported, so there are more examples than any mistake has needed yet; the first to fail ends it.
    found = settings(SETTINGS, phases=[Phase.generate], max_examples=600)
    with pytest.raises(AssertionError, match=r"^(groups|state|parameters|gradients)\b"):
        run_state_machine_as_test(lambda: SideBySide(candidate), settings=found)
