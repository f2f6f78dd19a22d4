"""The page of a requirement: what must hold, why it breaks, what a report looks like, how it is mended."""

from __future__ import annotations

from importlib.resources import files

from inbackward.requirements.catalogue import CATALOGUE, require_known


def page(id: str) -> str:
    """The page of ``id`` as Markdown, shipped with the package so that ``inbackward requirements ID`` works anywhere.

    A requirement that has no page yet has its title and its sentence.

    Raises:
        ValueError: there is no such requirement; the line names the nearest.
    """
    require_known([id], "page()")
    file = files("inbackward.requirements") / "pages" / f"{id}.md"
    return file.read_text(encoding="utf-8") if file.is_file() else f"# {id}\n\n{CATALOGUE[id].sentence}\n"
