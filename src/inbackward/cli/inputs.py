"""From what a person named on the command line to the objects it stands for, or one line that says what is wrong."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inbackward import targets
from inbackward.cli.errors import WrongInput, wrong_input
from inbackward.wording import named

if TYPE_CHECKING:
    import torch

    from inbackward.requirements import Item
    from inbackward.scenario import ModelConfig
    from inbackward.training import Implementation
    from inbackward.verification import Suite


def selected(only: Sequence[str] | None, skip: Sequence[str] | None, strategies: Sequence[str]) -> list[Item]:
    """What to judge under the strategies, in the order of the catalogue."""
    from inbackward.requirements import items

    wanted, unwanted = _ids(only, "--only"), _ids(skip, "--skip")
    under = items(strategies)
    for id in wanted:
        if all(item.id != id for item in under):
            mend = "ask for one of its own: see 'inbackward requirements'"
            raise WrongInput(f"--only names {id!r}, which --strategy {','.join(strategies)} does not run; {mend}")
    chosen = [item for item in under if (only is None or item.id in wanted) and item.id not in unwanted]
    if not chosen:
        raise WrongInput("--only and --skip leave no requirement to check; skip fewer")
    return chosen


def require_id(id: str, where: str) -> None:
    """Refuse an id that is not in the catalogue."""
    from inbackward.requirements import require_known

    if "@" in id:
        raise WrongInput(f"{where} names {id!r}; give the id alone, and strategies by --strategy")
    with wrong_input():
        require_known([id], where)


def strategies(names: str) -> list[str]:
    """The strategies that were named, each once."""
    from inbackward.scenario.configs import STRATEGIES

    given = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in given:
        if name not in STRATEGIES:
            near = difflib.get_close_matches(name, STRATEGIES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(STRATEGIES)}"
            raise WrongInput(f"--strategy names no strategy {name!r}; {hint}")
    return given


def under_test(arguments: argparse.Namespace) -> tuple[Implementation, str, list[str]]:
    """What is under test, what reports call it, and the arguments by which a replay reaches it again."""
    device = ["--device", arguments.device] if arguments.device != "cpu" else []
    if arguments.optimizer:
        path = arguments.optimizer
        return _of_optimizer(path), f"{targets.DEFAULT} over {path}", ["--optimizer", path, *device]
    path = arguments.target or targets.DEFAULT
    return of_target(path), path, [path, *device]


def prepare(implementation: Implementation, arguments: argparse.Namespace, **more: Any) -> Suite:
    """The suite, with the reference optimizers and the person's own model tried out: neither is a verdict."""
    from inbackward.verification import Suite

    with wrong_input():
        suite = Suite(implementation, device=arguments.device, **more)
    try:
        _ = suite.arms
    except ValueError as error:
        mend = "give its arguments by Implementation(optimizers=[(cls, kwargs)]) or Implementation.of_optimizer"
        raise WrongInput(f"{error}; {mend}") from error
    if suite.model:
        require_model(suite.model, "--model")
        _require_trainable(suite.model, suite.device)
    return suite


def _require_trainable(model: ModelConfig, device: torch.device) -> None:
    """Refuse a model that the usual loop cannot train, or trains otherwise the second time."""
    from inbackward.judging.compare import compare
    from inbackward.scenario import Scenario
    from inbackward.training import train_reference

    try:
        first, second = (train_reference(Scenario(model=model, iterations=2), device) for _ in range(2))
        raised = first.error or second.error
    except (Exception, SystemExit) as error:  # the person's own code again
        raised = error
    if raised is not None:
        wanted = "it must map int64 tokens (batch, time) to logits (batch, time, at least 256)"
        raise WrongInput(f"--model {model.factory} cannot be trained: {named(raised)}; {wanted}")
    losses = [record.loss.item() for record in first.records if record.loss is not None]
    if not all(math.isfinite(loss) for loss in losses):
        mend = "mend that first: what is NaN in both loops looks equal"
        raise WrongInput(f"--model {model.factory} has the losses {losses} in the usual loop; {mend}")
    if compare(second, first).mismatches:
        mend = "draw random numbers from torch's global generator only"
        raise WrongInput(f"--model {model.factory} gives other numbers when it is trained again; {mend}")


def require_model(config: ModelConfig, what: str) -> None:
    """Refuse a model that cannot be built."""
    import torch

    from inbackward.scenario.models import build_model

    if config.factory:
        with wrong_input():
            targets.load(config.factory, what, [Path.cwd()])
    try:
        build_model(config, 0, torch.float32)
    except (Exception, SystemExit) as error:  # a factory is the person's own code
        raise WrongInput(f"{what} {config.factory} cannot be built: {named(error)}") from error


def require_writable(option: str, path: str) -> None:
    """Refuse a file that could not be written once the run is over."""
    from inbackward import report

    try:
        report.require_writable(path)
    except OSError as error:
        mend = "name a file in a folder that exists and may be written"
        raise WrongInput(f"{option} cannot write {path!r}: {error.strerror}; {mend}") from error


def _ids(given: Sequence[str] | None, option: str) -> list[str]:
    ids = [id.strip() for text in given or () for id in text.split(",")]
    for id in ids:
        require_id(id, option)
    return ids


def _of_optimizer(path: str) -> Implementation:
    with wrong_input():
        cls = targets.load(path, "--optimizer", [Path.cwd()])
    from inbackward.training import Implementation

    if not callable(cls):
        raise WrongInput(f"--optimizer {path} is {cls!r}; name an optimizer class")
    import torch

    from inbackward.optimizer import OptimizerInBackward

    try:
        OptimizerInBackward([torch.zeros(1, 1, requires_grad=True)], cls).close()
    except ValueError as error:
        raise WrongInput(f"--optimizer {path}: {error}") from error
    except Exception:  # built with more than its parameters, or not at all: the suite's own line says so
        pass
    return Implementation.of_optimizer(cls)


def of_target(path: str) -> Implementation:
    """The implementation that ``MODULE:ATTRIBUTE`` names."""
    with wrong_input():
        target = targets.load(path, "the target", [Path.cwd()])
    from torch.optim import Optimizer

    from inbackward.training import as_implementation

    try:
        return as_implementation(target)
    except TypeError as error:
        if isinstance(target, type) and issubclass(target, Optimizer):
            mend = f"to judge a plain optimizer, give --optimizer {path}"
            raise WrongInput(f"the target {path} takes no (params, optimizer_cls, **kwargs); {mend}") from error
        raise WrongInput(f"the target {path}: {error}") from error
