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
from tests.ranks.faults_of_ranks import CANONICAL, LAST, part
from torch import Tensor

from inbackward import Implementation
from inbackward.requirements import CATALOGUE
from inbackward.scenario import Scenario
from inbackward.training import Moment
from inbackward.verification import Suite


def first_of(suite: Suite, strategy: str) -> Scenario:
    return next(suite.scenarios(CATALOGUE[strategy], strategy))


def counting(implementation: Implementation, file: Path) -> Implementation:
    """Each run of either loop builds an optimizer of this class, which notes its rank."""

    class Counted(torch.optim.SGD):
        def __init__(self, params: Any, **kwargs: Any) -> None:
            super().__init__(params, **kwargs)
            if dist.is_initialized():
                with file.open("a") as lines:
                    lines.write(f"{dist.get_rank()}\n")

    return replace(implementation, optimizers=[(Counted, {"lr": 0.1, "momentum": 0.9})])


def rounds_on_rank_one(handle: Any, loss: Tensor, moment: Moment) -> None:
    """The shard of one norm that lies on rank 1 is a unit in the last place off."""
    loss.backward()
    if dist.get_rank() == 1:
        x = part(next(p for p in handle.param_groups[0]["params"] if p.dim() == 1))
        x.copy_(x.nextafter(x + 1))


ROUNDS = replace(CANONICAL, backward=rounds_on_rank_one, name="rounds on rank 1")


@pytest.mark.parametrize(
    ("strategy", "target", "verdict", "floor"),
    [
        ("fsdp2", CANONICAL, "equivalent", False),
        ("fsdp2", LAST, "not-equivalent", True),
        ("fsdp2", ROUNDS, "equivalent-within-noise", True),
        ("ddp", LAST, "not-equivalent", True),
        ("tensor-parallel", LAST, "not-equivalent", True),
    ],
)
def test_all_ranks_run_as_often(
    tmp_path: Path, strategy: str, target: Implementation, verdict: str, floor: bool
) -> None:
    with closing(Suite(counting(target, tmp_path / "runs"))) as suite:
        outcome = suite.judge(first_of(suite, strategy))
    assert outcome.verdict.value == verdict, outcome.message
    if verdict == "not-equivalent":
        assert outcome.divergence is not None
        assert (outcome.divergence.iteration, outcome.divergence.rank) == (0, 1)
    runs = Counter((tmp_path / "runs").read_text().split())
    assert runs["0"] == runs["1"] > 1
    assert (runs["0"] > 5) is floor  # candidate, reference, four disturbed, each with others on the way


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
