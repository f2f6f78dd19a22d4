"""Faults of random numbers, of several backwards and optimizers, and of what stands between backward and step."""

from __future__ import annotations

import copy
import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from inbackward import Implementation
from inbackward.faults.fault import fault
from inbackward.faults.parameters import KnowsTheModel
from inbackward.faults.right import STEPPED_BY, AtStep, Carried, Right
from inbackward.training import Moment

# Random numbers


@fault("rng")
class Draws(Right):
    """Draws a random number in every update."""

    def update(self, p: Any) -> None:
        torch.rand(())
        super().update(p)


@fault("rng", subtle=True)
class DrawsForLargeMatrices(Right):
    """Draws a sketch where one is worth it: for the embedding and the head."""

    def update(self, p: Any) -> None:
        if p.numel() > 8000:
            torch.randn(4, p.shape[-1])
        super().update(p)


@fault("rng", subtle=True)
class DrawsAtConstruction(Right):
    """Draws a sketch when it is built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sketch = torch.randn(4)


@fault("rng")
class Reseeds(Right):
    """Seeds the global generator at every step."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        torch.manual_seed(0)


# Several backwards, and what stands between backward and step


@fault("accumulation", name="steps-each-micro-batch", reports=(17,), what_if="stepped-each-micro-batch")
@fault("two-backwards", name="steps-each-backward", reports=(36,), what_if="stepped-each-micro-batch")
@fault("foreign-backward", name="steps-in-a-foreign-backward", reports=("36a",))
@fault("checkpointed-activations", name="steps-each-segment", subtle=True, reports=(16,))
@fault("stale-read", name="steps-before-the-late-read", reports=("36b",))
@fault("global-clip", name="steps-before-the-clip", reports=(9,), what_if="clip-dropped")
@fault("grad-scaler", name="steps-before-the-scaler", reports=(23,))
@fault("dcp", name="no-state-for-dcp", reports=(4,))
class StepsInEveryBackward(Right):
    """Updates as soon as a gradient is there, whatever the backward is for and whatever comes after it."""


@fault("accumulation", subtle=True)
class DividesByItsBackwards(AtStep):
    """Takes the mean over the micro-batches, of losses that the loop has divided already."""

    def watch(self, parameters: list[Tensor]) -> None:
        Right.watch(self, parameters)

    def on_gradient(self, p: Any) -> None:
        counts = self.__dict__.setdefault("counts", {})
        counts[p] = counts.get(p, 0) + 1

    def update(self, p: Any) -> None:
        p.grad.div_(self.__dict__["counts"].pop(p, 1))
        super().update(p)


@fault("two-backwards", subtle=True)
class FirstBackwardOnly(Right):
    """Updates at the first gradient since ``zero_grad()`` and throws away the others."""

    def update(self, p: Any) -> None:
        done = self.__dict__.setdefault("done", set())
        if p not in done:
            super().update(p)
        done.add(p)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.__dict__.pop("done", None)


class Clips(AtStep):
    """Has a backward of its own, which clips."""

    optimizer_in_backward = Carried(lambda cls: Implementation.drop_in(cls, backward=cls.backward))

    def backward(self, loss: Tensor, moment: Moment) -> Tensor | None:
        loss.backward()  # type: ignore[no-untyped-call]
        if moment.max_norm is None:
            return None
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        for some in self.sets(parameters) if moment.last else ():
            nn.utils.clip_grad_norm_(some, moment.max_norm)
        return norm

    def sets(self, parameters: list[Any]) -> list[list[Any]]:
        """The parameters of which the norm is clipped, set by set."""
        raise NotImplementedError


@fault("global-clip", reports=(43,), what_if="clip-per-parameter")
class ClipsEach(Clips):
    """Clips each parameter's own norm, where the norm over all was asked for; the norm returned is right."""

    def sets(self, parameters: list[Any]) -> list[list[Any]]:
        return [[p] for p in parameters]


@fault("global-clip", subtle=True)
class ClipsEachGroup(Clips):
    """Clips the norm of each group on its own, which is right where there is one."""

    def sets(self, parameters: list[Any]) -> list[list[Any]]:
        return [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]


@fault("interrupted-backward")
class StepsWhenAllHaveFired(Right):
    """Counts hooks to know the last one; after an interrupted backward the count is off."""

    def on_gradient(self, p: Any) -> None:
        waiting = self.__dict__.setdefault("waiting", [])
        waiting.append(p)
        if len(waiting) == sum(len(group["params"]) for group in self.param_groups):
            for q in waiting:
                if q.grad is not None:
                    super().on_gradient(q)
            waiting.clear()


@fault("two-optimizers", reports=(10,))
class TheLastOneBuilt(Right):
    """Closes over a name in its hooks that the next optimizer takes."""

    built: ClassVar[list[weakref.ref[Right]]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.built[:] = [weakref.ref(self)]

    def on_gradient(self, p: Any) -> None:
        last = self.built[0]()
        assert isinstance(last, Right)
        Right.on_gradient(last, p)


@fault("re-created", subtle=True)
class FirstComeFirstServed(Right):
    """Leaves a parameter that is watched already to the old optimizer."""

    def watch(self, parameters: list[Tensor]) -> None:
        super().watch([p for p in parameters if STEPPED_BY.get(p, lambda: None)() is None])


@fault("deepcopy", reports=(34,))
class CopiesAreTheOriginal(Right):
    """Is its own copy."""

    def __deepcopy__(self, memo: Any) -> CopiesAreTheOriginal:
        return self


@fault("deepcopy")
class CopiesShare(AtStep):
    """Gives a copy parameters and groups of its own, and the original's state."""

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


@fault("deepcopy", subtle=True)
class CopiesShareTensors(CopiesShare):
    """Gives a copy everything of its own but the tensors of its state."""

    def shared(self, entries: dict[str, Any]) -> dict[str, Any]:
        return dict(entries)


@fault("step-hooks")
class EveryUpdateIsAStep(Right):
    """Calls the inner optimizer's ``step()``, which fires torch's global step hooks once a parameter."""

    def update(self, p: Any) -> None:
        groups = self.inner.param_groups
        self.inner.param_groups = [self.narrowed(g, p) for g in groups if any(q is p for q in g["params"])]
        self.inner.step()
        self.inner.param_groups = groups


@fault("gradient-hooks", subtle=True)
class GradientBeforeTheUsersHooks(Right):
    """Takes the gradient in a tensor hook of its own, before the user's have changed it."""

    optimizer_in_backward = Carried(lambda cls: Implementation(build=cls, name=cls.__name__))

    def __init__(self, model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(groups, optimizer_cls, **kwargs)
        self.taken: dict[Tensor, Tensor] = {}
        for p in list[Any](model.parameters()):
            users = dict(p._backward_hooks or {})
            if users:
                p._backward_hooks.clear()
                p.register_hook(lambda g, p=p: self.taken.__setitem__(p, g.clone()))
                p._backward_hooks.update(users)

    def update(self, p: Any) -> None:
        p.grad = self.taken.pop(p, p.grad)
        super().update(p)


@fault("compiled-model", reports=(33,))
class NoGradientUnderCompile(KnowsTheModel):
    """Reads ``.grad`` in a hook that a compiled layer's graph runs before it has set any."""

    def __init__(self, model: nn.Module, *args: Any) -> None:
        super().__init__(model, *args)
        self.compiled = any(module._compiled_call_impl for module in model.modules())

    def update(self, p: Any) -> None:
        super().update(p)
        p.grad = None if self.compiled else p.grad
        p.grad.zero_()
