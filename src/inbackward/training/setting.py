"""What both loops share: the model, the loss of an iteration, and the parameter groups of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, reduce
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inbackward.scenario import Scenario, SkipBranch, class_path
from inbackward.scenario.data import batch
from inbackward.scenario.models import build_model
from inbackward.training.implementation import Implementation, ParameterGroups

SELECTORS: dict[str, Callable[[nn.Parameter, int, int], bool]] = {
    "@matrix": lambda parameter, index, last: parameter.dim() == 2,
    "@vector": lambda parameter, index, last: parameter.dim() < 2,
    "@first": lambda parameter, index, last: index == 0,
    "@last": lambda parameter, index, last: index == last,
    "@even": lambda parameter, index, last: index % 2 == 0,
}


class NotRun(Exception):
    """A scenario cannot run with this implementation or on this machine; the message is the reason."""


@dataclass
class Setting:
    """One model of a scenario on one device, its loss, and how often its loss was asked for.

    ``fresh`` draws other initial weights, for a model that a checkpoint is about to fill.
    """

    scenario: Scenario
    device: torch.device
    fresh: bool = False

    def __post_init__(self) -> None:
        s = self.scenario
        self.model = build_model(s.model, s.seed + self.fresh, getattr(torch, s.dtype)).to(self.device)
        self.names: dict[nn.Parameter, str] = {}
        for name, parameter in self.model.named_parameters():
            self.names[parameter] = name
        for parameter in self.select(s.frozen):
            parameter.requires_grad_(False)

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
            taken = [p for p in self.select(config.match) if p in free]
            for parameter in taken:
                del free[parameter]
            groups.append({"params": taken[::-1] if config.reverse else taken, **config.options})
        if not self.scenario.groups:
            groups.append({"params": list(self.names)})
        groups.named = self.scenario.named
        return groups

    def optimizer_kwargs(self) -> dict[str, Any]:
        """The optimizer's keyword arguments, with a new tensor for lr where the scenario wants one."""
        kwargs = dict(self.scenario.optimizer.kwargs)
        if self.scenario.optimizer.tensor_lr:
            kwargs["lr"] = torch.tensor(float(kwargs["lr"]), device=self.device)
        return kwargs

    def loss(self, iteration: int) -> tuple[Tensor, Tensor]:
        """The loss of one iteration: unscaled as reported, and scaled as ``backward()`` is given it."""
        s = self.scenario
        if s.model.branch:
            self.model.take_branch = not s.at(iteration, SkipBranch)  # type: ignore[assignment]
        tokens, targets = (t.to(self.device) for t in batch(s.data, s.seed, iteration))
        logits = self.model(tokens)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten())
        factor = s.loss_scale * (targets.numel() if s.token_weighted else 1)
        return loss.detach(), loss * factor if factor != 1 else loss


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
    except (ImportError, AttributeError) as error:
        raise NotRun(f"the optimizer {path} cannot be imported here: {error}") from None
