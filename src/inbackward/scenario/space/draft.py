"""A scenario in the making, and the features that can be put into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from inbackward.scenario.choices import Choices
from inbackward.scenario.configs import (
    DataConfig,
    GroupConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    betas_like,
)
from inbackward.scenario.events import Event
from inbackward.scenario.scenario import Scenario


class Arm(Protocol):
    """What the space needs to know of a reference optimizer (``requirements.Arm`` is one)."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> OptimizerConfig: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...


@dataclass
class Draft:
    """A scenario in the making.

    Attributes:
        id: the requirement that it is drawn for.
        features: all that it will have, decided before the first of them is put in.
        fields: of ``Scenario``, beside those below.
    """

    choices: Choices
    arm: Arm
    id: str
    features: frozenset[str]
    iterations: int = 3
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    tensor_lr: bool = False
    groups: list[GroupConfig] = field(default_factory=list)
    schedule: ScheduleConfig | None = None
    events: list[Event] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    def has(self, feature: str) -> bool:
        return feature in self.features

    def knows(self, *hyperparameters: str) -> bool:
        """Whether the optimizer's groups have them: a tuple of betas, and plain numbers for the rest."""
        return all(
            name in self.arm.defaults and (name == "betas") == isinstance(self.arm.defaults[name], (tuple, list))
            for name in hyperparameters
        )

    def betas(self, low: float, high: float) -> tuple[float, ...] | None:
        """See ``betas_like``."""
        return betas_like(self.arm.defaults.get("betas"), low, high)

    @property
    def lr(self) -> float:
        return float(self.options.get("lr", self.arm.defaults.get("lr", 1.0)))

    @property
    def momentum(self) -> bool:
        """Whether a schedule can cycle a momentum."""
        return bool(self.options.get("momentum", self.arm.defaults.get("momentum"))) or self.knows("betas")

    def when(self, low: int = 0) -> int:
        """An iteration from ``low`` on."""
        return self.choices.integer(min(low, self.iterations - 1), self.iterations - 1)

    def add(self, *events: Event) -> None:
        self.events.extend(events)

    def scenario(self) -> Scenario:
        """What the draft has become.

        Raises:
            ValueError: it is none, which would be a mistake in the space.
        """
        optimizer = replace(
            self.arm.config, kwargs={**self.arm.config.kwargs, **self.options}, tensor_lr=self.tensor_lr
        )
        return Scenario(
            requirement=self.id,
            iterations=self.iterations,
            model=ModelConfig(**self.model),
            data=DataConfig(**self.data),
            optimizer=optimizer,
            groups=tuple(self.groups),
            schedule=self.schedule,
            events=tuple(sorted(self.events, key=lambda event: event.at)),
            **self.fields,
        )


@dataclass(frozen=True)
class Feature:
    """Something that a scenario may have.

    Attributes:
        put: puts it into a draft.
        share: of the scenarios of other requirements that are offered it. 0: only the requirements that need it.
    """

    put: Callable[[Draft], None]
    share: float


FEATURES: dict[str, Feature] = {}


def feature(name: str, share: float = 0.0) -> Callable[[Callable[[Draft], None]], Callable[[Draft], None]]:
    """Enter the decorated function into ``FEATURES``. They are put into a draft in the order in which they stand there.

    A feature is called like the requirement whose it is, so that ``without`` can take it out again.
    """

    def enter(put: Callable[[Draft], None]) -> Callable[[Draft], None]:
        assert name not in FEATURES, name
        FEATURES[name] = Feature(put, share)
        return put

    return enter
