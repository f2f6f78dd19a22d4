"""Hypothesis strategies over the space of scenarios. The only module of the package that imports Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from inbackward.scenario.scenario import Scenario
from inbackward.scenario.simplifying import simplifications, simplified
from inbackward.scenario.space import Arm, draw

T = TypeVar("T")


class Drawn:
    """The choices of a scenario, left to Hypothesis."""

    def __init__(self, choose: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._choose = choose

    def integer(self, low: int, high: int) -> int:
        number: int = self._choose(st.integers(low, high))
        return number

    def one_of(self, options: Sequence[T]) -> T:
        option: T = self._choose(st.sampled_from(options))
        return option

    def chance(self, share: float) -> bool:
        """A small number that says yes where it is large, so that Hypothesis shrinks a yes to a no."""
        return self.integer(0, 99) >= 100 - round(100 * share)


def scenarios(id: str, arms: Sequence[Arm]) -> st.SearchStrategy[Scenario]:
    """Scenarios of the requirement ``id``, from the same space as those of ``generate``; they shrink to few features.

    Raises:
        KeyError: on drawing: there is nothing to draw for ``id``.
    """

    @st.composite
    def drawn(choose: Callable[[st.SearchStrategy[Any]], Any]) -> Scenario:
        arm = choose(st.sampled_from(arms))
        return draw(Drawn(choose), id, arm).with_(name=f"drawn-{arm.name}")

    return drawn()


def simpler_than(scenario: Scenario) -> st.SearchStrategy[Scenario]:
    """``scenario`` with some of what can be taken out of it taken out; it shrinks towards everything taken out.

    Half of the pieces stay, and few are needed to fail, so that some draw fails soon: this is how Hypothesis can start
    from a scenario that it has not drawn. Only booleans are asked for: for numbers Hypothesis would collect constants
    from the user's modules, depend on them, and leave a folder behind.
    """
    steps = simplifications(scenario)

    @st.composite
    def drawn(choose: Callable[[st.SearchStrategy[Any]], Any]) -> Scenario:
        result = scenario
        for step in steps:
            if not choose(st.booleans()):
                result = simplified(result, step)
        return result

    return drawn()
