"""The page of a requirement: what must hold, why it breaks, what a report looks like, how it is mended."""

from __future__ import annotations

from importlib.resources import files

from inbackward.requirements.catalogue import require_known


def page(id: str) -> str:
    """The page of ``id`` as Markdown, shipped with the package so that ``inbackward requirements ID`` works anywhere.

    Raises:
        ValueError: there is no such requirement; the line names the nearest.
    """
    require_known([id], "page()")
    return (files("inbackward.requirements") / "pages" / f"{id}.md").read_text(encoding="utf-8")
