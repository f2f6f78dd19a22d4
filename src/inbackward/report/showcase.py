"""One training run for the pictures of a report: what the verdicts say in words, as curves. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inbackward.curves import Curve, Curves, train_both
from inbackward.judging.noise import LIMIT
from inbackward.scenario import ModelConfig, Scenario
from inbackward.training import NotRun
from inbackward.verification import Suite, one_thread

ITERATIONS = 100


@dataclass(frozen=True, kw_only=True)
class Showcase:
    """The curves of one run, or why there are none.

    Attributes:
        optimizer: the reference's class, for people.
    """

    curves: Curves | None = None
    optimizer: str = ""
    why_not: str = ""

    @classmethod
    def of(cls, suite: Suite) -> Showcase:
        """Train the default ``plain`` scenario, but longer, with the first reference optimizer of a suite."""
        arm = suite.arms[0]
        model = suite.model or ModelConfig()
        scenario = Scenario(
            name="showcase",
            seed=suite.seed * 100_000,
            iterations=ITERATIONS,
            optimizer=arm.config,
            model=model,
        )
        try:
            with one_thread():
                curves = train_both(suite.implementation, scenario, suite.device)
        except NotRun as reason:
            return cls(why_not=str(reason))
        for name, curve in (("the usual loop", curves.plain), ("the implementation", curves.in_backward)):
            if curve.stopped and not curve.losses:
                return cls(why_not=f"{name} raises {curve.stopped}")
        return cls(curves=curves, optimizer=arm.config.cls.partition(":")[2])

    def plain(self) -> dict[str, Any]:
        """Plain data, that a worker can send."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Showcase:
        """What ``plain`` was made from."""
        found = data["curves"]
        sides = {side: Curve(**found[side]) for side in ("plain", "in_backward")} if found else {}
        return cls(**{**data, "curves": Curves(**{**found, **sides}) if found else None})

    def view(self) -> dict[str, Any]:
        """What the page shows of it."""
        if self.curves is None:
            return {"why_not": self.why_not}
        return {
            "why_not": "",
            "about": f"The default scenario of the requirement plain, but {self.curves.iterations} iterations long, "
            f"by {self.optimizer}, in the usual loop and in the implementation's.",
            "figures": [_losses(self.curves)],
            "varying": [],
        }


def _losses(curves: Curves) -> dict[str, Any]:
    from inbackward.report.plots import draw_losses

    return _figure("Loss", describe(curves), draw_losses, curves)


def _figure(title: str, caption: str, draw: Any, *data: Any) -> dict[str, Any]:
    from markupsafe import Markup

    from inbackward.report.plots import NARROW, WIDE, inline_svg

    svg = {
        name: Markup(inline_svg(draw, *data, name=f"{title}-{name}", size=size))
        for name, size in (("wide", WIDE), ("narrow", NARROW))
    }
    return {"title": title, "caption": caption, **svg}


def describe(curves: Curves) -> str:
    """How far the two losses are apart, in words."""
    if curves.plain.stopped:
        return f"The usual loop stopped after {len(curves.plain.losses)} iterations: {curves.plain.stopped}"
    said = ""
    if curves.in_backward.stopped:
        said = f"The implementation stopped after {len(curves.in_backward.losses)} iterations: "
        said += f"{curves.in_backward.stopped}. "
    at = curves.farthest
    if at < 0:
        return said + "No iteration can be compared."
    if not any(curves.differences):
        return said + f"No bit of any loss differs, in {len(curves.differences)} iterations."
    ratio = f", {curves.ratios[at]:.3g} times the noise floor" if curves.ratios else ""
    return said + (
        f"The losses are farthest apart in iteration {at}, by {abs(curves.differences[at]):.3g}{ratio}; "
        f"up to {LIMIT:g} times is rounding."
    )
