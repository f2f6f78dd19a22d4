"""The optimizers on which every family runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inbackward.scenario import OptimizerConfig, Scenario, class_path
from inbackward.wording import said


@dataclass(frozen=True)
class Arm:
    """One reference optimizer: its short name, its class and configuration, and the defaults that its groups have."""

    name: str
    cls: Any
    config: OptimizerConfig
    defaults: Mapping[str, Any] = field(repr=False)

    @property
    def lr(self) -> float:
        """The learning rate that a group without one of its own has."""
        return float(self.defaults["lr"])

    def has(self, *names: str) -> bool:
        """Whether the optimizer's groups have all these hyperparameters."""
        return all(name in self.defaults for name in names)

    def run(self, name: str, **fields: Any) -> Scenario:
        """A scenario on this optimizer, called ``name`` and the arm: three iterations, or one past its last event."""
        last = max((event.at for event in fields.get("events", ())), default=0)
        fields.setdefault("iterations", max(3, last + 2))  # an event at 2 is seen to act in the iteration after it
        return Scenario(name=f"{name}-{self.name}", optimizer=self.config, **fields)

    def given(self, **kwargs: Any) -> Arm:
        """The same class with further keyword arguments."""
        return make_arm(self.name, self.cls, {**self.config.kwargs, **kwargs})


def make_arm(name: str, cls: Any, kwargs: Mapping[str, Any]) -> Arm:
    """The arm of a class, probed over one small parameter."""
    import torch

    probe = cls([torch.zeros(1, 1, requires_grad=True)], **kwargs)
    return Arm(name, cls, OptimizerConfig(cls=class_path(cls), kwargs=dict(kwargs)), dict(probe.defaults))


def default_arms() -> tuple[Arm, ...]:
    """AdamW with decay, and SGD with momentum: AdamW alone is blind to much (design §4.5)."""
    import torch  # late, so that the catalogue can be listed without it

    return (
        make_arm("adamw", torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        make_arm("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    )


def is_default(arms: tuple[Arm, ...]) -> bool:
    """Whether these are the arms of ``torch.optim``, so that rows may bring in more of its classes."""
    return tuple(arm.config for arm in arms) == tuple(arm.config for arm in default_arms())


def arms_of(optimizers: Sequence[tuple[Any, Mapping[str, Any]]]) -> tuple[Arm, ...]:
    """One arm for each optimizer that an implementation names as its reference.

    Raises:
        ValueError: the class cannot be built over a single parameter with these keyword arguments.
    """
    arms: list[Arm] = []
    for cls, kwargs in optimizers:
        name = getattr(cls, "__name__", "optimizer").lower()
        same = sum(arm.cls is cls for arm in arms)
        name = f"{name}-{same + 1}" if same else name
        try:
            arms.append(make_arm(name, cls, kwargs))
        except Exception as error:  # the user's class may raise anything; it is their line to mend
            raise ValueError(
                f"the reference optimizer {class_path(cls)} cannot be built with {dict(kwargs)}: {said(error)}"
            ) from error
    return tuple(arms)
