"""What both loops share: the model, the loss of an iteration, and the parameter groups of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, reduce
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inbackward.scenario import GroupConfig, HookConfig, Scenario, SkipBranch, class_path
from inbackward.scenario.data import batch
from inbackward.scenario.models import build_model
from inbackward.training.implementation import Implementation, ParameterGroups
from inbackward.training.parallel import Wrap, data_rank, local, spread
from inbackward.training.watching import GradientWatch

SELECTORS: dict[str, Callable[[nn.Parameter, int, int], bool]] = {
    "@matrix": lambda parameter, index, last: parameter.dim() == 2,
    "@vector": lambda parameter, index, last: parameter.dim() < 2,
    "@first": lambda parameter, index, last: index == 0,
    "@last": lambda parameter, index, last: index == last,
    "@even": lambda parameter, index, last: index % 2 == 0,
}


class NotRun(Exception):
    """A scenario cannot run with this implementation or on this machine; the message is the reason."""


@dataclass(frozen=True)
class Condition:
    """What events have made of a model and its groups: plain data, for another process too.

    Attributes:
        trainable: names of the parameters that require gradients.
        dtypes: dtype of every parameter and buffer by name.
        added: the groups that were added, as parameter names and options.
    """

    trainable: frozenset[str]
    dtypes: dict[str, torch.dtype]
    added: tuple[tuple[tuple[str, ...], dict[str, Any]], ...]


class Setting:
    """One model of a scenario on one device, its loss, and its parameter groups.

    Attributes:
        model: with frozen parameters frozen and the user's hooks on. Across ranks ``spread`` is what an implementation
            is given, such as the DDP module around it; what is called is ``forward``, which may be the compiled model.
        names: parameter to name, each parameter once, in the model's order.
        seen: what the user's post-accumulate hooks were given since the last iteration began, by parameter name.
        text: uint8 ``(bytes,)`` to train on in the place of the standard library's, or ``None``.
    """

    def __init__(
        self,
        scenario: Scenario,
        device: torch.device,
        model: nn.Module | None = None,
        fresh: bool = False,
        wrap: Wrap | None = None,
    ) -> None:
        """Build the scenario's model, or take ``model`` as it is.

        Args:
            fresh: draw other initial weights.
            wrap: a framework's own way to spread the model over ranks.
        """
        self.scenario, self.device = scenario, device
        self.model = model or build_model(scenario.model, scenario.seed + fresh, getattr(torch, scenario.dtype))
        if device.type != "cpu":
            self.model.to(device)
        self.names: dict[nn.Parameter, str] = {p: n for n, p in self.model.named_parameters()}
        self.seen: dict[str, Tensor] = {}
        self.text: Tensor | None = None
        if model is None:
            for parameter in self.select(scenario.frozen):
                parameter.requires_grad_(False)
        self.spread = spread(self.model, scenario.parallel, device, wrap)
        self.data_rank = data_rank(scenario.parallel)
        if scenario.strategy != "single":  # fully_shard and tensor parallelism put other parameters in
            self.names = {p: n for n, p in self.model.named_parameters()}
        if model is None:
            for hook in scenario.hooks:
                self._register(hook)
        watched = "gradient-peak" in scenario.expect
        self.watch = GradientWatch(self.names, copies=not scenario.model.checkpointing) if watched else None
        self.forward = _compiled(self.spread, scenario.compiled)

    def _register(self, hook: HookConfig) -> None:
        for parameter in self.select(hook.match):
            if not parameter.requires_grad:
                continue
            if hook.kind == "watch":
                parameter.register_post_accumulate_grad_hook(self._watch)  # type: ignore[no-untyped-call]
            else:
                change = _halve if hook.kind == "scale" else _mask
                parameter.register_hook(change)  # type: ignore[no-untyped-call]

    def _watch(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        gradient = parameter.grad
        self.seen[self.names[parameter]] = torch.zeros(()) if gradient is None else gradient.detach().clone()

    def values(self) -> dict[str, Tensor]:
        """Copies of the parameters by name: of a sharded one, of what lies on this rank."""
        return {name: local(parameter.detach()).clone() for parameter, name in self.names.items()}

    def select(self, patterns: tuple[str, ...]) -> list[nn.Parameter]:
        """The parameters that any pattern matches, in the model's order (``GroupConfig`` says how)."""
        last = len(self.names) - 1
        return [
            parameter
            for index, (parameter, name) in enumerate(self.names.items())
            if any(
                SELECTORS[pattern](parameter, index, last) if pattern in SELECTORS else fnmatchcase(name, pattern)
                for pattern in patterns
            )
        ]

    @cached_property
    def groups(self) -> ParameterGroups:
        """The scenario's parameter groups over this model: plain parameters, options as the scenario has them."""
        free = dict.fromkeys(self.names)
        groups = ParameterGroups()
        for config in self.scenario.groups:
            groups.append({"params": self.take(config, free), **config.options})
        if not self.scenario.groups:
            groups.append({"params": list(self.names)})
        groups.named = self.scenario.named
        return groups

    def halves(self) -> list[tuple[nn.Module, ParameterGroups]]:
        """What each of two optimizers is given: the model, or the children that hold its half, and one plain group."""
        children = list(self.model.children())
        taken: set[nn.Parameter] = set()
        pairs = []
        for part in (nn.ModuleList(children[::2]), nn.ModuleList(children[1::2])):
            parameters = [p for p in part.parameters() if p not in taken]
            taken.update(parameters)
            pairs.append(
                (part if self.scenario.split == "parts" else self.model, ParameterGroups([{"params": parameters}]))
            )
        return pairs

    def take(self, config: GroupConfig, free: dict[nn.Parameter, None]) -> list[nn.Parameter]:
        """The parameters of one group, taken out of ``free``."""
        taken = [p for p in self.select(config.match) if p in free or config.again]
        for parameter in taken:
            free.pop(parameter, None)
        if config.twice:
            taken = [p for p in taken for _ in range(2)]
        return taken[::-1] if config.reverse else taken

    def condition(self) -> Condition:
        """What a fresh model of the scenario would have to be told to stand where this one does."""
        return Condition(
            trainable=frozenset(n for p, n in self.names.items() if p.requires_grad),
            dtypes={n: t.dtype for n, t in (*self.model.named_parameters(), *self.model.named_buffers())},
            added=tuple(
                (tuple(self.names[p] for p in g["params"]), {k: v for k, v in g.items() if k != "params"})
                for g in self.groups[max(len(self.scenario.groups), 1) :]
            ),
        )

    def assume(self, condition: Condition) -> None:
        """Be frozen, cast and grouped as ``condition`` says, as a recipe that resumes would be."""
        named = {n: p for p, n in self.names.items()}
        for name, tensor in (*named.items(), *self.model.named_buffers()):
            if tensor.dtype != condition.dtypes[name]:
                tensor.data = tensor.data.to(condition.dtypes[name])
        for name, parameter in named.items():
            parameter.requires_grad_(name in condition.trainable)
        self.groups.extend({"params": [named[n] for n in names], **options} for names, options in condition.added)

    def optimizer_kwargs(self) -> dict[str, Any]:
        """The optimizer's keyword arguments, with a new tensor for lr where the scenario wants one."""
        kwargs = dict(self.scenario.optimizer.kwargs)
        if self.scenario.optimizer.tensor_lr:
            kwargs["lr"] = torch.tensor(float(kwargs["lr"]), device=self.device)
        return kwargs

    def autocast(self, dtype: str) -> AbstractContextManager[Any]:
        """``torch.autocast`` to ``dtype``, or nothing where it is ``""``."""
        return torch.autocast(self.device.type, getattr(torch, dtype)) if dtype else nullcontext()

    def loss(self, iteration: int, micro_batch: int = 0) -> tuple[Tensor, Tensor]:
        """One forward: the loss as reported, and as ``backward()`` is given it: scaled, and divided by their number."""
        s = self.scenario
        if s.model.branch:
            skips = s.at(iteration, SkipBranch)
            skipped = any(not event.ranks or self.data_rank in event.ranks for event in skips)
            self.model.take_branch = not skipped  # type: ignore[assignment]
        tokens, targets = (t.to(self.device) for t in self._batch(iteration, micro_batch))
        if s.token_normalised:
            tokens, targets = (t[:, : self._length(self.data_rank)] for t in (tokens, targets))
        with self.autocast(s.autocast):
            logits = self.forward(tokens)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten())
        if s.token_normalised:
            return loss.detach(), loss * targets.numel()
        factor = s.loss_scale * (targets.numel() if s.token_weighted else 1) / s.backwards(iteration)
        return loss.detach(), loss * factor if factor != 1 else loss

    def _batch(self, iteration: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        s = self.scenario
        return batch(s.data, s.seed, iteration, micro_batch, self.data_rank, text=self.text)

    def _length(self, rank: int) -> int:
        """How many tokens a window has on a rank, where they differ."""
        return max(1, self.scenario.data.length - 3 * rank)

    @property
    def per_token(self) -> float:
        """What makes the mean over the tokens of all ranks of a sum over those of one, once ranks are averaged."""
        ranks = self.scenario.parallel.ranks
        return ranks / (self.scenario.data.batch * sum(map(self._length, range(ranks))))


def _halve(gradient: Tensor) -> Tensor:
    return gradient * 0.5


def _mask(gradient: Tensor) -> Tensor:
    masked = gradient.clone()
    if masked.dim():
        masked[::2] = 0
    return masked


def _compiled(model: nn.Module, what: str) -> Callable[[Tensor], Tensor]:
    """The model to call; compiling starts from an empty cache, or its limit would quietly turn it off."""
    if what:
        torch._dynamo.reset()
    if what == "whole":
        compiled: Callable[[Tensor], Tensor] = torch.compile(model, backend="aot_eager")
        return compiled
    if what == "layers":
        for layer in next(iter(m for m in model.children() if isinstance(m, nn.ModuleList)), []):
            layer.compile(backend="aot_eager")
    return model


def optimizer_class(path: str, implementation: Implementation | None = None) -> Any:
    """The optimizer class that a scenario names: one of the implementation's own, or an importable one.

    Raises:
        NotRun: it is neither.
    """
    for cls, _ in (implementation.reference_optimizers or []) if implementation else []:
        if class_path(cls) == path:
            return cls
    module, _, name = path.partition(":")
    try:
        return reduce(getattr, name.split("."), import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise NotRun(f"the optimizer {path} cannot be imported here: {error}") from None
