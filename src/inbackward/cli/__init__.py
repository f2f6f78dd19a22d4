"""The command ``inbackward``: a thin door. It reads the command line, calls the suite, prints, and exits.

Exit status: 0 nothing worse than refused, unsupported, expected or not run; 1 something is not equivalent or broken, or
a declaration is stale; 2 the command line, the target or a file is wrong; 3 the machine failed or nothing was compared.
torch is imported only by what trains.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from inbackward.cli.arguments import parser
from inbackward.cli.checking import selfcheck
from inbackward.cli.commands import replay, requirements, verify
from inbackward.cli.curves import curves
from inbackward.cli.errors import BROKEN_PIPE, INTERRUPTED, NOTHING_PROVED, WRONG_INPUT, WrongInput, say
from inbackward.cli.memory import memory

__all__ = ["main"]


def command_line() -> ArgumentParser:
    """The parser, with every command there is."""
    return parser(verify, replay, requirements, memory, curves, selfcheck)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Whatever is wrong with the input is one line on stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: the exit status and the files are what is left to tell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names from files may hold what a terminal cannot show
    try:
        arguments = command_line().parse_args(argv)
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except WrongInput as error:
        return say(f"error: {error}", WRONG_INPUT)
    except KeyboardInterrupt:
        return say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader has seen enough
        _let_go_of_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _let_go_of_stdout()
        return say(f"error: this machine failed: {error}", NOTHING_PROVED)
    except Exception:  # never status 1: that would accuse the implementation
        traceback.print_exc()
        return say("error: the lines above show a fault of inbackward itself; please report it", NOTHING_PROVED)


def _run(arguments: Namespace) -> int:
    """Run the command; where the person's own code ends the program, that is no status of this one."""
    try:
        status: int = arguments.run(arguments)
        return status
    except SystemExit as error:
        raise WrongInput(f"the code under test ends the program, by {error!r}; let it raise") from error


def _let_go_of_stdout() -> None:
    """Where it takes nothing more, the interpreter must not try again at exit, with lines and a status of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
