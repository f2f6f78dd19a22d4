"""Where curves and verdicts are followed over many runs: TensorBoard's event files, and Weights & Biases.

Both loops go under the same names in two runs, ``plain`` and ``in-backward``, which either tool draws in one chart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inbackward.curves import Curves
from inbackward.extras import require_extra
from inbackward.report.files import require_folder
from inbackward.report.report import Row, summary
from inbackward.report.showcase import Moments
from inbackward.wording import printable

ITERATION, MOMENT = "iteration", "moment"  # what is counted; a moment is a millionth of a phase
FORBIDDEN, NAME = "/\\#?%:", 128  # characters in the name of a W&B project, and the length of a group's
OFFLINE = ("offline", "disabled", "dryrun")  # values of WANDB_MODE that need no account


@dataclass(frozen=True, kw_only=True)
class Log:
    """What there is to follow.

    Attributes:
        target: what was under test.
        rows: of a report; none where only curves were trained.
    """

    target: str
    rows: Sequence[Row] = ()
    curves: Curves | None = None
    gradients: Mapping[str, Moments] | None = None

    def series(self) -> Iterator[tuple[str, str, str, list[tuple[int, float]]]]:
        """The run, the name, what is counted, and the values."""
        if self.curves is not None:
            for run, curve in (("plain", self.curves.plain), ("in-backward", self.curves.in_backward)):
                yield run, "loss", ITERATION, list(enumerate(curve.losses))
                yield run, "held-out loss", ITERATION, [(done - 1, loss) for done, loss in curve.held_out]
            yield "in-backward", "difference in noise units", ITERATION, list(enumerate(self.curves.ratios))
        for run, moments in (self.gradients or {}).items():
            yield run, "gradient bytes", MOMENT, [(round(1e6 * when), size) for when, size in moments]

    def table(self) -> list[list[str]]:
        """Requirement, verdict, strategies and message."""
        return [
            [row.entry["id"], str(row.verdict), ", ".join(row.entry["by_strategy"]), printable(row.entry["message"])]
            for row in self.rows
        ]


@dataclass(frozen=True)
class Sink:
    """A place that was named by ``kind:where``, and found to be usable."""

    kind: str
    where: str

    @classmethod
    def of(cls, text: str) -> Sink:
        """The sink that a command line names.

        Raises:
            ValueError: it is unknown, its package is missing, its folder cannot be written, or there is no account; one
                line with the mend.
        """
        kind, _, where = text.partition(":")
        if kind not in _WRITE or not where:
            raise ValueError(f"--log is {text!r}; give tensorboard:DIR or wandb:PROJECT")
        require_extra(kind, f"--log {text}")
        if kind == "tensorboard":
            _require_folder(Path(where))
        else:
            if set(where) & set(FORBIDDEN) or len(where) > NAME:
                raise ValueError(f"--log wandb: no project can be called {where!r}; leave out {FORBIDDEN} and be short")
            _require_account()
        return cls(kind, where)

    def write(self, log: Log) -> None:
        """Hand everything over.

        Raises:
            OSError: it was not taken.
        """
        _WRITE[self.kind](self.where, log)


def _require_folder(folder: Path) -> None:
    try:
        require_folder(folder)
    except OSError as error:
        mend = "name a folder that may be written"
        raise ValueError(f"--log cannot write into {str(folder)!r}: {error.strerror}; {mend}") from error


def _require_account() -> None:
    import wandb

    if os.environ.get("WANDB_MODE", "online") in OFFLINE:
        return
    mend = "run 'wandb login', or set WANDB_MODE=offline"
    try:
        logged_in = wandb.login(prompt=False)
    except wandb.Error as error:
        raise ValueError(f"--log wandb: {error}; {mend}") from error
    if not logged_in:
        raise ValueError(f"--log wandb: nobody is logged in; {mend}")


def _write_tensorboard(folder: str, log: Log) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for run in ("plain", "in-backward"):
        with SummaryWriter(str(Path(folder, run))) as writer:
            for _, name, _, values in (each for each in log.series() if each[0] == run):
                for step, value in values:
                    writer.add_scalar(name, value, step)
            if run == "in-backward" and log.rows:
                lines = ["| requirement | verdict | strategies | message |", "|---|---|---|---|"]
                lines += ["| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |" for cells in log.table()]
                writer.add_text("verdicts", "\n".join(lines))
                for name, count in summary(log.rows).items():
                    writer.add_scalar(f"summary/{name}", count)


def _write_wandb(project: str, log: Log) -> None:
    import wandb

    settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True)
    series = list(log.series())
    try:
        for name in ("plain", "in-backward") if series else ("in-backward",):
            run = wandb.init(
                project=project, group=log.target[:NAME], name=name, reinit="create_new", settings=settings
            )
            _fill(run, [(tag, axis, values) for of, tag, axis, values in series if of == name])
            if name == "in-backward" and log.rows:
                run.log({"verdicts": wandb.Table(["requirement", "verdict", "strategies", "message"], log.table())})
                run.summary.update({f"summary/{key}": count for key, count in summary(log.rows).items()})
            run.finish()
    except wandb.Error as error:
        raise OSError(f"W&B did not take the log: {error}") from error


def _fill(run: Any, series: list[tuple[str, str, list[tuple[int, float]]]]) -> None:
    for axis in (ITERATION, MOMENT):
        rows: dict[int, dict[str, float]] = {}
        for tag, of, values in series:
            if of == axis:
                run.define_metric(tag, step_metric=axis)
                for step, value in values:
                    rows.setdefault(step, {axis: step})[tag] = value
        for _, row in sorted(rows.items()):
            run.log(row)


_WRITE = {"tensorboard": _write_tensorboard, "wandb": _write_wandb}
