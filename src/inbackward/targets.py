"""Finding what a person named on a command line: ``module:attribute``, as their own project sees it."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from inbackward.wording import named, one_line

DEFAULT = "inbackward:OptimizerInBackward"


def load(path: str, what: str = "the target", search: Sequence[str | Path] = ()) -> Any:
    """The object that ``module:attribute`` names.

    Args:
        path: ``module:attribute``; the attribute may be dotted.
        what: what the line of an error calls it.
        search: folders put at the front of ``sys.path`` where they are not on it yet.

    Raises:
        ValueError: the form is wrong, the module does not import, or the attribute is missing; one line with the mend.
    """
    for folder in reversed([str(f) for f in search]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"{what} is {path!r}; write it as module:attribute, such as {DEFAULT}")
    try:
        module = import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import runs the user's code, which may raise anything, or exit
        missing = isinstance(error, ModuleNotFoundError) and error.name in (module_name, module_name.partition(".")[0])
        mend = "; run where it can be imported from, or install it" if missing else ""
        raise ValueError(f"{what} {path!r} does not import: {one_line(named(error))}{mend}") from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{what} {path!r}: module {module_name} has no attribute {attribute!r}{hint}") from None
    except Exception as error:  # a module's own __getattr__
        raise ValueError(f"{what} {path!r} cannot be had: {one_line(named(error))}") from error
