"""What a training iteration held in memory, instant by instant: plain data, simulated or observed alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MIB = 2**20
CATEGORIES = ("parameter", "optimizer", "gradient", "activation")


@dataclass(frozen=True, slots=True)
class Point:
    """The bytes of live storages on one rank, at one instant.

    Attributes:
        label: where the iteration was: ``forward layers.3``, ``backward layers.3`` or ``step``.
        parameter: parameters, gathered ones included, and buffers.
        optimizer: the optimizer's state.
        gradient: what was accumulated into a parameter's ``.grad``, until nobody holds it; and DDP's buckets.
        activation: all else: activations, their gradients, and what exists for a moment, such as a gradient that is
            still to be reduced over the ranks.
        allocated: what CUDA's allocator had handed out; ``None`` elsewhere.
    """

    label: str
    parameter: int
    optimizer: int
    gradient: int
    activation: int
    allocated: int | None = None

    @property
    def total(self) -> int:
        return self.parameter + self.optimizer + self.gradient + self.activation


@dataclass(frozen=True)
class MemoryCurve:
    """One iteration on one rank: a point at each instant at which the live bytes changed, in time's order.

    Attributes:
        points: at least one, the start.
        allocated_peak: the most that CUDA's allocator had handed out, between the points too; ``None`` elsewhere.
    """

    points: Sequence[Point]
    allocated_peak: int | None = None

    @property
    def peak(self) -> Point:
        """The first instant at which the total was largest."""
        return max(self.points, key=lambda point: point.total)

    @property
    def gradient_peak(self) -> int:
        """The most bytes of gradients that lived at once."""
        return max(point.gradient for point in self.points)


@dataclass(frozen=True)
class Memory:
    """The two loops beside each other.

    Attributes:
        plain: the usual loop.
        in_backward: the one that steps inside the backward.
        layer_bytes: of the gradients of each layer, on one rank.
    """

    plain: MemoryCurve
    in_backward: MemoryCurve
    layer_bytes: tuple[int, ...] = ()

    @property
    def gradient_per_layer(self) -> int:
        """Bytes of the gradients of one layer, the largest, on one rank."""
        return max(self.layer_bytes, default=0)

    @property
    def saved(self) -> int:
        """Bytes by which the total peak falls; negative where it rises."""
        return self.plain.peak.total - self.in_backward.peak.total

    def to_json(self) -> dict[str, Any]:
        """The figures, in MiB: those that are compared first, then where the peaks sit and what they are made of."""
        return {
            "gradient_per_layer_mib": _mib(self.gradient_per_layer),
            "layers": len(self.layer_bytes),
            "saved_mib": _mib(self.saved),
            "plain": _figures(self.plain),
            "in_backward": _figures(self.in_backward),
        }


def _figures(curve: MemoryCurve) -> dict[str, Any]:
    peak = curve.peak
    figures = {
        "gradient_at_peak_mib": _mib(peak.gradient),
        "gradient_peak_mib": _mib(curve.gradient_peak),
        "total_peak_mib": _mib(peak.total),
        "peak_at": peak.label,
        **{f"{category}_at_peak_mib": _mib(getattr(peak, category)) for category in CATEGORIES},
    }
    if curve.allocated_peak is not None:
        figures["allocated_peak_mib"] = _mib(curve.allocated_peak)
    return figures


def _mib(size: int) -> float:
    return round(size / MIB, 2)
