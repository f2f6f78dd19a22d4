"""Faults in what becomes of parameters that no gradient has reached: unused ones, and frozen ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inbackward.faults.fault import fault
from inbackward.faults.right import Right


class AfterEachStep(Right):
    """Does something to the parameters that no gradient reached in this iteration."""

    touches_frozen = False

    def update(self, p: Any) -> None:
        super().update(p)
        self.__dict__.setdefault("stepped", set()).add(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        stepped = self.__dict__.pop("stepped", set())
        for group in self.param_groups:
            for p in group["params"]:
                if p not in stepped and p.requires_grad != self.touches_frozen:
                    self.touch(p, group)

    def touch(self, p: Any, group: dict[str, Any]) -> None:
        raise NotImplementedError


@fault("unused")
class UnusedDecayed(AfterEachStep):
    """Decays what had no gradient."""

    def touch(self, p: Any, group: dict[str, Any]) -> None:
        p.detach().mul_(1 - group["lr"] * group["weight_decay"])


@fault("freeze-later", name="frozen-decayed-later")
@fault("frozen", subtle=True)
class FrozenDecayed(UnusedDecayed):
    """Decays what is frozen."""

    touches_frozen = True


@fault("frozen", subtle=True)
class FrozenHasState(AfterEachStep):
    """Makes state for what is frozen."""

    touches_frozen = True

    def touch(self, p: Any, group: dict[str, Any]) -> None:
        self.state[p] = {"step": torch.tensor(0.0)}


@fault("unused", subtle=True)
class UnusedCounted(AfterEachStep):
    """Has one counter for all parameters, as a bias correction of its own would use."""

    def touch(self, p: Any, group: dict[str, Any]) -> None:
        if self.state.get(p):
            self.state[p]["step"] += 1


@fault("unused")
class UnusedSteppedOnZeros(AfterEachStep):
    """Steps on zeros what had no gradient: momentum and decay go on."""

    def touch(self, p: Any, group: dict[str, Any]) -> None:
        p.grad = torch.zeros_like(p)
        self.update(p)
        p.grad = None


@fault("unused", subtle=True)
class UnusedLosesItsState(AfterEachStep):
    """Forgets the state of what had no gradient."""

    def touch(self, p: Any, group: dict[str, Any]) -> None:
        self.state.pop(p, None)


@fault("freeze-later", subtle=True)
class FrozenLosesItsState(UnusedLosesItsState):
    """Forgets the state of what is frozen, and unfreezing begins anew."""

    touches_frozen = True


class KeepsZeros(Right):
    """Makes up in ``step()``, one by one, the zeros that ``zero_grad(set_to_none=False)`` would have left: right."""

    zeros: frozenset[Tensor] = frozenset()
    met: frozenset[Tensor] = frozenset()

    def update(self, p: Any) -> None:
        self.met |= {p}
        super().update(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for p in self.zeros - self.met:
            p.grad = torch.zeros_like(p)
            super().update(p)
            self.free(p)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()
        self.zeros = frozenset() if set_to_none else self.zeroed()
        self.met = frozenset()

    def zeroed(self) -> frozenset[Tensor]:
        return self.zeros | self.met


@fault("unused", subtle=True)
class ZerosForEverything(KeepsZeros):
    """Told to zero gradients, makes them also for what has never had one, which a plain optimizer leaves alone."""

    def zeroed(self) -> frozenset[Tensor]:
        return frozenset(p for group in self.param_groups for p in group["params"])


@fault("unused", subtle=True)
class ZerosOnce(KeepsZeros):
    """Told to zero gradients, leaves what is unused twice alone the second time."""

    def zeroed(self) -> frozenset[Tensor]:
        return self.met


@fault("unused")
class WaitsForAll(Right):
    """Updates when the last gradient is there: never, where one parameter has none."""

    def on_gradient(self, p: Any) -> None:
        all_of_them = [q for group in self.param_groups for q in group["params"] if q.requires_grad]
        if all(q.grad is not None for q in all_of_them):
            for q in all_of_them:
                super().on_gradient(q)
