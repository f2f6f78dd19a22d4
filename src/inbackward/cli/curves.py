"""``inbackward curves``: both loops over a longer run on real text, their losses in a table and a plot."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inbackward.cli.errors import FAILED, NOTHING_PROVED, OK, WrongInput, wrong_input
from inbackward.cli.inputs import prepare, under_test
from inbackward.extras import require_extra

if TYPE_CHECKING:
    from torch import Tensor

    from inbackward.curves import Corpus, Curve, Curves, Progress
    from inbackward.report import Screen
    from inbackward.scenario import Scenario
    from inbackward.verification import Suite

LEAST_TEXT = 1000  # bytes, of which a tenth is held out and must hold more than a window


def curves(arguments: argparse.Namespace) -> int:
    """Train both loops, tell how far their losses are apart, and leave a table and a plot."""
    with wrong_input():
        require_extra("plots", "curves")
    implementation, target, _ = under_test(arguments)
    suite = prepare(implementation, arguments, seed=arguments.seed, model=arguments.model)
    from inbackward import report as r
    from inbackward.curves import Checkpoint, train_both
    from inbackward.report.plots import draw_losses, save_figure
    from inbackward.report.showcase import describe_losses
    from inbackward.training import NotRun
    from inbackward.verification import one_thread

    corpus = _corpus(arguments.text)
    with wrong_input():
        scenario = _scenario(suite, arguments.iterations)
    folder = _folder(arguments.out)
    with _alone_in(folder):
        kept = Checkpoint(folder, _key(arguments, target, corpus.text))
        with wrong_input():
            found = kept.load()
            sinks = [r.Sink.of(text) for text in arguments.log]
        screen = r.Screen(sys.stdout, sys.stderr)
        screen.print(
            r.render_header(target, suite, 0)[0],
            f"{scenario.iterations} iterations by {scenario.optimizer.cls.partition(':')[2]}, on "
            f"{len(corpus.training)} bytes of text; {len(corpus.held_out)} held out",
            *([f"taken up again after {len(found['plain']['losses'])} iterations"] if found else []),
        )
        try:
            with closing(suite), redirect_stdout(sys.stderr), one_thread():
                done = train_both(implementation, scenario, suite.device, corpus, kept, _shown_on(screen))
        except NotRun as reason:
            raise WrongInput(f"{target} cannot be trained: {reason}") from reason
        finally:
            screen.erase()
        screen.print("", describe_losses(done))
        r.write_text(folder / "curves.csv", _table(done))
        for name in ("curves.png", "curves.svg"):
            save_figure(folder / name, draw_losses, done)
        for sink in sinks:
            sink.write(r.Log(target=target, curves=done))
        kept.remove()
        screen.print(f"written to {folder}: curves.csv, curves.png, curves.svg")
    if done.plain.stopped:
        return NOTHING_PROVED
    return FAILED if done.in_backward.stopped or not done.within_noise else OK


def _shown_on(screen: Screen) -> Progress:
    from inbackward.curves import Progress

    class Shown(Progress):
        head = f"\n{'iteration':>9}{'plain':>12}{'in-backward':>14}{'held out: plain':>18}{'in-backward':>14}"

        def trained(self, done: int, total: int, what: str) -> None:
            screen.running(done, total, what)

        def reached(self, plain: Curve, in_backward: Curve) -> None:
            screen.erase()
            if self.head:
                screen.print(self.head)
                self.head = ""
            at = max(len(plain.losses), len(in_backward.losses)) - 1
            losses = [curve.losses[at] if at < len(curve.losses) else math.nan for curve in (plain, in_backward)]
            losses += [curve.held_out[-1][1] if curve.held_out else math.nan for curve in (plain, in_backward)]
            screen.print(f"{at:>9}{losses[0]:>12.5f}{losses[1]:>14.5f}{losses[2]:>18.5f}{losses[3]:>14.5f}")

        def differs(self, runs: int) -> None:
            screen.print("", f"the losses differ; {runs} more runs of the usual loop, to measure its own noise")

        def not_kept(self, reason: str) -> None:
            screen.erase()
            screen.print(f"it cannot be taken up again if it is interrupted: {reason}")

    return Shown()


def _corpus(path: str | None) -> Corpus:
    import torch

    from inbackward.curves import Corpus
    from inbackward.scenario.data import standard_library_text

    if path is None:
        try:
            return Corpus(standard_library_text())
        except RuntimeError:
            raise WrongInput("this Python ships no sources of its standard library; give --text FILE") from None
    try:
        content = bytearray(Path(path).read_bytes())
    except OSError as error:
        raise WrongInput(f"--text cannot read {path!r}: {error.strerror}; name a file of text") from error
    if len(content) < LEAST_TEXT:
        raise WrongInput(f"--text {path!r} has {len(content)} bytes; name a file of at least {LEAST_TEXT}")
    return Corpus(torch.frombuffer(content, dtype=torch.uint8))


def _scenario(suite: Suite, iterations: int) -> Scenario:
    """A plain run with the schedule of a real one, larger than those that the requirements need."""
    from inbackward.scenario import DataConfig, ModelConfig, Scenario, ScheduleConfig, without

    arm = suite.arms[0]
    scenario = Scenario(
        name="curves",
        seed=suite.seed * 100_000,
        iterations=iterations,
        model=suite.model or ModelConfig(layers=4, dim=128, hidden=256),
        data=DataConfig(batch=8, length=64),
        optimizer=arm.config,
        schedule=ScheduleConfig(cls="LambdaLR", factors=(_factors(iterations),)) if arm.has("lr") else None,
    )
    for id in suite.implementation.unsupported:
        scenario = without(scenario, id)
    return scenario


def _factors(iterations: int) -> tuple[float, ...]:
    """Up within a tenth of the iterations, then down by a cosine to a tenth (Loshchilov & Hutter 2017)."""
    warm_up = max(1, iterations // 10)
    return tuple(
        min((i + 1) / warm_up, 0.55 + 0.45 * math.cos(math.pi * max(0, i - warm_up) / max(1, iterations - warm_up)))
        for i in range(iterations)
    )


def _folder(name: str) -> Path:
    from inbackward.report import require_folder

    try:
        require_folder(Path(name))
    except OSError as error:
        mend = "name a folder that may be written"
        raise WrongInput(f"--out cannot write into {name!r}: {error.strerror}; {mend}") from error
    return Path(name)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Refuse a folder that another run is writing into; a kill lets go of it, too."""
    with ExitStack() as stack:
        with suppress(ImportError, OSError):  # Windows, or a file system without locks
            import fcntl

            opened = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, opened)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WrongInput(f"--out {str(folder)!r}: another run is writing there; give another folder") from None
        yield


def _key(arguments: argparse.Namespace, target: str, text: Tensor) -> dict[str, Any]:
    """What the numbers depend on, by the names that a person knows."""
    import torch

    from inbackward import __version__

    return {
        "target": target,
        **{f"--{name}": getattr(arguments, name) for name in ("iterations", "model", "seed", "device")},
        "text": sha256(text.numpy().tobytes()).hexdigest(),
        "torch": str(torch.__version__),
        "version of inbackward": __version__,
    }


def _table(curves: Curves) -> str:
    """CSV, a row an iteration; a cell is empty where nothing was measured."""
    sides = {"plain": curves.plain, "in_backward": curves.in_backward}
    columns: dict[str, dict[int, float]] = {name: dict(enumerate(curve.losses)) for name, curve in sides.items()}
    columns["difference"] = dict(enumerate(curves.differences))
    columns["noise_units"] = dict(enumerate(curves.ratios))
    columns |= {f"{name}_held_out": {n - 1: loss for n, loss in curve.held_out} for name, curve in sides.items()}
    lines = [",".join(["iteration", *columns])]
    for i in range(max(len(curve.losses) for curve in sides.values())):
        lines.append(",".join([str(i), *(repr(column[i]) if i in column else "" for column in columns.values())]))
    return "\n".join(lines) + "\n"
