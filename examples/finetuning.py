"""What both recipes share: the switch, the options, the schedule and the log of losses.

`OPTIMIZERS` is the whole difference between the usual loop and the step inside `backward()`. The loop is written for
`OptimizerInBackward`; `PlainAdamW` gives the optimizer that everyone has the three methods which that loop calls.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from inbackward import OptimizerInBackward
from inbackward.report.files import write_text
from inbackward.scenario import DataConfig, ModelConfig
from inbackward.scenario.data import batch, standard_library_text

MODEL = ModelConfig(layers=4, dim=64, hidden=128)
DATA = DataConfig(batch=8, length=64)


class PlainAdamW(AdamW):
    """AdamW of the usual loop, which `step()` updates, for a loop that says when not to step and what to clip to."""

    def no_step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor, *, max_norm: float) -> Tensor:
        loss.backward()
        return clip_grad_norm_([p for group in self.param_groups for p in group["params"]], max_norm)

    def register_ddp(self, module: torch.nn.Module) -> None:
        """All gradients are reduced before `step()`."""


OPTIMIZERS: dict[str, Any] = {"plain": PlainAdamW, "in-backward": partial(OptimizerInBackward, optimizer_cls=AdamW)}


def warm_up_then_cosine(optimizer: Optimizer, steps: int) -> LambdaLR:
    """Up within a tenth of the steps, then down to nothing (Loshchilov & Hutter 2017)."""
    warm_up = max(1, steps // 10)
    return LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * max(0, step - warm_up) / max(1, steps - warm_up))
        ),
    )


def loss_of(model: torch.nn.Module, args: argparse.Namespace, step: int, micro_batch: int, rank: int = 0) -> Tensor:
    """The part of one micro-batch in the mean loss of a step, whose data follow from seed, step, micro-batch and rank.

    So a checkpoint need not say how far the data were read.
    """
    tokens, successors = batch(DATA, args.seed, step, micro_batch, rank, text=args.text)
    logits = model(tokens.to(args.device))
    return cross_entropy(logits.flatten(0, 1), successors.to(args.device).flatten()) / args.micro_batches


class Losses:
    """`losses.csv`, written whole or not at all, with each checkpoint: what came after the last is trained again.

    Args:
        folder: made if it is not there.
        done: the steps that the checkpoint holds; later rows of an earlier run are dropped.
    """

    def __init__(self, folder: Path, done: int) -> None:
        self.path = folder / "losses.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"--out {folder}: {error.strerror}; name a folder that can be written")
        rows = self.path.read_text().splitlines()[1:] if done and self.path.exists() else []
        self.rows = [row for row in rows if int(row.split(",")[0]) <= done]

    def add(self, *values: float) -> None:
        self.rows.append(",".join(map(repr, values)))

    def write(self) -> None:
        write_text(self.path, "\n".join(["step,loss,lr,norm", *self.rows]) + "\n")
        print(f"{self.path}: {self.rows[-1]}", flush=True)


def fail(message: str) -> NoReturn:
    """End with one line on stderr, from one rank."""
    if os.environ.get("RANK", "0") == "0":
        print(f"{Path(sys.argv[0]).name}:", " ".join(message.split()), file=sys.stderr)
    raise SystemExit(2)


def check_unfinished(args: argparse.Namespace, done: int) -> None:
    if done >= args.steps:
        fail(f"--resume {args.resume} has done {done} steps already; give --steps above that")


class Parser(argparse.ArgumentParser):
    """The options of both recipes; what is wrong with one is said in one line."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--optimizer", choices=OPTIMIZERS, default="in-backward")
        self.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for losses.csv and checkpoints")
        self.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="of either optimizer: FOLDER/step-...")
        self.add_argument("--text", type=_text, metavar="FILE", help="default: the standard library's own sources")
        self.add_argument("--steps", type=_positive(int), default=200, help="of the whole run, and of its schedule")
        self.add_argument("--save-every", type=_positive(int), default=100, metavar="STEPS")
        self.add_argument("--micro-batches", type=_positive(int), default=1, help="gradients summed for a step")
        self.add_argument("--lr", type=_positive(float), default=3e-3)
        self.add_argument("--max-norm", type=_positive(float), default=1.0, help="of all gradients together")
        self.add_argument("--seed", type=int, default=0)
        self.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")

    def parse(self, argv: Iterable[str] | None, checkpoint: str) -> argparse.Namespace:
        """The options; `checkpoint` is the file, seen from what `--resume` names, that a whole checkpoint has."""
        args = self.parse_args(None if argv is None else list(argv))
        if args.resume is not None and not (args.resume / checkpoint).is_file():
            self.error(f"--resume {args.resume}: there is no checkpoint; name one that --save-every has left in --out")
        if args.device == "cuda" and not torch.cuda.is_available():
            self.error("--device cuda: torch sees no GPU here; use --device cpu")
        if args.text is None:
            args.text = standard_library_text()
        return args

    def error(self, message: str) -> NoReturn:
        fail(message)


def _text(name: str) -> Tensor:
    try:
        content = bytearray(Path(name).read_bytes())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be read: {error.strerror}") from error
    if len(content) <= DATA.length + 1:
        raise argparse.ArgumentTypeError(f"{name} has {len(content)} bytes; at least {DATA.length + 2} are needed")
    return torch.frombuffer(content, dtype=torch.uint8)


def _positive(kind: type) -> Any:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is no positive {kind.__name__}")
        return value

    return convert
