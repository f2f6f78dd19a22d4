"""Faults of the calls around the update: ``step(closure)``, ``step()`` and ``zero_grad()`` once more, reading."""

from __future__ import annotations

import random
from typing import Any

import torch

from inbackward.faults.fault import fault
from inbackward.faults.right import Right

# step(closure)


@fault("closure")
class ClosureIgnored(Right):
    """Takes a closure and never calls it."""

    def step(self, closure: Any = None) -> None:
        pass


@fault("closure", what_if="stepped-twice")
class ClosureTwice(Right):
    """Evaluates the closure for the update, and again for the loss that it returns."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
            closure()


@fault("closure")
class RefusesTooLate(Right):
    """Refuses a closure when it has been evaluated."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
            super().step(closure)


@fault("closure", subtle=True)
class RefusesAfterMakingState(Right):
    """Makes ready for the closure what it then refuses to do: only a counter has changed."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("step", torch.tensor(0.0))
        super().step(closure)


@fault("closure", subtle=True)
class RefusesAfterHalvingLr(Right):
    """Halves the lr for the closure that it then refuses."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            for group in self.param_groups:
                group["lr"] /= 2
        super().step(closure)


@fault("closure", subtle=True)
class RefusesAfterDrawing(Right):
    """Draws a random number for the closure that it then refuses."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            random.random()
        super().step(closure)


class Raises(Right):
    """Answers a closure with an exception."""

    error: BaseException

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            raise self.error


@fault("closure", subtle=True)
class RefusesWithoutAWord(Raises):
    """Refuses a closure with an exception that says nothing."""

    error = RuntimeError(" ")


@fault("closure")
class RaisesKeyError(Raises):
    """Answers a closure with a ``KeyError``."""

    error = KeyError("closure")


@fault("closure")
class Exits(Raises):
    """Answers a closure by leaving the process."""

    error = SystemExit("no closures here")


class Stop(BaseException):
    """Not an ``Exception``: an ``except Exception`` around the suite does not see it."""


@fault("closure")
class RaisesBaseException(Raises):
    """Answers a closure with what is no ``Exception``."""

    error = Stop("no closures here")


@fault("plain")
class ExitsInsideBackward(Right):
    """Leaves the process in the middle of a backward."""

    def update(self, p: Any) -> None:
        if p.dim() == 1:
            raise SystemExit(3)
        super().update(p)


# step() and zero_grad() once more


class StepAgain(Right):
    """Tells a further ``step()`` from the one after a backward."""

    fresh = False

    def update(self, p: Any) -> None:
        self.fresh = True
        super().update(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if not self.fresh:
            self.again()
        self.fresh = False

    def again(self) -> None:
        raise NotImplementedError


@fault("extra-step-calls", subtle=True)
class CountsEveryCall(StepAgain):
    """Counts a ``step()`` that has nothing to update."""

    def again(self) -> None:
        for entries in self.state.values():
            if "step" in entries:
                entries["step"] += 1


@fault("extra-step-calls", subtle=True)
class DecaysEveryCall(StepAgain):
    """Decays at a ``step()`` that has nothing to update."""

    def again(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.detach().mul_(1 - 1e-3)


@fault("extra-step-calls")
class StepsOnZeros(StepAgain):
    """Steps on zeros where there is no gradient, as a warm-up of the optimizer state does."""

    def again(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p)
                self.update(p)
                p.grad = None


@fault("extra-step-calls")
class NothingToStep(StepAgain):
    """Takes a ``step()`` that has nothing to update for a mistake."""

    def again(self) -> None:
        raise RuntimeError("no gradient has been seen")


@fault("extra-step-calls", reports=(40,))
class NothingToZero(Right):
    """Is not there before the first backward, and ``None`` has no ``zero_grad()``."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        handle: Any = self.inner if self.state else None
        handle.zero_grad(set_to_none)


@fault("extra-step-calls", subtle=True)
class ZeroGradFills(Right):
    """Fills gradients in where the second ``zero_grad()`` of an iteration finds ``None``."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if self.state.get(p) and self.__dict__.get("zeroed"):
                    p.grad = torch.zeros_like(p)
        self.zeroed = not self.__dict__.get("zeroed", False)


# Reading


@fault("observer", reports=(30,))
class StateDictMakesState(StepsOnZeros):
    """Takes a step on zeros where a state dict is asked for and there is no state yet."""

    def again(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        if not self.state:
            StepsOnZeros.again(self)
        return super().state_dict()


@fault("observer")
class StateDictMovesOut(Right):
    """Gives the caller the momentum itself, and begins a new one."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        for entries in self.state.values():
            for key in ("momentum_buffer", "exp_avg"):
                if key in entries:
                    entries[key] = torch.zeros_like(entries[key])
        return saved


@fault("observer", subtle=True)
class GroupsWithBaseLr(Right):
    """Says of a group the lr that it began with, to the one who reads and to the update."""

    def state_dict(self) -> dict[str, Any]:
        for group in self.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        return super().state_dict()


@fault("observer", subtle=True)
class StateDictNamesItself(Right):
    """Draws a name for every state dict."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "run": int(torch.randint(1 << 30, ()))}
