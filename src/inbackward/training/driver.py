"""One side of a comparison: a model, what updates it, its schedule, and the record of an iteration.

What is the same for both sides stands here once; the training itself is in ``reference.py`` and ``in_backward.py``.
"""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from inbackward.scenario import AccessGradient, AddGroup, Edit, Interrupt, NonFinite, Recreate, SecondBackward
from inbackward.training.implementation import Implementation
from inbackward.training.parallel import local, synchronised, whole
from inbackward.training.setting import NotRun, Setting, optimizer_class
from inbackward.training.shapes import read_hyperparameters, read_state, state_tensors
from inbackward.training.trace import Record

HOOKS = ("own pre", "own post", "global pre", "global post")


class Driver(ABC):
    """A setting, a handle that updates its model, and what a record needs to know of the iteration.

    Attributes:
        is_candidate: whether this is the side of the implementation under test.
        handle: the plain optimizer, or what the implementation's ``build`` returned.
        bystanders: things that must not change, each with its name and a function that tells whether it has.
    """

    is_candidate = False
    implementation: Implementation | None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.handle: Any = None
        self.schedule: Any = None
        self.scaler = self._make_scaler()
        self.bystanders: list[tuple[str, Callable[[], bool]]] = []
        self.observed: dict[str, Tensor] = {}
        self._gradients_after_backward: frozenset[str] = frozenset()
        self._moved_early: frozenset[str] = frozenset()
        self._read: dict[str, Tensor] = {}
        self._when_returned: dict[str, Tensor] = {}
        self._hook_calls: Counter[str] = Counter()
        self._open = ExitStack()

    @abstractmethod
    def build(self) -> None:
        """Make the handle over the setting's model."""

    def set_up(self) -> None:
        """Build the handle, and tell it that it is to train where the optimizer's class wants to be told.

        An optimizer that averages its iterates has ``train()`` and ``eval()``, and raises where it was told nothing.
        """
        self.build()
        cls = optimizer_class(self.setting.scenario.optimizer.cls, self.implementation)
        train = getattr(self.handle, "train", None)
        if callable(getattr(cls, "train", None)) and callable(train):
            train()

    @abstractmethod
    def iterate(self, iteration: int) -> Tensor:
        """Every forward and backward, the update, ``zero_grad()``; returns the unscaled loss."""

    @abstractmethod
    def iterate_by_closure(self, iteration: int) -> Tensor:
        """The same by ``step(closure)``."""

    @abstractmethod
    def make_schedule(self, last_epoch: int = -1) -> None:
        """Build the scenario's schedule, if it has one."""

    @abstractmethod
    def edit(self, event: Edit) -> None:
        """Set a hyperparameter by hand."""

    @abstractmethod
    def recreate(self, event: Recreate) -> None:
        """Replace the handle by a new one."""

    @abstractmethod
    def call(self, method: str) -> Any:
        """Call a method of the handle that a plain optimizer has; ``NotRun`` where it is missing."""

    @abstractmethod
    def shape(self) -> Any:
        """Where the optimizer state can be read."""

    @abstractmethod
    def state_dict(self) -> Any:
        """The optimizer's state dict."""

    @abstractmethod
    def load_state_dict(self, state_dict: Any) -> None:
        """Load an optimizer's state dict."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the model."""

    def hyperparameters(self) -> Any:
        """What the last update used, by parameter name; ``None`` where it cannot be seen."""
        return read_hyperparameters(self.shape(), self.setting.names)

    def existing_gradients(self) -> frozenset[str]:
        """Names of the parameters that have a gradient now."""
        return frozenset(n for p, n in self.setting.names.items() if p.grad is not None)

    def zero_grad_kwargs(self) -> dict[str, bool]:
        """What ``zero_grad()`` is told, where that is not PyTorch's default."""
        asked = ("zeros", "told-zeros") if self.is_candidate else ("zeros",)
        return {"set_to_none": False} if self.setting.scenario.zero_grad in asked else {}

    def _left_gradients(self) -> frozenset[str]:
        """Names of the parameters that ``zero_grad()`` left a gradient: zeros are none, where it was told to zero."""
        left = self.existing_gradients()
        if self.setting.scenario.zero_grad == "set-to-none":
            return left
        return left & {n for p, n in self.setting.names.items() if p.grad is not None and p.grad.count_nonzero()}

    def add_group(self, event: AddGroup) -> None:
        """``add_param_group`` with parameters that are in no group yet."""
        taken = {p for group in self.setting.groups for p in group["params"]}
        free = {p: None for p in self.setting.names if p not in taken}
        group = {"params": self.setting.take(event.group, free), **event.group.options}
        self.call_with("add_param_group", {**group, "params": list(group["params"])})
        self.setting.groups.append(group)

    def call_with(self, method: str, argument: Any) -> None:
        """Call a method of the handle with one argument; ``NotRun`` where it is missing."""
        call = getattr(self.handle, method, None)
        if not callable(call):
            raise NotRun(f"{type(self.handle).__name__} has no {method}()")
        call(argument)

    def micro_batches(self, iteration: int, backward: Callable[[Tensor, bool], None]) -> Tensor:
        """Every forward and backward of an iteration.

        Args:
            backward: given the loss, and whether it is the last of the iteration.

        Returns:
            The mean of the unscaled losses.
        """
        self.setting.seen.clear()
        self.observed = {}
        if self.setting.watch and self.is_candidate:
            self.setting.watch.reset()
            self.setting.watch.state = lambda: state_tensors(self.shape())
        count = self.setting.scenario.backwards(iteration)
        start = self.setting.values() if count > 1 else {}
        early: set[str] = set()
        losses = []
        for index in range(count):
            last = index == count - 1
            with self.synchronised(last):
                reported, loss = self.setting.loss(iteration, index)
                losses.append(reported)
                if self.setting.scenario.token_normalised and self.is_candidate:
                    loss = loss * self.setting.per_token
                spoiled = self._spoiled_gradients(iteration if last else -1)
                with self._around_backward(), spoiled, suppress(Interruption):
                    backward(loss, last)
            if not last:
                early |= self._changed_since(start)
        self._gradients_after_backward = self.existing_gradients()
        self._read = self._gradients_read(iteration)
        watched = "gradients-freed" in self.setting.scenario.expect
        self._when_returned = self.setting.values() if watched else {}
        self._moved_early = frozenset(early)
        return losses[0] if count == 1 else torch.stack(losses).mean()

    def synchronised(self, last: bool) -> AbstractContextManager[None]:
        """Around the forward and backward of a micro-batch: whether gradients are reduced over ranks in it."""
        return synchronised(self.setting.spread, self.setting.scenario.parallel, last)

    def record(self, loss: Tensor | None = None) -> Record:
        """Copies of everything observable now."""
        setting = self.setting
        state, unread = read_state(self.shape(), setting.names)
        seen = {f"hook saw {name}": gradient for name, gradient in setting.seen.items()}
        return Record(
            loss=loss,
            by_candidate=self.is_candidate,
            parameters=setting.values(),
            buffers={n: b.detach().clone() for n, b in setting.model.named_buffers()},
            state=state,
            unread=unread,
            hyperparameters=self.hyperparameters(),
            gradients_after_backward=self._gradients_after_backward,
            updated_late=self._changed_since(self._when_returned),
            gradients_after_zero=self._left_gradients(),
            rng=torch.get_rng_state(),
            other_rng=_other_generators(),
            read=self._read,
            gradient_peak=setting.watch.peak if setting.watch else None,
            observed={**seen, **self.observed, **self._scaler_state(), **self._step_hooks()},
            moved_early=self._moved_early,
            disturbed=frozenset(name for name, changed in self.bystanders if changed()),
        )

    def watch_model(self, label: str, model: nn.Module) -> None:
        """From here on no parameter of ``model`` may move."""
        kept = {n: local(p.detach()).clone() for n, p in model.named_parameters()}

        def changed() -> bool:
            return any(not _same_bytes(p, kept[n]) for n, p in model.named_parameters())

        self.bystanders.append((label, changed))

    def watch_optimizer(self, label: str, shape: Any, names: Mapping[nn.Parameter, str]) -> None:
        """From here on none of its state and hyperparameters may change."""

        def read() -> tuple[dict[str, Tensor], Any]:
            state = read_state(shape, names)[0]
            tensors = {f"{name}.{key}": value for name, entries in state.items() for key, value in entries.items()}
            return tensors, read_hyperparameters(shape, names)

        kept, hyperparameters = read()

        def changed() -> bool:
            now, used = read()
            same = now.keys() == kept.keys() and all(_same_bytes(value, kept[key]) for key, value in now.items())
            return not same or used != hyperparameters

        self.bystanders.append((label, changed))

    def copied(self, by: Callable[[Any], Any]) -> None:
        """Go on with a copy of model, handle and schedule; the original stands by, alive and watched."""
        original = self.setting.model, self.handle, self.schedule
        shape, names = self.shape(), self.setting.names
        model, self.handle, self.schedule = by(original)
        self.watch_model("the original of the copy", original[0])
        self.watch_optimizer("the optimizer of the copy's original", shape, names)
        self._open.callback(lambda kept: None, original)
        if self.setting.watch:
            self.setting.watch.end()
        self.setting = Setting(self.setting.scenario, self.setting.device, model=model)

    def count_step_hooks(self) -> None:
        """Count the handle's own step hooks and torch's global ones, where the scenario asks for it."""
        if not self.setting.scenario.step_hooks:
            return
        own = [getattr(self.handle, f"register_step_{when}_hook", None) for when in ("pre", "post")]
        if None in own:
            raise NotRun(f"{type(self.handle).__name__} has no register_step_post_hook(); step hooks need it")

        def counter(which: str) -> Callable[..., None]:
            def count(*_: Any) -> None:
                self._hook_calls[which] += 1

            return count

        for which, register in zip(HOOKS, (*own, register_optimizer_step_pre_hook, register_optimizer_step_post_hook)):
            self._open.callback(register(counter(which)).remove)  # type: ignore[misc]

    def interrupting(self, iteration: int) -> ExitStack:
        """While this is entered, the backward of an iteration with an ``Interrupt`` raises."""
        stack = ExitStack()
        for event in self.setting.scenario.at(iteration, Interrupt):
            for parameter in self.setting.select(event.match)[:1]:
                handle = parameter.register_hook(_interrupt)  # type: ignore[no-untyped-call]
                stack.callback(handle.remove)
        return stack

    def release(self) -> None:
        """Close the handle and undo what this driver registered; what undoing raises finds the watch ended."""
        if self.setting.watch:
            self.setting.watch.end()
        self._open.close()
        if self.handle is not None:
            self.close()

    def returned(self, loss: Any) -> None:
        """Observe what ``step(closure)`` returned: the closure's loss, in a plain optimizer."""
        self.observed = {"step(closure) returned": loss.detach().clone()} if isinstance(loss, Tensor) else {}

    def backward(self, loss: Tensor, iteration: int, call: Callable[..., Any] | None = None) -> None:
        """``loss.backward()`` as the scenario wants it: scaled, twice over one graph, or for some inputs only.

        Args:
            call: what stands in place of ``loss.backward``, scaling included; it takes the same arguments.
        """
        call = call or partial(torch.autograd.backward, self.scaled(loss))
        arguments: dict[str, Any] = {}
        for event in self.setting.scenario.at(iteration, AccessGradient):
            chosen = [p for p in self.setting.select(event.match) if p.requires_grad]
            if event.how == "autograd-grad":
                torch.autograd.grad(loss, chosen, retain_graph=True)
            elif event.how == "inputs" and chosen:
                arguments["inputs"] = chosen
        if self.setting.scenario.at(iteration, SecondBackward):
            call(retain_graph=True)
        call(**arguments)

    def foreign_backward(self, act: Callable[[], None], iteration: int) -> None:
        """Run a backward that is not to train the model; a plain optimizer needs nothing for that."""
        act()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss as the scaler, if there is one, wants it."""
        scaled: Tensor = self.scaler.scale(loss) if self.scaler else loss
        return scaled

    def clip(self) -> None:
        """``clip_grad_norm_`` over all groups, where the scenario clips; the norm is observed."""
        clip = self.setting.scenario.clip
        if clip is None:
            return
        if self.scaler:
            self.scaler.unscale_(self.handle)
        parameters = [p for group in self.setting.groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, clip.max_norm, error_if_nonfinite=clip.error_if_nonfinite)
        self.observed["total norm"] = whole(norm.detach()).clone()

    def _around_backward(self) -> AbstractContextManager[Any]:
        scenario = self.setting.scenario
        return self.setting.autocast(scenario.autocast if scenario.autocast_backward else "")

    def _gradients_read(self, iteration: int) -> dict[str, Tensor]:
        chosen = [
            parameter
            for event in self.setting.scenario.at(iteration, AccessGradient)
            if event.how == "read"
            for parameter in self.setting.select(event.match)
        ]
        return {self.setting.names[p]: local(p.grad.detach()).clone() for p in chosen if p.grad is not None}

    def _changed_since(self, kept: dict[str, Tensor]) -> frozenset[str]:
        return frozenset(n for p, n in self.setting.names.items() if n in kept and not _same_bytes(p, kept[n]))

    def _is_optimizer(self) -> bool:
        return isinstance(self.handle, Optimizer)

    def _spoiled_gradients(self, iteration: int) -> ExitStack:
        stack = ExitStack()
        for event in self.setting.scenario.at(iteration, NonFinite):
            for parameter in self.setting.select(event.match):
                if parameter.requires_grad and parameter.numel():
                    handle = parameter.register_hook(_spoil(float(event.value)))  # type: ignore[no-untyped-call]
                    stack.callback(handle.remove)
        return stack

    def _make_scaler(self) -> Any:
        config = self.setting.scenario.scaler
        if config is None:
            return None
        return torch.amp.GradScaler(
            self.setting.device.type, init_scale=config.init_scale, growth_interval=config.growth_interval
        )

    def _scaler_state(self) -> dict[str, Tensor]:
        if not self.scaler:
            return {}
        state = self.scaler.state_dict()
        return {f"scaler {k}": torch.tensor(float(state[k])) for k in ("scale", "_growth_tracker")}

    def _step_hooks(self) -> dict[str, Tensor]:
        if not self.setting.scenario.step_hooks:
            return {}
        return {f"{which} step hooks fired": torch.tensor(self._hook_calls[which]) for which in HOOKS}


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    """NaN included, which is not equal to itself."""
    return torch.equal(local(a.detach()).reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _other_generators() -> str:
    version, words, spare = random.getstate()
    numpy = np.random.get_state(legacy=False)["state"]
    return f"{version} {hash(words):x} {spare} {zlib.crc32(numpy['key'].tobytes()):x} {numpy['pos']}"


class Interruption(Exception):
    """The exception in the middle of a backward."""


def _interrupt(gradient: Tensor) -> Tensor:
    raise Interruption


def _spoil(value: float) -> Callable[[Tensor], Tensor]:
    def hook(gradient: Tensor) -> Tensor:
        spoiled = gradient.clone()
        spoiled.view(-1)[0] = value
        return spoiled

    return hook
