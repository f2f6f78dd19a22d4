"""``inbackward memory``: what stepping inside the backward saves on each rank, without weights or GPUs."""

from __future__ import annotations

import argparse
import difflib
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inbackward import targets
from inbackward.cli.errors import OK, WrongInput, wrong_input
from inbackward.cli.inputs import of_target, require_writable
from inbackward.extras import require_extra
from inbackward.wording import named

if TYPE_CHECKING:
    from torch import nn

    from inbackward.measure import Memory, Setup

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SEQUENCE_LENGTH = 2048
KINDS, SIZE = (".png", ".svg", ".pdf"), (9.0, 5.8)  # of a plot; inches


def memory(arguments: argparse.Namespace) -> int:
    """Simulate an iteration of both loops, print the peaks and what is saved, and write what was asked for."""
    build, longest = _model(arguments.model)
    setup = _setup(arguments, longest)
    implementation = of_target(arguments.target or targets.DEFAULT)
    _require_files(arguments)
    from inbackward.measure import simulate_memory
    from inbackward.report import write_json
    from inbackward.report.memory_figure import draw_memory
    from inbackward.report.plots import save_figure

    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            found = simulate_memory(build, setup, implementation)
    except (Exception, SystemExit) as error:  # the model and the implementation are the person's own code
        by = f", stepped by {arguments.target}," if arguments.target else ""
        raise WrongInput(f"{arguments.model}{by} cannot be simulated: {named(error)}{_mend(error)}") from error
    title = _title(arguments, setup)
    print(title, *_lines(found), sep="\n", flush=True)  # a full disk must not cost the figures
    if arguments.json:
        write_json(arguments.json, {"run": title, **found.to_json()})
    if arguments.plot:
        save_figure(Path(arguments.plot), draw_memory, found, title, size=SIZE)
    return OK


def _model(name: str) -> tuple[Callable[[], nn.Module], int]:
    """What builds the model, and how many tokens it can take, 0 where there is no limit."""
    from inbackward.measure.architectures import MODELS, Decoder

    if ":" in name:
        with wrong_input():
            factory = targets.load(name, "--model", [Path.cwd()])
        if not callable(factory):
            raise WrongInput(f"--model {name} is {factory!r:.80}; name a function that returns a module")
        return factory, 0
    shape = MODELS.get(name)
    if shape is None:
        near = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(MODELS)}, or give MODULE:FACTORY"
        raise WrongInput(f"--model names no model {name!r}; {hint}")
    return lambda: Decoder(shape), shape.positions


def _setup(arguments: argparse.Namespace, longest: int) -> Setup:
    import torch

    from inbackward.measure import Setup

    length = arguments.sequence_length or min(SEQUENCE_LENGTH, longest or SEQUENCE_LENGTH)
    if longest and length > longest:
        raise WrongInput(f"--sequence-length is {length}, and {arguments.model} has {longest} positions; give no more")
    with wrong_input():
        return Setup(
            dtype=getattr(torch, DTYPES[arguments.dtype]),
            strategy=arguments.strategy,
            world_size=arguments.world_size,
            shard_size=arguments.shard_size,
            batch_size=arguments.batch_size,
            sequence_length=length,
            micro_batches=arguments.micro_batches,
            activation_checkpointing=arguments.activation_checkpointing,
            optimizer_cls=_optimizer(arguments.optimizer),
        )


def _optimizer(name: str) -> Any:
    import torch

    if ":" in name:
        found = targets.load(name, "--optimizer", [Path.cwd()])
        if not callable(found):
            raise ValueError(f"--optimizer {name} is {found!r:.80}; name an optimizer class")
        return found
    known = [n for n, o in vars(torch.optim).items() if isinstance(o, type) and o is not torch.optim.Optimizer]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}, or give MODULE:CLASS"
        raise ValueError(f"--optimizer names no optimizer {name!r} of torch.optim; {hint}")
    return getattr(torch.optim, name)


def _require_files(arguments: argparse.Namespace) -> None:
    if arguments.json is not None:
        require_writable("--json", arguments.json)
    if arguments.plot is not None:
        if not arguments.plot.endswith(KINDS):
            raise WrongInput(f"--plot is {arguments.plot!r}; name a file that ends in {', '.join(KINDS)}")
        with wrong_input():
            require_extra("plots", "--plot")
        require_writable("--plot", arguments.plot)


def _mend(error: BaseException) -> str:
    from torch._subclasses.fake_tensor import DataDependentOutputException

    if isinstance(error, DataDependentOutputException):
        return "; it reads a number, and simulated tensors have none: inbackward.measure.observe_memory runs for real"
    return ""


def _title(arguments: argparse.Namespace, setup: Setup) -> str:
    ranks = "" if setup.strategy == "single" else f" on {setup.world_size} rank{'s' * (setup.world_size > 1)}"
    batch = f"{setup.batch_size} x {setup.sequence_length} tokens"
    return ", ".join(
        [
            f"{arguments.model} in {arguments.dtype}",
            getattr(setup.optimizer_cls, "__name__", arguments.optimizer),
            setup.strategy + ranks,
            f"{setup.micro_batches} micro-batches of {batch}" if setup.micro_batches > 1 else batch,
            f"{'with' if setup.activation_checkpointing else 'no'} activation checkpointing",
        ]
    )


def _lines(memory: Memory) -> list[str]:
    figures = memory.to_json()
    plain, ours = figures["plain"], figures["in_backward"]
    per_layer = memory.gradient_per_layer
    layers = f"gradients of a layer: {figures['gradient_per_layer_mib']:,.2f} MiB a rank, {figures['layers']} layers"
    lines = [layers if memory.layer_bytes else "no layers: they are the members of the outermost ModuleList", ""]
    lines.append(f"{'MiB a rank, at the peak of the total':<38}{'plain':>14}{'in backward':>14}")
    rows = {"total": "total_peak_mib"}
    rows |= {
        "  gradients": "gradient_at_peak_mib",
        "  parameters": "parameter_at_peak_mib",
        "  optimizer state": "optimizer_at_peak_mib",
        "  activations and the rest": "activation_at_peak_mib",
        "most gradients at once": "gradient_peak_mib",
    }
    lines += [f"{label:<38}{plain[key]:>14,.2f}{ours[key]:>14,.2f}" for label, key in rows.items()]
    share = memory.saved / memory.plain.peak.total
    lines += ["", f"saved: {figures['saved_mib']:,.2f} MiB a rank, {share:.1%} of the peak"]
    for name, curve in (("plain", memory.plain), ("in backward", memory.in_backward)):
        of_layers = f", with the gradients of {curve.peak.gradient / per_layer:.1f} layers" if per_layer else ""
        lines.append(f"the peak lies at: {curve.peak.label}, {name}{of_layers}")
    return lines
