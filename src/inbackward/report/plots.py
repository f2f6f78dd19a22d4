"""Figures, by matplotlib: into a page as SVG in its colours, or into a file.

Text stays text, ids come from a salt and no date is written: the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inbackward.curves import Curves
from inbackward.judging.noise import LIMIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and vermillion of Okabe and Ito's palette, which colour-blind people tell apart, and greys. A page puts its own
# variables in their places, so that it can be dark.
PLAIN, IN_BACKWARD, INK, GRID, LIMIT_LINE = "#0072b2", "#d55e00", "#50565f", "#dfe2e6", "#8a6d00"
VARIABLES = {
    PLAIN: "var(--plain)",
    IN_BACKWARD: "var(--in-backward)",
    INK: "var(--ink-2)",
    GRID: "var(--line)",
    LIMIT_LINE: "var(--limit)",
}
_UNDATED: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
WIDE, NARROW = (7.6, 4.4), (3.4, 3.8)  # inches; at 100 pixels each, a page and a phone
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
}


def draw_losses(figure: Figure, curves: Curves) -> None:
    """Both losses over each other, and below how far they are apart in units of the reference's own noise."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 2))
    for side, curve, colour, width, alpha, mark in (
        ("plain", curves.plain, PLAIN, 4.5, 0.55, "o"),
        ("in-backward", curves.in_backward, IN_BACKWARD, 1.3, 1.0, "x"),
    ):
        above.plot(range(len(curve.losses)), curve.losses, label=side, color=colour, linewidth=width, alpha=alpha)
        if curve.held_out:
            at, losses = [done - 1 for done, _ in curve.held_out], [loss for _, loss in curve.held_out]
            above.plot(at, losses, label=f"{side}, held out", color=colour, alpha=alpha, marker=mark, linestyle="")
    above.set_title("training loss" + (" and held-out loss" if curves.plain.held_out else ""))
    figure.legend(loc="outside upper right", ncols=2)
    _differences(below, curves)
    below.set_xlabel("iteration")
    below.margins(x=0.01)


def _differences(axes: Axes, curves: Curves) -> None:
    in_units = bool(curves.ratios)
    values = curves.ratios if in_units else [abs(d) for d in curves.differences]
    shown = [value if value < 1e30 else float("nan") for value in values]
    axes.plot(range(len(shown)), shown, color=IN_BACKWARD, linewidth=1.3)
    if in_units:
        axes.axhline(LIMIT, color=LIMIT_LINE, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.set_title(f"difference in noise units (limit {LIMIT:g})")
        axes.set_yscale("symlog", linthresh=LIMIT)
        axes.set_ylim(-LIMIT / 16, max([4 * LIMIT, *(2 * value for value in shown if value == value)]))
        axes.set_yticks([0, LIMIT, *(10.0**k for k in range(2, 31, 2) if 10.0**k < axes.get_ylim()[1])])
        axes.set_yticklabels([f"{t:g}" for t in axes.get_yticks()])
        axes.minorticks_off()
    else:
        axes.set_title("difference")


def draw_gradients(figure: Figure, gradients: Mapping[str, Sequence[tuple[float, int]]]) -> None:
    """Bytes of live gradients over one iteration of either loop, phase by phase.

    Args:
        gradients: ``plain`` and ``in-backward``: when, in phases from the start, and how many bytes.
    """
    axes = figure.subplots()
    for side, colour, width in (("plain", PLAIN, 2.2), ("in-backward", IN_BACKWARD, 1.6)):
        times = [*(when for when, _ in gradients[side]), 3.0]
        sizes = [size / 1024 for _, size in gradients[side]]
        axes.plot(times, [*sizes, sizes[-1]], label=side, drawstyle="steps-post", color=colour, linewidth=width)
        axes.fill_between(times, [*sizes, sizes[-1]], step="post", color=colour, alpha=0.12, linewidth=0)
    axes.set_title("live gradients, KiB")
    axes.set_xticks([0.5, 1.5, 2.5], ["forward", "backward", "step"])
    axes.grid(visible=False, axis="x")
    for boundary in (1, 2):
        axes.axvline(boundary, color=GRID, linewidth=0.8)
    axes.set_xlim(0, 3)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper right", ncols=2)


def inline_svg(draw: Any, *data: Any, name: str, size: tuple[float, float]) -> str:
    """A figure as an ``<svg>`` element for a page whose colours are CSS variables.

    Args:
        draw: called with the figure and ``data``.
        name: sets its ids apart from those of the page's other figures.
    """
    text = _rendered(draw, data, name, size, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->| xmlns(:xlink)?=\"[^\"]*\"", "", text, flags=re.DOTALL)
    text = re.sub(r"(<g) id=\"[^\"]*\"", r"\1", text)  # figure_1, axes_1: again in every figure
    text = re.sub(r"^<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", r'<svg \1 class="figure" aria-hidden="true">', text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return text


def save_figure(path: Path, draw: Any, *data: Any, size: tuple[float, float] = WIDE) -> None:
    """Write a figure on white as PNG, SVG or PDF, as the path's ending says; whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    from inbackward.report.files import write_bytes

    write_bytes(path, _rendered(draw, data, path.stem, size, path.suffix.removeprefix("."), facecolor="white"))


def _rendered(draw: Any, data: Any, salt: str, size: tuple[float, float], format: str, **more: Any) -> bytes:
    with _style(salt):
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        draw(figure, *data)
        file = io.BytesIO()
        figure.savefig(file, format=format, metadata=_UNDATED[format], **more)
    return file.getvalue()


@contextmanager
def _style(salt: str) -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"inbackward-{salt}"}):
        yield
