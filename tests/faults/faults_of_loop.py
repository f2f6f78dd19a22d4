"""Faults of the calls around the update, of random numbers, and of what stands between backward and step."""

from __future__ import annotations

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


LATE = "RuntimeError: step() takes no closure: the update is done inside backward(), but only after numbers had changed"

FAULTS = [
    Fault(ClosureIgnored, "closure", "at-first-adamw", "iteration 0, loss "),
    Fault(ClosureIgnored, "closure", "later-sgd", "iteration 2, loss ", first={"loss": 2, "parameter": 2}),
    Fault(ClosureTwice, "closure", "later-sgd", "iteration 2, "),
    Fault(RefusesTooLate, "closure", "at-first-sgd", LATE, verdict="broken"),
    Fault(RefusesTooLate, "closure", "later-adamw", LATE, verdict="broken"),
    Fault(RefusesAfterMakingState, "closure", "at-first-adamw", LATE, verdict="broken"),
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
    Fault(EveryUpdateIsAStep, "step-hooks", "counted-adamw", "iteration 0, observed global pre step hooks fired: 13; "),
    Fault(with_model(GradientBeforeTheUsersHooks), "gradient-hooks", "scale-all-sgd", "iteration 0, parameter "),
    Fault(with_model(NoGradientUnderCompile), "compiled-model", "layers-sgd", "AttributeError: ", verdict="broken"),
    Fault(FillsWithZeros, "gradient-access", "read-sgd", "iteration 1, gradient "),
]
