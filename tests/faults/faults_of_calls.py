"""Faults of the calls around the update: ``step(closure)``, ``step()`` and ``zero_grad()`` once more, reading."""

from __future__ import annotations

import random
from typing import Any

import torch
from tests.faults.fault import Fault
from tests.shapes.mine import Mine
from torch import Tensor

# step(closure)


class ClosureIgnored(Mine):
    def step(self, closure: Any = None) -> None:
        pass


class ClosureTwice(Mine):
    """Evaluates the closure for the update, and again for the loss that it returns."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
            closure()


class RefusesTooLate(Mine):
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
            super().step(closure)


class RefusesAfterMakingState(Mine):
    """Makes ready for the closure what it then refuses to do: only a counter has changed."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("step", torch.tensor(0.0))
        super().step(closure)


class Raises(Mine):
    error: BaseException

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            raise self.error


class RefusesAfterHalvingLr(Mine):
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            for group in self.param_groups:
                group["lr"] /= 2
        super().step(closure)


class RefusesAfterDrawing(Mine):
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            random.random()
        super().step(closure)


class RefusesWithoutAWord(Raises):
    error = RuntimeError(" ")


class RaisesKeyError(Raises):
    error = KeyError("closure")


class Exits(Raises):
    error = SystemExit("no closures here")


class Stop(BaseException):
    """Not an ``Exception``: an ``except Exception`` around the suite does not see it."""


class RaisesBaseException(Raises):
    error = Stop("no closures here")


class ExitsInsideBackward(Mine):
    def update(self, p: Tensor) -> None:
        if p.dim() == 1:
            raise SystemExit(3)
        super().update(p)


# step() and zero_grad() once more


class StepAgain(Mine):
    """Tells a further ``step()`` from the one after a backward."""

    fresh = False

    def update(self, p: Tensor) -> None:
        self.fresh = True
        super().update(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if not self.fresh:
            self.again()
        self.fresh = False

    def again(self) -> None:
        raise NotImplementedError


class CountsEveryCall(StepAgain):
    def again(self) -> None:
        for entries in self.state.values():
            if "step" in entries:
                entries["step"] += 1


class DecaysEveryCall(StepAgain):
    def again(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.detach().mul_(1 - 1e-3)


class StepsOnZeros(StepAgain):
    """Without a gradient it steps on zeros, as a warm-up of the optimizer state does."""

    def again(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p)
                self.update(p)
                p.grad = None


class NothingToStep(StepAgain):
    def again(self) -> None:
        raise RuntimeError("no gradient has been seen")


class ZeroGradFills(Mine):
    """The second ``zero_grad()`` of an iteration finds ``None`` and fills it in."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if self.state.get(p) and self.__dict__.get("zeroed"):
                    p.grad = torch.zeros_like(p)
        self.zeroed = not self.__dict__.get("zeroed", False)


# Reading


class StateDictMakesState(Mine):
    """A state dict must have state, so it takes a step on zeros where there is none yet."""

    def state_dict(self) -> dict[str, Any]:
        if not self.state:
            StepsOnZeros.again(self)  # type: ignore[arg-type]
        return super().state_dict()


class StateDictMovesOut(Mine):
    """The caller gets the momentum itself, and it starts anew here."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        for entries in self.state.values():
            for key in ("momentum_buffer", "exp_avg"):
                if key in entries:
                    entries[key] = torch.zeros_like(entries[key])
        return saved


class GroupsWithBaseLr(Mine):
    """A group that is read says the lr that it began with, to the one who reads and to the update."""

    def state_dict(self) -> dict[str, Any]:
        for group in self.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        return super().state_dict()


class StateDictNamesItself(Mine):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "run": int(torch.randint(1 << 30, ()))}


TOO_LATE = "RuntimeError: step() takes no closure: the update is done inside backward(), but only after"
LATE = f"{TOO_LATE} numbers had changed"

FAULTS = [
    Fault(ClosureIgnored, "closure", "at-first-adamw", "iteration 0, loss "),
    Fault(ClosureIgnored, "closure", "later-sgd", "iteration 2, loss ", first={"loss": 2, "parameter": 2}),
    Fault(ClosureTwice, "closure", "later-sgd", "iteration 2, "),
    Fault(RefusesTooLate, "closure", "at-first-sgd", LATE, verdict="broken"),
    Fault(RefusesTooLate, "closure", "later-adamw", LATE, verdict="broken"),
    Fault(RefusesAfterMakingState, "closure", "at-first-adamw", LATE, verdict="broken"),
    Fault(RefusesAfterHalvingLr, "closure", "later-adamw", f"{TOO_LATE} hyperparameters had changed", verdict="broken"),
    Fault(
        RefusesAfterHalvingLr, "closure", "at-first-sgd", f"{TOO_LATE} hyperparameters had changed", verdict="broken"
    ),
    Fault(RefusesAfterDrawing, "closure", "later-sgd", f"{TOO_LATE} random numbers were drawn", verdict="broken"),
    Fault(RefusesWithoutAWord, "closure", "at-first-adamw", "RuntimeError: ", verdict="broken"),
    Fault(RaisesKeyError, "closure", "at-first-adamw", "KeyError: 'closure'", verdict="broken"),
    Fault(Exits, "closure", "later-adamw", "SystemExit: no closures here", verdict="broken"),
    Fault(RaisesBaseException, "closure", "later-adamw", "Stop: no closures here", verdict="broken"),
    Fault(ExitsInsideBackward, "plain", "one-layer-adamw", "SystemExit: 3", verdict="broken"),
    Fault(CountsEveryCall, "extra-step-calls", "after-step-adamw", "iteration 0, state ", first={"parameter": 1}),
    Fault(DecaysEveryCall, "extra-step-calls", "before-the-first-backward-sgd", "iteration 0, loss "),
    Fault(DecaysEveryCall, "extra-step-calls", "before-a-later-backward-adamw", "iteration 2, loss "),
    Fault(StepsOnZeros, "extra-step-calls", "after-twice-each-sgd", "iteration 0, parameter "),
    Fault(NothingToStep, "extra-step-calls", "before-the-first-backward-adamw", "RuntimeError: no ", verdict="broken"),
    Fault(ZeroGradFills, "extra-step-calls", "after-zero-grad-adamw", "iteration 0, gradient "),
    Fault(StateDictMakesState, "observer", "state-dict-at-first-adamw", "iteration 0, ", first={"state": 0}),
    Fault(StateDictMovesOut, "observer", "all-every-iteration-sgd", "iteration 1, parameter "),
    Fault(GroupsWithBaseLr, "observer", "all-under-warm-up-adamw", "iteration 0, parameter "),
    Fault(StateDictNamesItself, "observer", "state-dict-at-first-sgd", "iteration 0, rng "),
]
