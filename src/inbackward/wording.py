"""Text that other people's code gave, for a line of a terminal, a file or a page."""

from __future__ import annotations

import re
from unicodedata import category

_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-_])")


def printable(text: str) -> str:
    """``text`` without a terminal's colours, and with what a screen could not show, or would obey, written out."""
    return "".join(c if _shows(c) else c.encode("unicode_escape").decode() for c in _ANSI.sub("", text))


def _shows(c: str) -> bool:
    return c.isprintable() or c in "\n\t" or category(c) == "Zs"  # the spaces of a script, or that do not break


def one_line(text: str) -> str:
    """``printable``, on one line."""
    return printable(" ".join(text.split()))


def said(error: BaseException) -> str:
    """The exception's own message; its ``__str__`` is other people's code, too, and may raise."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        return f"its message cannot be had: {type(raised).__name__}"


def named(error: BaseException) -> str:
    """The exception as a person would meet it: its class and its message."""
    return f"{type(error).__name__}: {said(error)}"
