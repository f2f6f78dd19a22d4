"""How a scenario can become simpler, one step at a time. Whether it then still shows anything is not known here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from inbackward.scenario.configs import GroupConfig, ModelConfig
from inbackward.scenario.events import Event
from inbackward.scenario.scenario import Scenario

Step = Callable[[Scenario], Scenario]

_PLAINEST = Scenario(model=ModelConfig(layers=1))
# What is asked of the run stays as it is; the others have steps of their own.
_NOT_RESET = (
    "requirement",
    "name",
    "expect",
    "may_refuse",
    "iterations",
    "model",
    "data",
    "optimizer",
    "groups",
    "events",
)


def simplifications(scenario: Scenario) -> list[Step]:
    """Everything that can be taken out of ``scenario``, in an order in which one step makes way for the next."""
    return list(_steps(scenario))


def simplified(scenario: Scenario, step: Step) -> Scenario:
    """``scenario`` after one step, or as it was where the step makes no scenario of it."""
    try:
        return step(scenario)
    except (ValueError, IndexError):
        return scenario


def _steps(scenario: Scenario) -> Iterator[Step]:
    for event in scenario.events:
        yield _leaving_out(event)
    for iterations in sorted({1, scenario.iterations - 1} - {0, scenario.iterations}):
        yield ending_after(iterations)
    for field in _differing(scenario, _PLAINEST):
        if field not in _NOT_RESET:
            yield _setting(**{field: getattr(_PLAINEST, field)})
    for index in reversed(range(len(scenario.groups))):  # from the last, so that the others keep their places
        yield _joining_group(index)
        yield _plain_group(index)
    for option in scenario.optimizer.kwargs:
        if option != "lr":
            yield _without_option(option)
    yield _setting_within("optimizer", "tensor_lr", False)
    for part in ("model", "data"):
        plain = getattr(_PLAINEST, part)
        yield _setting(**{part: plain})
        for field in _differing(getattr(scenario, part), plain):
            yield _setting_within(part, field, getattr(plain, field))


def _differing(value: Any, plain: Any) -> list[str]:
    return [f.name for f in fields(plain) if getattr(value, f.name) != getattr(plain, f.name)]


def _setting(**changes: Any) -> Step:
    return lambda s: s.with_(**changes)


def _setting_within(part: str, name: str, value: Any) -> Step:
    return lambda s: s.with_(**{part: replace(getattr(s, part), **{name: value})})


def _leaving_out(event: Event) -> Step:
    """The first that is the same, where there are several."""

    def step(s: Scenario) -> Scenario:
        place = s.events.index(event)
        return s.with_(events=s.events[:place] + s.events[place + 1 :])

    return step


def ending_after(iterations: int) -> Step:
    """At the latest."""

    def step(s: Scenario) -> Scenario:
        count = min(s.iterations, iterations)
        return s.with_(iterations=count, events=tuple(e for e in s.events if e.at < count))

    return step


def _joining_group(index: int) -> Step:
    """Its parameters go to the next group that wants them."""
    return lambda s: s.with_(groups=s.groups[:index] + s.groups[index + 1 :])


def _plain_group(index: int) -> Step:
    def step(s: Scenario) -> Scenario:
        return s.with_(groups=(*s.groups[:index], GroupConfig(match=s.groups[index].match), *s.groups[index + 1 :]))

    return step


def _without_option(option: str) -> Step:
    def step(s: Scenario) -> Scenario:
        kwargs = {key: value for key, value in s.optimizer.kwargs.items() if key != option}
        return s.with_(optimizer=replace(s.optimizer, kwargs=kwargs))

    return step
