"""The hook that a parameter carries, and what it tells about who steps that parameter."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import _engine_run_backward, get_gradient_edge
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from inbackward.optimizer.ready import Ready

# What autograd calls to run the backward of a custom function: a hook below it belongs to a backward within.
_CUSTOM_BACKWARD = BackwardCFunction.apply.__code__
_ENGINE = _engine_run_backward.__code__


class StepHook:
    """Steps a parameter as soon as its gradient is final; one object serves all parameters of an optimizer.

    The hooks on the parameters are the only record of who steps what: there is no registry that could leak or disagree.
    The optimizer is held weakly, so that deleting it stops it. An optimizer that dies takes its hooks along, unless it
    never stepped: then it was most likely dropped by mistake, and the hooks stay to say so at the first backward.

    Attributes:
        ready: takes the further gradients of a backward without asking the optimizer again, which has let it. A hook is
            called among the kernels of a backward, where each line of Python costs several times what it does alone.
    """

    def __init__(self, owner: Optimizer, step: Callable[[Any, Tensor], None]) -> None:
        self._owner = weakref.ref(owner)
        self._step = step
        self._handles: list[RemovableHandle] = []
        self._removed = self._used = False
        self.ready: Ready | None = None
        weakref.finalize(owner, self._owner_died).atexit = False

    @property
    def owner(self) -> Any:
        """The optimizer that steps, or None once it is dead."""
        return self._owner()

    def __call__(self, p: Tensor) -> None:
        ready = self.ready
        if ready is not None and ready.task == torch._C._current_graph_task_id():
            ready.add(p)
            return
        owner = self._owner()
        if self._removed or p.grad is None:  # removed: autograd had already listed this parameter's hooks
            return
        if owner is None:
            self.remove()
            warnings.warn(
                "an OptimizerInBackward was deleted before it updated anything, so backward() leaves the parameters "
                "as they are: keep a reference to it, as in `optimizer = OptimizerInBackward(...)`",
                stacklevel=2,
            )
            return
        self._used = True
        if torch.compiler.is_dynamo_compiling():  # compiled autograd would trace the update, with other roundings
            _untraced(self._step, owner, p)
        else:
            self._step(owner, p)

    def register(self, p: Tensor) -> None:
        """Attach to `p`. torch refuses a frozen one, so it is unfrozen for that moment; the hook survives freezing."""
        trainable = p.requires_grad
        try:
            handle = p.requires_grad_(True).register_post_accumulate_grad_hook(self)  # type: ignore[no-untyped-call]
            self._handles.append(handle)
        finally:
            p.requires_grad_(trainable)

    def remove(self) -> None:
        """Detach from all parameters, for good."""
        self._removed = True
        while self._handles:
            self._handles.pop().remove()

    def _owner_died(self) -> None:
        if self._used:
            self.remove()


@_disable_dynamo
def _untraced(step: Callable[[Any, Tensor], None], owner: Any, p: Tensor) -> None:
    step(owner, p)


def step_hooks(p: Tensor) -> list[StepHook]:
    """The `StepHook` objects on `p`, whoever put them there."""
    return [hook for hook in (p._post_accumulate_grad_hooks or {}).values() if isinstance(hook, StepHook)]


def within_another_backward() -> bool:
    """Whether a backward is running that a custom function's own backward started (reentrant checkpointing).

    A custom function that calls this hook itself, as ``fully_shard`` does after its reduce-scatter, starts none.
    """
    frame: FrameType | None = sys._getframe(1)
    within_engine = False
    while frame is not None:
        if frame.f_code is _ENGINE:
            within_engine = True
        elif frame.f_code is _CUSTOM_BACKWARD and within_engine:
            return True
        frame = frame.f_back
    return False


def takes_part(p: Tensor) -> bool:
    """Whether the backward that runs now will have a gradient for `p`."""
    return p.requires_grad and torch._C._will_engine_execute_node(get_gradient_edge(p).node)


def can_carry_hook(p: Tensor) -> bool:
    """Whether `p` can be trained at all. A lazy parameter cannot before it is materialised, an integer one never."""
    return not is_lazy(p) and (p.is_floating_point() or p.is_complex()) and not p.is_inference()
