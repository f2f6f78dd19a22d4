"""The command line, as argparse knows it. Nothing here imports torch: help is instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from inbackward import __version__, targets
from inbackward.cli.errors import WRONG_INPUT, say
from inbackward.scenario.configs import STRATEGIES

Command = Callable[[argparse.Namespace], int]


def parser(
    verify: Command, replay: Command, requirements: Command, memory: Command, curves: Command, selfcheck: Command
) -> argparse.ArgumentParser:
    """The parser whose result carries the chosen command as ``run``."""
    top = _Parser(
        prog="inbackward",
        description="Does training with the optimizer stepping inside loss.backward() give the same numbers\n"
        "as the usual loop?",
        epilog="exit status: 0 all held; 1 something is not equivalent, broken, or declared without need;\n"
        "2 wrong input; 3 the machine failed, or nothing was compared",
    )
    top.add_argument("--version", action="version", version=f"inbackward {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(run: Command, text: str, example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(run.__name__, help=text, description=text, epilog=f"example:\n  {example}")
        sub.set_defaults(run=run)
        return sub

    sub = command(
        verify,
        "Judge an implementation and report.",
        "inbackward verify mypackage.optim:MyOptimizer --only lr-schedule,resume --json report.json",
    )
    _under_test(sub)
    add = sub.add_argument
    add("--only", action="append", metavar="ID,...", help="these requirements; every one if left out")
    add("--skip", action="append", metavar="ID,...", help="none of these requirements")
    add("--model", default="", metavar="MODULE:FACTORY", help="your own model in the place of the default one")
    add(
        "--strategy",
        default="single",
        metavar="NAME,...",
        help=f"{', '.join(STRATEGIES)} (default: single)",
    )
    add("--world-size", type=_positive, default=2, metavar="N", help="ranks of a strategy; single has none")
    add("--profile", choices=("quick", "ci", "thorough"), default="quick", help="how many generated scenarios")
    add("--seed", type=_whole_number, default=0, metavar="N", help="shifts the seed of every scenario")
    add("--json", metavar="FILE", help="write the report, of schema inbackward.report/1")
    add("--html", metavar="FILE", help="write the report as one page, with the curves of one training run")
    _log(sub)
    add("--fail-fast", action="store_true", help="end the run at the first requirement that fails")
    add("--list-unsupported", action="store_true", help="print an unsupported={...} of what failed")

    sub = command(
        replay,
        "Run one scenario again and print all its numbers.",
        "inbackward replay .inbackward/lr-schedule-step-adamw.json mypackage.optim:MyOptimizer",
    )
    sub.add_argument("file", metavar="FILE", help="a scenario, of schema inbackward.scenario/1")
    sub.add_argument("--shrink", action="store_true", help="also find a simpler scenario that fails likewise")
    _under_test(sub)

    sub = command(
        curves,
        "Train both loops for longer on real text, and plot their losses.",
        "inbackward curves mypackage.optim:MyOptimizer --iterations 300 --out curves",
    )
    _under_test(sub)
    add = sub.add_argument
    add(
        "--iterations",
        type=_positive,
        default=300,
        metavar="N",
        help="of each loop (default: 300, which takes minutes)",
    )
    add(
        "--out",
        default="curves",
        metavar="DIR",
        help="for curves.csv, .png and .svg, and for taking up again what was interrupted (default: curves)",
    )
    add("--model", default="", metavar="MODULE:FACTORY", help="your own model in the place of a small transformer")
    add("--seed", type=_whole_number, default=0, metavar="N", help="of weights and data")
    add("--text", metavar="FILE", help="to train on; the sources of Python's standard library if left out")
    _log(sub)

    sub = command(requirements, "List what an implementation is held to.", "inbackward requirements lr-schedule")
    sub.add_argument("id", nargs="?", metavar="ID", help="one requirement; every one if left out")

    _memory(
        command(
            memory,
            "Simulate the memory of a training iteration, plain and in backward, without weights or GPUs.",
            "inbackward memory --model llama2-7b --dtype bf16 --strategy fsdp2 --world-size 2 --plot memory.png",
        )
    )

    sub = command(
        selfcheck,
        "Run shipped faults, which must be caught, and right implementations, which must not be accused.",
        "inbackward selfcheck --only lr-schedule,wrong-sign",
    )
    sub.add_argument("--only", action="append", metavar="NAME,...", help="these faults, and all of these requirements")
    sub.add_argument("--strategy", default="", metavar="NAME,...", help="faults under these; under all if left out")
    sub.add_argument("--json", metavar="FILE", help="write what was found, of schema inbackward.selfcheck/1")
    return top


def _memory(sub: argparse.ArgumentParser) -> None:
    add = sub.add_argument
    add("target", nargs="?", metavar="TARGET", help=f"MODULE:ATTRIBUTE; {targets.DEFAULT} if left out")
    add(
        "--model", default="llama2-7b", metavar="NAME", help="such as llama2-7b, or MODULE:FACTORY (default: llama2-7b)"
    )
    add("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16", help="of parameters, gradients and state")
    add("--strategy", default="single", metavar="NAME", help="single, ddp, fsdp2 or hsdp (default: single)")
    add("--world-size", type=_positive, default=2, metavar="N", help="ranks of a strategy, up to 4096; single has none")
    add(
        "--shard-size",
        type=_positive,
        default=8,
        metavar="N",
        help="hsdp: ranks that share the parameters (default: 8)",
    )
    add("--batch-size", type=_positive, default=1, metavar="N", help="sequences of a micro-batch on a rank")
    add("--sequence-length", type=_positive, metavar="N", help="tokens of a sequence (default: 2048, or all positions)")
    add("--micro-batches", type=_positive, default=1, metavar="N", help="backwards before a step")
    add("--optimizer", default="AdamW", metavar="CLASS", help="of torch.optim, or MODULE:CLASS (default: AdamW)")
    add(
        "--activation-checkpointing",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="recompute each layer in the backward (default: it is on)",
    )
    add("--json", metavar="FILE", help="write the figures")
    add("--plot", metavar="FILE", help="draw both curves: .png, .svg or .pdf; needs matplotlib")


class _Parser(argparse.ArgumentParser):
    """Its errors are one line, like all others; an option is never guessed from its beginning."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        sys.exit(say(f"error: {message}; see '{self.prog} --help'", WRONG_INPUT))


def _log(sub: argparse.ArgumentParser) -> None:
    text = "tensorboard:DIR or wandb:PROJECT, to follow curves and verdicts there; may be given for each"
    sub.add_argument("--log", action="append", default=[], metavar="SINK", help=text)


def _under_test(sub: argparse.ArgumentParser) -> None:
    which = sub.add_mutually_exclusive_group()
    which.add_argument("target", nargs="?", metavar="TARGET", help=f"MODULE:ATTRIBUTE; {targets.DEFAULT} if left out")
    which.add_argument("--optimizer", metavar="MODULE:CLASS", help="a plain optimizer, to be stepped inside backward")
    sub.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train")


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _positive(text: str) -> int:
    number = _whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number
