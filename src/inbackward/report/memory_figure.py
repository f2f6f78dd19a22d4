"""The memory of both loops along an iteration, drawn: all of it above, the gradients alone below."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from inbackward.report.plots import GRID, IN_BACKWARD, INK, PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from inbackward.measure import Memory, MemoryCurve, Point

UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
TICKS = 24  # names of modules along the iteration, at most


def draw_memory(figure: Figure, memory: Memory, title: str = "") -> None:
    """Both curves over each other, with their peaks, for ``report.plots``."""
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for axes, what, name in ((above, "total", "all memory"), (below, "gradient", "gradients")):
        peak = max(getattr(p, what) for c in (memory.plain, memory.in_backward) for p in c.points)
        unit = next(unit for unit, size in UNITS.items() if peak >= size or size == 1)
        _curve(axes, "plain", memory.plain, what, unit, {"color": PLAIN, "linewidth": 2.6, "alpha": 0.6})
        _curve(axes, "in-backward", memory.in_backward, what, unit, {"color": IN_BACKWARD, "linewidth": 1.2})
        axes.set_ylabel(f"{name}, {unit} on a rank")
        axes.set_ylim(0, 1.15 * max(peak, 1) / UNITS[unit])
        axes.grid(visible=False, axis="x")
    _phases(above, below, memory.plain.points)
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize="medium")


def _curve(axes: Axes, label: str, curve: MemoryCurve, what: str, unit: str, look: dict[str, Any]) -> None:
    """One line, with a dot at its peak that says how much it is."""
    along, values = _along(curve.points), [getattr(point, what) / UNITS[unit] for point in curve.points]
    axes.plot(along, values, drawstyle="steps-post", label=label, **look)
    top = max(range(len(values)), key=values.__getitem__)
    axes.plot(along[top], values[top], "o", color=look["color"], markersize=5)
    axes.annotate(
        f"{values[top]:.1f}" if values[top] >= 10 else f"{values[top]:.2f}",
        (along[top], values[top]),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        color=look["color"],
        fontweight="bold",
    )


def _along(points: Sequence[Point]) -> list[float]:
    """Where each point lies: a place in the model is as wide as any other, however many instants it has."""
    along: list[float] = []
    for place, (_, run) in enumerate(groupby(points, key=lambda point: point.label)):
        count = len(list(run))
        along += [place + i / count for i in range(count)]
    return along


def _phases(above: Axes, below: Axes, points: Sequence[Point]) -> None:
    """Forward, backward and step: a shade behind each backward, a word above, and names of modules below."""
    labels = [label for label, _ in groupby(point.label for point in points)]
    start = 0
    for phase, run in groupby(labels, key=lambda label: label.partition(" ")[0]):
        end = start + len(list(run))
        if phase == "backward":
            for axes in (above, below):
                axes.axvspan(start, end, color=GRID, alpha=0.4, zorder=0, linewidth=0)
        narrow = end - start == 1
        above.annotate(
            phase,
            (end if narrow else (start + end) / 2, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right" if narrow else "center",
            color=INK,
        )
        start = end
    named = [(place, label.partition(" ")[2]) for place, label in enumerate(labels)]
    shown = [each for each in named if each[1]][:: max(1, len(named) // TICKS)]
    below.set_xticks([i + 0.5 for i, _ in shown], [name for _, name in shown], rotation=60, ha="right", fontsize=8)
    below.set_xlim(0, len(labels))
