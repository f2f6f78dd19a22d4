"""One iteration of any training loop, as a curve: what each storage is for, and where in the model time stands."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from inbackward.measure.memory import MemoryCurve, Point
from inbackward.measure.outline import parts
from inbackward.measure.storages import LiveStorages


class MemoryWatch:
    """Measures the memory of one iteration of a loop, whatever the loop is.

        with MemoryWatch() as watch:
            model = build()
            watch.follow(model)  # before the optimizer is built: so it sees each gradient first
            optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW)
            iterate()  # the first iteration makes the optimizer's state
            curve = watch.record(iterate, lambda: tensors_of(optimizer.state))

    What exists before it is entered is not seen, but for what ``follow`` and ``record`` are given.
    """

    def __init__(self) -> None:
        self._storages = LiveStorages()
        self._points: list[Point] = []
        self._label = ""
        self._model = nn.Module()
        self._device: torch.device | None = None  # a GPU, whose allocator is asked too

    def __enter__(self) -> MemoryWatch:
        self._storages.__enter__()
        self._steps = register_optimizer_step_pre_hook(lambda *_: self._at("step"))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._steps.remove()
        self._storages.__exit__(*raised)

    def follow(self, model: nn.Module) -> None:
        """Put hooks on a model in its final form, wrapped or sharded: labels, gradients, gathered parameters."""
        self._model = model
        for name, part in parts(model).items():
            part.register_forward_pre_hook(self._entered(name))
            part.register_forward_hook(self._left(name))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def record(self, iterate: Callable[[], object], state: Callable[[], Iterable[Tensor]] = tuple) -> MemoryCurve:
        """The curve of one call of ``iterate``.

        Args:
            iterate: forward, backward, step and ``zero_grad()``.
            state: gives the tensors of the optimizer's state.
        """
        gc.collect()  # what an earlier iteration left in cycles is not this one's
        tag = self._storages.tag
        tag((*self._model.parameters(), *self._model.buffers()), "parameter")
        tag((p.grad for p in self._model.parameters() if p.grad is not None), "gradient")
        tag(state(), "optimizer")
        if isinstance(self._model, DistributedDataParallel):
            self._storages.tag_rest("gradient")  # its buckets, which stay
        self._device = next((p.device for p in self._model.parameters() if p.device.type == "cuda"), None)
        self._points, self._label = [], "forward"
        self._changed()
        quiet, self._storages.changed = self._storages.changed, self._changed
        if self._device:
            torch.cuda.reset_peak_memory_stats(self._device)
        try:
            iterate()
        finally:
            self._storages.changed = quiet
        return MemoryCurve(self._points, torch.cuda.max_memory_allocated(self._device) if self._device else None)

    def _changed(self) -> None:
        allocated = torch.cuda.memory_allocated(self._device) if self._device else None
        self._points.append(Point(self._label, **self._storages.bytes, allocated=allocated))

    def _at(self, label: str) -> None:
        """Segments that are recomputed in a backward, and steps, are part of it."""
        if label.startswith("backward") or torch._C._current_graph_task_id() == -1:
            self._label = label

    def _entered(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(part: nn.Module, _: Any) -> None:
            self._at(f"forward {name}")
            self._storages.tag(part.parameters(), "parameter")  # fully_shard has just gathered them

        return hook

    def _left(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def came_back(_: Tensor) -> None:
            self._at(f"backward {name}")

        def hook(part: nn.Module, _: Any, output: Any) -> None:
            for value in tree_leaves(output):
                if isinstance(value, Tensor) and value.requires_grad:
                    value.register_hook(came_back)  # type: ignore[no-untyped-call]

        return hook

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._storages.tag([parameter.grad], "gradient")
