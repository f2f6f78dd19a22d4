"""How the command speaks of what went wrong: one line on stderr, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from inbackward.wording import one_line

OK, FAILED, WRONG_INPUT, NOTHING_PROVED, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141


class WrongInput(Exception):
    """What a person gave cannot be used; the message is the one line that says what, and the mend."""


@contextmanager
def wrong_input() -> Iterator[None]:
    """A ``ValueError`` or ``TypeError`` raised inside says what is wrong with the input."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise WrongInput(str(error)) from error


def say(message: str, status: int) -> int:
    """Print one line on stderr, whatever the message holds, and pass the status on."""
    print("inbackward:", one_line(message), file=sys.stderr)
    return status
