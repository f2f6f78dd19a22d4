"""Random scenarios that are the same everywhere: seeded by (seed, id, index), they can stand in reports."""

from __future__ import annotations

from collections.abc import Sequence

from inbackward.scenario.choices import Seeded
from inbackward.scenario.scenario import Scenario
from inbackward.scenario.space import Arm, draw


def generate(seed: int, id: str, index: int, arms: Sequence[Arm]) -> Scenario:
    """The ``index``-th scenario of the requirement ``id``, on the arms in turn.

    It always has what the requirement is about; whatever else it has is drawn.

    Args:
        seed: of the whole draw.
        arms: the reference optimizers, at least one.

    Raises:
        KeyError: there is nothing to draw for ``id`` (``drawable`` tells).
    """
    arm = arms[index % len(arms)]
    return draw(Seeded(f"{seed}/{id}/{index}"), id, arm).with_(name=f"generated-{index}-{arm.name}")
