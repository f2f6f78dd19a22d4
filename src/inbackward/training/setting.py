"""What both loops share: the model, the loss of an iteration, and the parameter groups of a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, reduce
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inbackward.scenario import Scenario, SkipBranch
from inbackward.scenario.data import batch
from inbackward.scenario.models import build_model
from inbackward.training.implementation import Implementation, ParameterGroups


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
        for name, parameter in self.model.named_parameters():
            if any(fnmatchcase(name, pattern) for pattern in s.frozen):
                parameter.requires_grad_(False)
        self.names: dict[nn.Parameter, str] = {p: n for n, p in self.model.named_parameters()}

    @cached_property
    def groups(self) -> ParameterGroups:
        """The scenario's parameter groups over this model: plain parameters, options as the scenario has them."""
        left = [(n, p) for p, n in self.names.items()]
        groups = ParameterGroups()
        for config in self.scenario.groups:
            taken = [(n, p) for n, p in left if any(fnmatchcase(n, pattern) for pattern in config.match)]
            left = [pair for pair in left if pair not in taken]
            ordered = reversed(taken) if config.reverse else taken
            groups.append({"params": [p for _, p in ordered], **config.options})
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


def class_path(cls: Any) -> str:
    """``module:qualified name``, the form in which a scenario names a class."""
    return f"{getattr(cls, '__module__', '?')}:{getattr(cls, '__qualname__', repr(cls))}"


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
