"""Where one rank alone finds something, all take the same steps: none waits for a collective that never comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.ranks import by_hooks
from torch import Tensor

from inbackward import Implementation, OptimizerInBackward
from inbackward.faults.across import part
from inbackward.faults.ddp import LastReplicaParts
from inbackward.faults.ranks import LastRankParts
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import Moment, as_implementation
from inbackward.verification import Suite

CANONICAL = as_implementation(OptimizerInBackward)


def first_of(suite: Suite, strategy: str) -> Scenario:
    return next(suite.scenarios(CATALOGUE[strategy], strategy))


def counting(implementation: Implementation, file: Path) -> Implementation:
    """Each run of either loop builds an optimizer of this class, which notes its rank."""

    class Counted(torch.optim.SGD):
        def __init__(self, params: Any, **kwargs: Any) -> None:
            super().__init__(params, **kwargs)
            tried = max(p.numel() for group in self.param_groups for p in group["params"]) < 100  # on three small ones
            if dist.is_initialized() and not tried:
                with file.open("a") as lines:
                    lines.write(f"{dist.get_rank()}\n")

    return replace(implementation, optimizers=[(Counted, {"lr": 0.1, "momentum": 0.9})])


def last_on_rank_one(change: Callable[[Tensor], Tensor]) -> Implementation:
    """Changes one element of what lies on rank 1, after the last backward: no other rank will ever see of it."""

    def backward(handle: Any, loss: Tensor, moment: Moment) -> None:
        loss.backward()
        handle.backwards = getattr(handle, "backwards", 0) + 1
        if (dist.get_rank(), handle.backwards) == (1, ITERATIONS):
            x = part(next(p for p in handle.param_groups[0]["params"] if p.dim() == 2)).view(-1)[:1]
            x.copy_(change(x))

    return replace(CANONICAL, backward=backward)


ITERATIONS = 3
WRONG = last_on_rank_one(lambda x: x + 1e-3)
ROUNDED = last_on_rank_one(lambda x: x.nextafter(x + 1))


@pytest.mark.parametrize("strategy", ["fsdp2", "tensor-parallel"])
@pytest.mark.parametrize(
    ("target", "verdict"),
    [(CANONICAL, "equivalent"), (WRONG, "not-equivalent"), (ROUNDED, "equivalent-within-noise")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_one_rank_alone_sees(tmp_path: Path, strategy: str, target: Implementation, verdict: str) -> None:
    with closing(Suite(counting(target, tmp_path / "runs"))) as suite:
        scenario = first_of(suite, strategy)
        assert scenario.iterations == ITERATIONS
        outcome = suite.judge(scenario)
    assert outcome.verdict.value == verdict, outcome.message
    if verdict == "not-equivalent":
        assert outcome.message.startswith("rank 1: iteration 2, parameter embedding.weight: off by up to 0.001")
        assert "so on ranks" not in outcome.message
    runs = Counter((tmp_path / "runs").read_text().split())
    assert runs["0"] == runs["1"] > 1
    assert (runs["0"] > 2) is (target is not CANONICAL)  # the noise floor takes four runs more


@pytest.mark.parametrize(("target", "strategy"), [(LastReplicaParts, "ddp"), (LastRankParts, "fsdp2")])
def test_what_one_rank_sees_first(target: type, strategy: str) -> None:
    with closing(Suite(as_implementation(target))) as suite:
        outcome = suite.judge(first_of(suite, strategy))
    assert outcome.message.startswith("rank 1: iteration 0, parameter ")
    assert outcome.message.endswith("(so on ranks 0, 1)")


def test_an_expectation_that_one_rank_alone_does_not_meet() -> None:
    """A gradient lives on, and a parameter is off: that rank need not look for other kernels, nor may the others."""

    def backward(handle: Any, loss: Tensor, moment: Moment) -> None:
        handle.backward(loss, moment)
        if dist.get_rank() == 1:
            p = next(iter(handle.optimizers))
            part(p).view(-1)[0] += 1e-3
            p.grad = torch.zeros_like(p)

    with closing(Suite(replace(by_hooks.implementation, backward=backward))) as suite:
        outcome = suite.judge(next(suite.scenarios(CATALOGUE["gradient-freed"], "fsdp2")))
    assert outcome.verdict.value == "not-equivalent", outcome.message
    assert outcome.message.startswith("rank 1: iteration 0, parameter embedding.weight: off by up to 0.001")


WHEN = ("building", "before", "inside", "after")


def raising(when: str, error: type[Exception]) -> Implementation:
    """Raises on rank 1 in the second iteration, or while it is built."""

    def build(model: Any, groups: Any, cls: Any, kwargs: dict[str, Any]) -> Any:
        if when == "building" and dist.get_rank() == 1:
            raise error("on one rank")
        handle = CANONICAL.build(model, groups, cls, kwargs)
        handle.backwards = 0
        return handle

    def fail(*_: Any) -> None:
        raise error("on one rank")

    def backward(handle: Any, loss: Tensor, moment: Moment) -> None:
        handle.backwards += 1
        now: Callable[[str], bool] = lambda what: (dist.get_rank(), handle.backwards, what) == (1, 2, when)  # noqa: E731
        if now("before"):
            fail()
        if now("inside"):
            next(p for group in handle.param_groups for p in group["params"]).register_post_accumulate_grad_hook(fail)
        loss.backward()
        if now("after"):
            fail()

    return replace(CANONICAL, build=build, backward=backward, name=f"raises {when}")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "tensor-parallel"])
def test_an_error_on_one_rank_names_it_and_wakes_the_others(when: str, strategy: str) -> None:
    """Were they woken by a timeout, their errors would speak of it, and they would be named as well."""
    with closing(Suite(raising(when, ValueError))) as suite:
        scenario = first_of(suite, strategy)
        outcome = suite.judge(scenario)
        assert outcome.verdict.value == "broken", outcome.message
        assert outcome.message == "rank 1: ValueError: on one rank"
        assert outcome.divergence is not None
        assert (outcome.divergence.rank, outcome.divergence.quantity) == (1, "exception")
        assert outcome.divergence.iteration == (0 if when == "building" else 1)
        assert "in fail" in outcome.traceback or when == "building"
        again = suite.judge(scenario)
        assert again.message == outcome.message  # and not an error that the first one has left behind


def test_an_error_on_all_ranks_names_them_all() -> None:
    def backward(handle: Any, loss: Tensor, moment: Moment) -> None:
        raise ValueError(f"on rank {dist.get_rank()}")

    with closing(Suite(replace(CANONICAL, backward=backward))) as suite:
        assert suite.judge(first_of(suite, "fsdp2")).message == "rank 0: ValueError: on rank 0 (so on ranks 0, 1)"
