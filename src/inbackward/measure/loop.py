"""A training loop as a user of an implementation writes it, on tensors real or fake."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from inbackward.measure.memory import MemoryCurve
from inbackward.measure.outline import layers
from inbackward.measure.setup import Setup
from inbackward.measure.watch import MemoryWatch
from inbackward.training import Implementation, Moment, local
from inbackward.training.implementation import ParameterGroups
from inbackward.training.shapes import state_tensors

PLAIN = Implementation(build=lambda model, groups, cls, kwargs: cls(groups, **kwargs), name="plain")


class Loop:
    """Forward and backward of each micro-batch, ``step()``, ``zero_grad()``.

    Args:
        model: in its final form.
        implementation: ``PLAIN`` is the usual loop.

    Raises:
        ValueError: the implementation spreads models in a way of its own, and the strategy asks for it.
    """

    def __init__(self, model: nn.Module, setup: Setup, implementation: Implementation) -> None:
        if implementation.wrap and setup.strategy != "single":
            own = f"{implementation.name or 'the implementation'} has its own wrap, which is not followed here"
            raise ValueError(f"{own}; measure it under the strategy 'single', or your own loop by MemoryWatch")
        self.model, self.setup, self.implementation = model, setup, implementation
        self._device = next(model.parameters()).device
        make, kwargs = setup.optimizer_cls, setup.kwargs()
        groups = ParameterGroups([{"params": list(model.parameters())}])
        self.handle = implementation.build(model, groups, make, kwargs)
        carrier = make([torch.zeros(1, 1, device=self._device, requires_grad=True)], **kwargs)
        self._hyperparameters = tuple({k: v for k, v in g.items() if k != "params"} for g in carrier.param_groups)

    def iterate(self) -> None:
        for left in reversed(range(self.setup.micro_batches)):
            loss = self._loss() / self.setup.micro_batches
            if self.implementation.backward is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self.implementation.backward(self.handle, loss, Moment(groups=self._hyperparameters, last=not left))
        for method in ("step", "zero_grad"):
            getattr(self.handle, method, _nothing)()

    def state(self) -> Iterable[Tensor]:
        """The tensors of the optimizer's state, as far as the implementation shows them."""
        shape = self.implementation.state
        return state_tensors(shape(self.handle, self.model) if shape else self.handle)

    def close(self) -> None:
        if self.implementation.close:
            self.implementation.close(self.handle, self.model)
        else:
            getattr(self.handle, "close", _nothing)()

    def _loss(self) -> Tensor:
        shape = self.setup.batch_size, self.setup.sequence_length
        tokens, targets = (torch.zeros(shape, dtype=torch.int64, device=self._device) for _ in range(2))
        output = self.model(tokens)
        logits: Tensor = getattr(output, "logits", output)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def prepare(build: Callable[[], nn.Module], setup: Setup, device: str) -> nn.Module:
    """The model on a device, each layer checkpointed where the setup says so.

    Raises:
        TypeError, ValueError: there is no module, or nothing to train.
    """
    with torch.device(device):
        model = build()
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is {model!r:.80}; build must return an nn.Module")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"no parameter of the {type(model).__name__} requires a gradient; there is nothing to train")
    model.to(device, setup.dtype)
    if setup.activation_checkpointing:
        for layer in layers(model).values():
            layer.forward = partial(_checkpointed, layer.forward)
    return model


def curve_of(model: nn.Module, setup: Setup, implementation: Implementation) -> MemoryCurve:
    """The memory of an iteration in the middle of training: one for the optimizer's state comes before it."""
    with MemoryWatch() as watch:
        if setup.strategy == "ddp":
            model = DistributedDataParallel(model, init_sync=False)
        watch.follow(model)
        loop = Loop(model, setup, implementation)
        if isinstance(model, DistributedDataParallel) and dist.get_backend() == "fake":
            with suppress(RuntimeError):  # the implementation has a hook of its own
                model.register_comm_hook(None, _sum_of_one)
        try:
            for _ in range(2 if setup.strategy == "ddp" else 1):  # DDP makes its buckets anew in the second
                loop.iterate()
            return watch.record(loop.iterate, loop.state)
        finally:
            loop.close()


def _sum_of_one(_, bucket):  # type: ignore[no-untyped-def]
    """DDP's all-reduce, which is in place, where nobody else is there to answer; DDP compares annotations."""
    answer: torch.futures.Future[Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer


def layer_bytes(model: nn.Module) -> tuple[int, ...]:
    """The bytes of the gradients of each layer, on this rank."""
    return tuple(
        sum(local(p).nbytes for p in layer.parameters() if p.requires_grad) for layer in layers(model).values()
    )


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _nothing() -> None:
    pass
