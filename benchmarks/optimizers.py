"""What `OptimizerInBackward` makes of the optimizer classes of other packages, one process a class.

    pip install pytorch-optimizer torch-optimizer ...
    python benchmarks/optimizers.py pytorch_optimizer torch_optimizer ... [--only Adan,Lion]

Each class trains a small model in the usual loop and inside backward, with what its constructor says must be given and
else its defaults: two groups of matrices, vectors and biases, a schedule where it has an lr, five iterations, then a
checkpoint loaded into a new model and optimizer, and three more; with one backward an iteration and with two, with
`bucket_bytes` 0 and as it is by default. Parameters, state and groups are compared bit for bit after each iteration.
Random numbers are seeded alike before each. A class that cannot train so in the usual loop is asked for less, which is
told: one lr for all, matrices only, bfloat16, no checkpoint. What is refused is then trained all the same, with the
trial on small parameters left out, to see whether the refusal is right.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import io
import multiprocessing
import pkgutil
import random
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from functools import partial
from importlib import metadata
from itertools import chain, combinations
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from inbackward import OptimizerInBackward
from inbackward.optimizer import building

GIVEN: dict[str, Any] = {
    "lr": 1e-2,
    "num_iterations": 20,
    "total_iterations": 20,
    "total_steps": 20,
    "max_iter": 20,
    "base_optimizer": torch.optim.SGD,
}
OVER_ANOTHER = ("optimizer", "base_optimizer", "base", "inner_optimizer")
SECONDS = 90


class Way(NamedTuple):
    """How the model is trained; the first five are for classes that cannot be trained as others."""

    one_lr: bool = False
    only_matrices: bool = False
    create_graph: bool = False
    bfloat16: bool = False
    use_muon: bool = False
    without_resume: bool = False
    micro_batches: int = 1
    bucket_bytes: int | None = None

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value}" for name, value in self._asdict().items() if value != self._field_defaults[name]
        )


class Toy(nn.Module):
    """Matrices, two of them alike, vectors, biases and a kernel of three dimensions."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        only_matrices = way.only_matrices
        self.first = nn.Linear(4, 8, bias=not only_matrices)
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=not only_matrices) for _ in range(2))
        self.norm = nn.Identity() if only_matrices else nn.LayerNorm(8)
        self.conv = nn.Identity() if only_matrices else nn.Conv1d(6, 6, 3, padding=1)
        self.head = nn.Linear(8, 5, bias=False)
        self.to(torch.bfloat16 if way.bfloat16 else torch.float32)

    def loss(self, seed: int) -> Tensor:
        x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(seed))
        x = torch.tanh(self.first(x.to(self.head.weight.dtype)))
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return nn.functional.cross_entropy(self.head(self.conv(self.norm(x))).flatten(0, 1), torch.arange(12) % 5)


class Outcome(NamedTuple):
    kind: str
    why: str
    effects: str = ""


def factory(cls: type[Optimizer]) -> Callable[..., Optimizer]:
    """What builds one from `params`: the class, told what it must be told."""
    params, *others = inspect.signature(cls).parameters.values()
    if params.name in OVER_ANOTHER:
        return lambda params: cls(torch.optim.SGD(params, lr=1e-2, momentum=0.9))
    missing = [p.name for p in others if not isinstance(p.default, int | float | str | tuple)]
    return partial(cls, **{name: GIVEN[name] for name in missing if name in GIVEN})


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def run(make: Callable[..., Any], way: Way, in_backward: bool) -> Iterator[Any]:
    """What there is after each iteration."""
    saved: Any = None
    iteration = 0
    for iterations in (5,) if way.without_resume else (5, 3):
        torch.manual_seed(0)
        model = Toy(way)
        ones = [[p for p in model.parameters() if (p.dim() == 2) is matrix] for matrix in (True, False)]
        if way.only_matrices:
            ones = [ones[0][:2], ones[0][2:]]
        groups: list[dict[str, Any]] = [{"params": ones[0]}, {"params": ones[1]}]
        if not way.one_lr:
            groups[1]["lr"] = 5e-3
        if way.use_muon:
            groups[0]["use_muon"], groups[1]["use_muon"] = True, False
        optimizer = OptimizerInBackward(groups, make, bucket_bytes=way.bucket_bytes) if in_backward else make(groups)
        lr = all(isinstance(group.get("lr"), float) for group in optimizer.param_groups)
        schedule = LambdaLR(optimizer, lambda i: 1 / (1 + i / 2)) if lr else None
        if saved is not None:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))
            if schedule:
                schedule.load_state_dict(saved[2])
        if callable(getattr(optimizer, "train", None)):
            optimizer.train()
        for _ in range(iterations):
            seed(iteration)
            for micro in range(way.micro_batches):
                last = micro == way.micro_batches - 1
                with optimizer.no_step() if in_backward and not last else nullcontext():
                    model.loss(10 * iteration + micro).backward(create_graph=way.create_graph)
            optimizer.step()
            optimizer.zero_grad()
            if schedule:
                schedule.step()
            iteration += 1
            saved = copy.deepcopy(
                (model.state_dict(), optimizer.state_dict(), schedule.state_dict() if schedule else None)
            )
            yield saved[:2]


def same(a: Any, b: Any) -> bool:
    """Equal in every bit, at any depth."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | int | str | bool | complex | None):
        return a == b or (a != a and b != b)
    return same(vars(a), vars(b)) if hasattr(a, "__dict__") and not callable(a) else True


def difference(some: list[Any], others: list[Any]) -> str:
    for i, (one, other) in enumerate(zip(some, others, strict=True)):
        for part, a, b in zip(("parameters", "state"), one, other, strict=True):
            if not same(a, b):
                far = [
                    ((a[k] - b[k]).abs().max() / a[k].abs().max().clamp_min(1e-30)).item()
                    for k in a
                    if part == "parameters"
                ]
                return f"{part} from iteration {i} on" + (f", by {max(far):.0e}" if far else "")
    return ""


def short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"


def try_out(make: Callable[..., Any], ways: list[Way]) -> Outcome:
    """Against the usual loop."""
    for way in ways:
        reference = list(run(make, way, in_backward=False))
        trained: list[Any] = []
        try:
            for now in run(make, way, in_backward=True):
                trained.append(now)
        except Exception as error:
            if trained or "cannot step inside backward" not in str(error):
                return Outcome("raises", f"iteration {len(trained)}: {short(error)}")
            return Outcome("refused", str(error).partition("tried on three small ones, it ")[2] or str(error))
        if found := difference(reference, trained):
            return Outcome("differs", f"{found}, {way}")
    return Outcome("equal", "")


def plain_way(make: Callable[..., Any]) -> Way:
    """The first way of training that the class can do in the usual loop.

    Raises:
        Exception: what it says to the first, if it can do none.
    """
    first: Exception | None = None
    for needs in chain.from_iterable(combinations(Way._fields[:6], n) for n in range(3)):
        way = Way(**dict.fromkeys(needs, True))
        try:
            list(run(make, way, in_backward=False))
        except Exception as error:
            first = first or error
        else:
            return way
    assert first is not None
    raise first


def judge(cls: type[Optimizer]) -> Outcome:
    make = factory(cls)
    try:
        way = plain_way(make)
    except Exception as error:
        return Outcome("not tried", f"does not train in the usual loop: {short(error)}")
    run_twice = [list(run(make, way, in_backward=False)) for _ in range(2)]
    if difference(*run_twice):
        return Outcome("not tried", "two usual loops, seeded alike, differ")
    values = [p for p in run_twice[0][-1][0].values()]
    if not all(p.isfinite().all() for p in values) or same(run_twice[0][0][0], run_twice[0][4][0]):
        return Outcome("not tried", "does not train in the usual loop: parameters stay, or are not finite")
    ways = [way._replace(micro_batches=n, bucket_bytes=b) for n in (1, 2) for b in (None, 0)]
    outcome = try_out(make, ways)
    if outcome.kind == "refused":
        with patch.object(building, "try_out", lambda *_: ("", False)):
            without = try_out(make, ways)
        outcome = outcome._replace(why=f"{outcome.why} | not refused: {without.kind} {without.why}")
    return outcome._replace(why=f"{outcome.why} [{way}]" if str(way) else outcome.why, effects=effects(make, way))


def effects(make: Callable[..., Any], way: Way) -> str:
    """What building it inside backward does that building it does not: time, output, warnings, random numbers."""

    def built(how: Callable[[Any], Any]) -> tuple[float, dict[str, Any]]:
        output, seconds = io.StringIO(), []
        with redirect_stdout(output), redirect_stderr(output), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(3):
                seed(0)
                model = Toy(way)
                start = time.perf_counter()
                with suppress(Exception):
                    how(model.parameters())
                seconds.append(time.perf_counter() - start)
        drawn = (torch.rand(1).item(), random.random(), numpy.random.rand())
        return min(seconds), {"prints": output.getvalue(), "warns": len(warned), "draws": drawn}

    before, plain = built(make)
    after, wrapped = built(lambda params: OptimizerInBackward(params, make))
    return " ".join([f"{1e3 * (after - before):.1f} ms", *(name for name in plain if plain[name] != wrapped[name])])


def classes(package: str) -> dict[str, type[Optimizer]]:
    """The optimizer classes that a package defines, each once, by name."""
    root = importlib.import_module(package)
    modules = [root]
    for info in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{package}.", onerror=lambda name: None):
        if info.name.rpartition(".")[2].startswith(("_", "test")):
            continue
        try:
            modules.append(importlib.import_module(info.name))
        except BaseException:  # an extra that is not installed
            continue
    return {
        cls.__name__: cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, Optimizer)
        and cls.__module__.split(".")[0] == package
        and not inspect.isabstract(cls)
    }


def in_process(cls: type[Optimizer]) -> Outcome:
    def work(sender: Connection) -> None:
        warnings.simplefilter("ignore")
        sys.stdout = sys.stderr = io.StringIO()
        try:
            sender.send(judge(cls))
        except BaseException as error:
            sender.send(Outcome("not tried", f"the script fails: {short(error)}"))

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=work, args=(sender,))
    process.start()
    sender.close()
    try:
        outcome: Outcome = (
            receiver.recv() if receiver.poll(SECONDS) else Outcome("not tried", f"takes over {SECONDS} s")
        )
    except EOFError:
        outcome = Outcome("not tried", "the process died")
    process.kill()
    process.join()
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", help="as they are imported")
    parser.add_argument("--only", help="names of classes, with commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.compile = lambda model=None, **_: model or (lambda function: function)  # takes seconds a class
    warnings.simplefilter("ignore")
    counts: dict[str, int] = defaultdict(int)
    of_package = metadata.packages_distributions()
    for package in options.packages:
        distribution = of_package[package][0]
        print(f"# {distribution} {metadata.version(distribution)}")
        try:
            found = classes(package)
        except Exception as error:
            print(f"{package} cannot be imported: {short(error)}", flush=True)
            continue
        for name, cls in sorted(found.items()):
            if options.only and name not in options.only.split(","):
                continue
            outcome = in_process(cls)
            counts[outcome.kind] += 1
            print(f"{package}.{name} | {outcome.kind} | {outcome.effects} | {outcome.why}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
