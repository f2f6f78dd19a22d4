"""Faults of random numbers, of several backwards and optimizers, and of what stands between backward and step."""

from __future__ import annotations

import copy
import weakref
from typing import Any, ClassVar

import torch
from tests.faults.fault import Fault
from tests.faults.faults_of_memory import FillsWithZeros
from tests.faults.faults_of_parameters import KnowsTheModel, with_model
from tests.shapes.mine import STEPPED_BY, AtStep, Mine
from torch import Tensor, nn

from inbackward import Implementation
from inbackward.training import Moment

# Random numbers


class Draws(Mine):
    def update(self, p: Tensor) -> None:
        torch.rand(())
        super().update(p)


class DrawsForLargeMatrices(Mine):
    """Draws a sketch where one is worth it: for the embedding and the head."""

    def update(self, p: Tensor) -> None:
        if p.numel() > 8000:
            torch.randn(4, p.shape[-1])
        super().update(p)


class DrawsAtConstruction(Mine):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sketch = torch.randn(4)


class Reseeds(Mine):
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        torch.manual_seed(0)


# Several backwards, and what stands between backward and step


class DividesByItsBackwards(AtStep):
    """Takes the mean over the micro-batches, of losses that the loop has divided already."""

    def watch(self, parameters: list[Tensor]) -> None:
        Mine.watch(self, parameters)

    def on_gradient(self, p: Tensor) -> None:
        counts = self.__dict__.setdefault("counts", {})
        counts[p] = counts.get(p, 0) + 1

    def update(self, p: Tensor) -> None:
        p.grad.div_(self.counts.pop(p, 1))
        super().update(p)


class FirstBackwardOnly(Mine):
    """Updates at the first gradient since ``zero_grad()`` and throws away the others."""

    def update(self, p: Tensor) -> None:
        done = self.__dict__.setdefault("done", set())
        if p not in done:
            super().update(p)
        done.add(p)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.__dict__.pop("done", None)


def clips_each(handle: Any, loss: Tensor, moment: Moment) -> Tensor:
    """Each parameter's own norm, where the norm over all was asked for; the norm returned is right."""
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [p for group in handle.param_groups for p in group["params"] if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters])
    for p in parameters if moment.last else ():
        nn.utils.clip_grad_norm_([p], moment.max_norm or float("inf"))
    return norm


class StepsWhenAllHaveFired(Mine):
    """Counts hooks to know the last one; after an interrupted backward the count is off."""

    def on_gradient(self, p: Tensor) -> None:
        waiting = self.__dict__.setdefault("waiting", [])
        waiting.append(p)
        if len(waiting) == sum(len(group["params"]) for group in self.param_groups):
            for q in waiting:
                if q.grad is not None:
                    super().on_gradient(q)
            waiting.clear()


class TheLastOneBuilt(Mine):
    """The hook closes over a name that the next optimizer takes."""

    built: ClassVar[list[weakref.ref[Mine]]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.built[:] = [weakref.ref(self)]

    def on_gradient(self, p: Tensor) -> None:
        last = self.built[0]()
        assert isinstance(last, Mine)
        Mine.on_gradient(last, p)


class FirstComeFirstServed(Mine):
    """A parameter that is watched already keeps its hook, and the old optimizer its parameter."""

    def watch(self, parameters: list[Tensor]) -> None:
        super().watch([p for p in parameters if STEPPED_BY.get(p, lambda: None)() is None])


class CopiesAreTheOriginal(Mine):
    def __deepcopy__(self, memo: Any) -> CopiesAreTheOriginal:
        return self


class CopiesShare(AtStep):
    """A copy has parameters and groups of its own, and the original's state."""

    def __deepcopy__(self, memo: Any) -> CopiesShare:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        groups = [{**g, "params": [copy.deepcopy(p, memo) for p in g["params"]]} for g in self.param_groups]
        AtStep.__init__(twin, groups, type(self.inner))
        for p, entries in self.state.items():
            twin.state[copy.deepcopy(p, memo)] = self.shared(entries)
        return twin

    def shared(self, entries: dict[str, Any]) -> dict[str, Any]:
        return entries


class CopiesShareTensors(CopiesShare):
    def shared(self, entries: dict[str, Any]) -> dict[str, Any]:
        return dict(entries)


class EveryUpdateIsAStep(Mine):
    """The inner optimizer's ``step()`` fires torch's global step hooks, once a parameter."""

    def update(self, p: Tensor) -> None:
        groups = self.inner.param_groups
        self.inner.param_groups = [self.narrowed(g, p) for g in groups if any(q is p for q in g["params"])]
        self.inner.step()
        self.inner.param_groups = groups


class GradientBeforeTheUsersHooks(Mine):
    """Takes the gradient in a tensor hook of its own, before the user's have changed it."""

    def __init__(self, model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(groups, optimizer_cls, **kwargs)
        self.taken: dict[Tensor, Tensor] = {}
        for p in model.parameters():
            users = dict(p._backward_hooks or {})
            if users:
                p._backward_hooks.clear()
                p.register_hook(lambda g, p=p: self.taken.__setitem__(p, g.clone()))
                p._backward_hooks.update(users)

    def update(self, p: Tensor) -> None:
        p.grad = self.taken.pop(p, p.grad)
        super().update(p)


class NoGradientUnderCompile(KnowsTheModel):
    """Reads ``.grad`` in a hook that a compiled layer's graph runs before it has set any."""

    def __init__(self, model: nn.Module, *args: Any) -> None:
        super().__init__(model, *args)
        self.compiled = any(module._compiled_call_impl for module in model.modules())

    def update(self, p: Tensor) -> None:
        super().update(p)
        p.grad = None if self.compiled else p.grad
        p.grad.zero_()


FAULTS = [
    Fault(Draws, "rng", "no-dropout-adamw", "iteration 0, rng ", first={"rng": 0}),
    Fault(Draws, "rng", "dropout-sgd", "iteration 0, rng ", first={"rng": 0, "loss": 1, "parameter": 1}),
    Fault(DrawsForLargeMatrices, "rng", "convolution-dropout-sgd", "iteration 0, rng "),
    Fault(DrawsAtConstruction, "rng", "heavy-dropout-adamw", "iteration 0, loss "),
    Fault(Reseeds, "rng", "dropout-adamw", "iteration 0, rng ", first={"loss": 1}),
    Fault(Mine, "accumulation", "2-micro-batches-adamw", "iteration 0, early ", right=AtStep),
    Fault(DividesByItsBackwards, "accumulation", "3-micro-batches-sgd", "iteration 0, parameter ", right=AtStep),
    Fault(DividesByItsBackwards, "accumulation", "shorter-last-window-adamw", "iteration 0, ", right=AtStep),
    Fault(Mine, "global-clip", "always-acts-sgd", "iteration 0, parameter ", right=AtStep, first={"observed": 0}),
    Fault(Mine, "global-clip", "never-acts-adamw", "iteration 0, observed total norm", right=AtStep),
    Fault(
        Implementation.drop_in(AtStep, backward=clips_each, name="clips_each"),
        "global-clip",
        "two-groups-sgd",
        "iteration 0, parameter ",
        right=AtStep,
    ),
    Fault(Mine, "grad-scaler", "scaled-sgd", "AssertionError: No inf checks", verdict="broken", right=AtStep),
    Fault(Mine, "two-backwards", "two-graphs-adamw", "iteration 1, early ", right=AtStep),
    Fault(FirstBackwardOnly, "two-backwards", "two-graphs-sgd", "iteration 1, early ", right=AtStep),
    Fault(Mine, "foreign-backward", "skipped-sgd", "iteration 1, loss ", right=AtStep),
    Fault(Mine, "foreign-backward", "through-adamw", "iteration 1, loss ", right=AtStep),
    Fault(Mine, "stale-read", "head-read-last-adamw", "iteration 0, state embedding", right=AtStep),
    Fault(Mine, "checkpointed-activations", "reentrant-shared-adamw", "iteration 0, parameter ", right=AtStep),
    Fault(StepsWhenAllHaveFired, "interrupted-backward", "late-adamw", "iteration "),
    Fault(TheLastOneBuilt, "two-optimizers", "model-sgd", "iteration 0, parameter "),
    Fault(TheLastOneBuilt, "two-optimizers", "parts-adamw", "iteration 0, parameter "),
    Fault(FirstComeFirstServed, "re-created", "held-sgd", "iteration 2, parameter "),
    Fault(CopiesAreTheOriginal, "deepcopy", "deepcopy-sgd", "iteration 2, parameter "),
    Fault(CopiesShare, "deepcopy", "deepcopy-sgd", "iteration 2, bystander the optimizer of the copy's original"),
    Fault(CopiesShareTensors, "deepcopy", "deepcopy-adamw", "iteration 2, bystander the optimizer of the copy's"),
    Fault(EveryUpdateIsAStep, "step-hooks", "counted-adamw", "iteration 0, observed global pre step hooks fired: 13; "),
    Fault(with_model(GradientBeforeTheUsersHooks), "gradient-hooks", "scale-all-sgd", "iteration 0, parameter "),
    Fault(with_model(NoGradientUnderCompile), "compiled-model", "layers-sgd", "AttributeError: ", verdict="broken"),
    Fault(FillsWithZeros, "gradient-access", "read-sgd", "iteration 1, gradient "),
]
