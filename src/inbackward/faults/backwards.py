"""Faults of what else a backward may be: somebody else's, interrupted, scaled, or torn into segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inbackward import Implementation
from inbackward.faults.fault import fault
from inbackward.faults.right import AtStep, Carried, Right
from inbackward.training import Moment


class OwnBackward(AtStep):
    """Has a backward of its own, beside which the loop calls ``step()`` where there is no scaler."""

    optimizer_in_backward = Carried(lambda cls: Implementation.drop_in(cls, backward=cls.backward))

    def backward(self, loss: Any, moment: Moment) -> None:
        raise NotImplementedError


@fault("accumulation", what_if="last-micro-batch-only")
class LastMicroBatchOnly(OwnBackward):
    """Throws away the gradients of every micro-batch but the last."""

    def backward(self, loss: Any, moment: Moment) -> None:
        loss.backward()
        if not moment.last:
            self.inner.zero_grad()


@fault("grad-scaler", what_if="loss-scale-kept")
class LossScaleKept(OwnBackward):
    """Steps with gradients from which the loss scale has not been removed."""

    def backward(self, loss: Any, moment: Moment) -> None:
        (loss if moment.scaler is None else moment.scaler.scale(loss)).backward()
        if moment.scaler is not None and moment.last:
            self.step()


@fault("grad-scaler", subtle=True)
class CountsSkippedSteps(AtStep):
    """Counts an iteration that the scaler skips for an overflow."""

    stepped = False

    def step(self, closure: Any = None) -> Any:
        self.stepped = True
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for entries in self.state.values() if not self.stepped else ():
            if "step" in entries:
                entries["step"] += 1
        self.stepped = False


class Pausable(Right):
    """Does not train in a backward inside ``with optimizer.pause():``."""

    optimizer_in_backward = Carried(lambda cls: Implementation.drop_in(cls, pause=cls.pause))
    paused = False

    def on_gradient(self, p: Any) -> None:
        if not self.paused:
            super().on_gradient(p)

    @contextmanager
    def pause(self) -> Iterator[None]:
        self.paused = True
        yield
        self.paused = False


@fault("foreign-backward", subtle=True)
class PausesOnce(Pausable):
    """Can be paused for one backward, and no other after it."""

    pauses = 0

    def on_gradient(self, p: Any) -> None:
        super().on_gradient(p) if self.pauses < 2 else Right.on_gradient(self, p)

    @contextmanager
    def pause(self) -> Iterator[None]:
        self.pauses += 1
        with super().pause():
            yield


@fault("foreign-backward", subtle=True)
class PausesMatrices(Pausable):
    """Pauses the updates of matrices, which are all that it thinks of."""

    def on_gradient(self, p: Any) -> None:
        super().on_gradient(p) if p.dim() > 1 else Right.on_gradient(self, p)


@fault("checkpointed-activations")
class StepsAtEveryEnd(Right):
    """Steps what has a gradient whenever a backward ends, and reentrant checkpointing runs one for every segment."""

    def on_gradient(self, p: Any) -> None:
        task = torch._C._current_graph_task_id()
        queued = self.__dict__.setdefault("queued", set())
        if task not in queued:
            queued.add(task)
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.step_all)

    def step_all(self) -> None:
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is not None:
                self.update(p)


@fault("stale-read", subtle=True)
class TheLastAtOnce(AtStep):
    """Updates the last parameter of all inside the backward, and the others in ``step()``."""

    def watch(self, parameters: list[Any]) -> None:
        Right.watch(self, parameters[-1:])


@fault("interrupted-backward", subtle=True)
class RemembersWhatItDid(Right):
    """Steps nothing twice in one backward, and forgets what it has stepped at the end, to which some never come."""

    def on_gradient(self, p: Any) -> None:
        done = self.__dict__.setdefault("done", set())
        if not done:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(done.clear)
        if p not in done:
            super().on_gradient(p)
        done.add(p)
        self.free(p)


@fault("gradient-access", subtle=True)
class StepsInTensorHooks(Right):
    """Steps in tensor hooks, which ``torch.autograd.grad`` calls as well."""

    def watch(self, parameters: list[Any]) -> None:
        self.hooks += [p.register_hook(partial(self.given, p)) for p in parameters if p.requires_grad]

    def given(self, p: Any, gradient: Tensor) -> None:
        p.grad = gradient
        self.update(p)
        self.free(p)


@fault("gradient-hooks")
class RemovesHooks(Right):
    """Removes the hooks that it finds on a parameter, for fear of those of an earlier instance."""

    def watch(self, parameters: list[Any]) -> None:
        for p in parameters:
            for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks):
                (hooks if hooks is not None else {}).clear()
        super().watch(parameters)
