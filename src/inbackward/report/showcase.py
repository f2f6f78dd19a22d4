"""One training run for the pictures of a report: what the verdicts say in words, as curves. It decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from inbackward.curves import Curve, Curves, train_both
from inbackward.judging.noise import LIMIT
from inbackward.measure import MemoryCurve, Setup, Times, observe_memory, time_steps
from inbackward.scenario import ModelConfig, Scenario
from inbackward.scenario.models import build_model
from inbackward.training import NotRun
from inbackward.training.resume import first_line
from inbackward.verification import Suite, one_thread

ITERATIONS = 100
PHASES = ("forward", "backward", "step")
Moments = tuple[tuple[float, int], ...]  # when in an iteration, in phases, and the bytes of gradients alive then


@dataclass(frozen=True, kw_only=True)
class Showcase:
    """The curves of one run, or why there are none; all plain data.

    Attributes:
        optimizer: the reference's class, for people.
        gradients: bytes of live gradients over an iteration, of either loop.
        times: seconds of iterations of both loops, in turn.
        why_not: why there are no curves, or ``""``.
        why_not_measured: why memory and time are missing, or ``""``.
    """

    optimizer: str = ""
    curves: Curves | None = None
    gradients: Mapping[str, Moments] | None = None
    times: Times | None = None
    why_not: str = ""
    why_not_measured: str = ""

    @classmethod
    def of(cls, suite: Suite) -> Showcase:
        """Train the default ``plain`` scenario, but longer, with the first reference optimizer of a suite."""
        arm = suite.arms[0]
        scenario = Scenario(
            name="showcase",
            seed=suite.seed * 100_000,
            iterations=ITERATIONS,
            optimizer=arm.config,
            model=suite.model or ModelConfig(),
        )
        with one_thread():
            try:
                curves = train_both(suite.implementation, scenario, suite.device)
            except NotRun as reason:
                return cls(why_not=str(reason))
            for name, curve in (("the usual loop", curves.plain), ("the implementation", curves.in_backward)):
                if curve.stopped and not curve.losses:
                    return cls(why_not=f"{name} raises {curve.stopped}")
            return _measured(cls(curves=curves, optimizer=arm.config.cls.partition(":")[2]), suite, scenario, arm.cls)

    def plain(self) -> dict[str, Any]:
        """Plain data, that a worker can send."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Showcase:
        """What ``plain`` was made from."""
        curves, times = data["curves"], data["times"]
        sides = {side: Curve(**curves[side]) for side in ("plain", "in_backward")} if curves else {}
        whole = Curves(**{**curves, **sides}) if curves else None
        return cls(**{**data, "curves": whole, "times": Times(**times) if times else None})


def _measured(showcase: Showcase, suite: Suite, scenario: Scenario, optimizer_cls: Any) -> Showcase:
    """With memory and time, where the implementation can be built and stepped without all that a scenario offers."""
    setup = Setup(
        dtype=torch.float32,
        batch_size=scenario.data.batch,
        sequence_length=scenario.data.length,
        activation_checkpointing=False,
        optimizer_cls=optimizer_cls,
        optimizer_kwargs=scenario.optimizer.kwargs,
    )
    arguments = partial(build_model, scenario.model, scenario.seed, torch.float32), setup, suite.implementation
    try:
        memory = observe_memory(*arguments, device=suite.device.type)
        times = time_steps(*arguments, device=suite.device.type)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an implementation may raise anything
        return replace(showcase, why_not_measured=first_line(error))
    gradients = {"plain": _moments(memory.plain), "in-backward": _moments(memory.in_backward)}
    return replace(showcase, gradients=gradients, times=times)


def _moments(curve: MemoryCurve) -> Moments:
    """Instants evenly over the phase they lie in, so that both loops' forwards and backwards lie over each other."""
    labels = [point.label.partition(" ")[0] for point in curve.points]
    seen = dict.fromkeys(PHASES, 0)
    moments: list[tuple[float, int]] = []
    for label, point in zip(labels, curve.points):
        if not moments or moments[-1][1] != point.gradient:  # other memory changes more often
            moments.append((PHASES.index(label) + seen[label] / labels.count(label), point.gradient))
        seen[label] += 1
    return tuple(moments)


def describe_losses(curves: Curves) -> str:
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
    if not math.isfinite(curves.differences[at]):
        plain, in_backward = curves.plain.losses[at], curves.in_backward.losses[at]
        hidden = sum(not math.isfinite(difference) for difference in curves.differences)
        return said + (
            f"In iteration {at} the loss is {in_backward:.3g}; in the usual loop it is {plain:.3g}. The curves cannot "
            f"show {hidden} of {len(curves.differences)} iterations."
        )
    ratio = f", {curves.ratios[at]:.3g} times the noise floor" if curves.ratios else ""
    return said + (
        f"The losses are farthest apart in iteration {at}, by {abs(curves.differences[at]):.3g}{ratio}; "
        f"up to {LIMIT:g} times is rounding."
    )


def describe_gradients(gradients: Mapping[str, Moments]) -> str:
    """What is saved, in words."""
    plain, in_backward = (max(size for _, size in gradients[side]) for side in ("plain", "in-backward"))
    return (
        f"At its peak the usual loop holds {plain / 1024:.1f} KiB of gradients, the implementation "
        f"{in_backward / 1024:.1f} KiB: {in_backward / plain:.0%}. What that means for a model of yours: "
        "inbackward memory."
    )


def describe_times(times: Times) -> str:
    """What it costs, in words."""
    ratio = times.ratio
    return (
        f"An iteration takes {ratio.median:.2f} times as long as the usual loop's (95 % interval {ratio.low:.2f} to "
        f"{ratio.high:.2f}, from {len(times.plain)} iterations of either in turn). On a model this small it is "
        "mostly the cost of Python."
    )
