"""The space of scenarios, described once. Who chooses is another matter: a seed (``generator``) or Hypothesis.

A scenario is drawn for a requirement. It has the features that the requirement needs, and of the others each with its
share, as long as they go together (``rules``); then every feature is put into a draft, in a fixed order, and makes its
own choices. What is drawn is legal by construction: a plain optimizer is equivalent to itself on all of it (tested).
"""

from __future__ import annotations

from inbackward.scenario.choices import Choices
from inbackward.scenario.scenario import Scenario
from inbackward.scenario.space import fields, happenings, schedules  # noqa: F401  (fill FEATURES)
from inbackward.scenario.space.draft import FEATURES, Arm, Draft
from inbackward.scenario.space.rules import COMPANIONS, MAY_REFUSE, NEEDS, allowed

__all__ = ["Arm", "draw", "drawable"]

_COMPANION_SHARE = 0.25


def drawable(id: str) -> bool:
    """Whether scenarios can be drawn for the requirement ``id``."""
    return id in NEEDS or id in FEATURES


def draw(choices: Choices, id: str, arm: Arm) -> Scenario:
    """A scenario of the requirement ``id`` on the optimizer ``arm``, yet without a name.

    Raises:
        KeyError: the space has no feature that belongs to ``id``.
    """
    features = _features(choices, id)
    draft = Draft(choices, arm, id, features)
    fields.sizes(draft)
    for name, feature in FEATURES.items():
        if name in features:
            feature.put(draft)
    draft.fields["may_refuse"] = id in MAY_REFUSE
    return draft.scenario()


def _features(choices: Choices, id: str) -> frozenset[str]:
    needed = NEEDS.get(id, (id,))
    chosen = frozenset(needed)
    companions = COMPANIONS.get(id, ())
    for name, feature in FEATURES.items():
        share = _COMPANION_SHARE if name in companions else feature.share
        if share and choices.chance(share) and name not in chosen and allowed(id, name, chosen):
            chosen |= {name}
    return chosen
