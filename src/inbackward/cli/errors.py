"""How the command speaks of what went wrong: one line on stderr, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

OK, FAILED, WRONG_INPUT, NOTHING_PROVED, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141


class WrongInput(Exception):
    """What a person gave cannot be used; the message is the one line that says what, and the mend."""


@contextmanager
def wrong_input(before: str = "") -> Iterator[None]:
    """What is raised inside says what is wrong with the input; ``before`` leads the line."""
    try:
        yield
    except OSError as error:
        raise WrongInput(before + (error.strerror or str(error))) from error
    except (ValueError, TypeError) as error:
        raise WrongInput(f"{before}{error}") from error


def quote(error: BaseException) -> str:
    """The exception as a person would meet it."""
    return f"{type(error).__name__}: {error}"


def say(message: str, status: int) -> int:
    """Print one line on stderr, whatever the message holds, and pass the status on."""
    print("inbackward:", " ".join(message.split()), file=sys.stderr)
    return status
