"""What the page shows of a training run: figures twice, for wide screens and for phones, with their words."""

from __future__ import annotations

from typing import Any

from inbackward.report.plots import NARROW, WIDE, draw_gradients, draw_losses, inline_svg
from inbackward.report.showcase import Showcase, describe_gradients, describe_losses, describe_times


def pictures(showcase: Showcase) -> dict[str, Any]:
    """What the template is given."""
    if showcase.curves is None:
        return {"why_not": showcase.why_not}
    figures = [_figure("Loss", describe_losses(showcase.curves), draw_losses, showcase.curves)]
    if showcase.gradients is not None:
        caption = describe_gradients(showcase.gradients)
        figures.append(_figure("Gradient memory", caption, draw_gradients, showcase.gradients))
    return {
        "why_not": "",
        "why_not_measured": showcase.why_not_measured,
        "about": f"The default scenario of the requirement plain, but {showcase.curves.iterations} iterations long, "
        f"by {showcase.optimizer}, in the usual loop and in the implementation's.",
        "figures": figures,
        "times": describe_times(showcase.times) if showcase.times else "",
    }


def _figure(title: str, caption: str, draw: Any, *data: Any) -> dict[str, Any]:
    from markupsafe import Markup

    sizes = {"wide": WIDE, "narrow": NARROW}
    svg = {name: Markup(inline_svg(draw, *data, name=f"{title} {name}", size=size)) for name, size in sizes.items()}
    return {"title": title, "caption": caption, **svg}
