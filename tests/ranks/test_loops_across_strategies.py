"""The canonical class keeps its word on accumulation, clipping, scaling and pauses under every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.ranks.conftest import SuiteOf

from inbackward import OptimizerInBackward
from inbackward.requirements import default_arms
from inbackward.requirements.ranks import ONE_LAYER, over
from inbackward.scenario import ClipConfig, ForeignBackward, NonFinite, ScalerConfig, Scenario
from inbackward.scenario.configs import STRATEGIES

CLIP = ClipConfig(max_norm=0.1)
FP16 = {"autocast": "float16", "scaler": ScalerConfig()}
LOOPS: dict[str, dict[str, Any]] = {
    "accumulated": {"micro_batches": (2,)},
    "through": {"events": (ForeignBackward(at=1, how="through"),)},
    "skipped": {"events": (ForeignBackward(at=1, how="skipped"),)},
}
# Under tensor parallelism torch's own clip_grad_norm_ and GradScaler raise, as norms and embeddings are plain tensors
# beside DTensors, or on another mesh.
OF_ALL_GRADIENTS: dict[str, dict[str, Any]] = {
    "clipped": {"clip": CLIP},
    "clipped-accumulated": {"clip": CLIP, "micro_batches": (3,)},
    "clipped-recomputed": {"clip": CLIP, "model": replace(ONE_LAYER, checkpointing="non-reentrant")},
    "clipped-recomputed-within": {"clip": CLIP, "model": replace(ONE_LAYER, checkpointing="reentrant")},
    "scaled": FP16,
    "overflow": {**FP16, "events": (NonFinite(at=1, value="inf"),)},
    "scaled-clipped": {**FP16, "clip": CLIP},
}


def loop(strategy: str, name: str, **fields: Any) -> Scenario:
    sgd = default_arms()[1]
    return sgd.run(name, parallel=over(strategy), **{"model": ONE_LAYER, "iterations": 3, **fields})


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "single"])
def test_equivalent(suite_of: SuiteOf, strategy: str) -> None:
    suite = suite_of(OptimizerInBackward)
    for name, fields in {**LOOPS, **({} if "tensor" in strategy else OF_ALL_GRADIENTS)}.items():
        outcome = suite.judge(loop(strategy, name, **fields))
        assert outcome.verdict.value == "equivalent", f"{name}: {outcome.message}"
        assert outcome.compared == outcome.existing > 0


class Deaf(OptimizerInBackward):
    """Updates at every backward with whatever it brings."""

    @contextmanager
    def no_step(self) -> Iterator[None]:
        yield
        self.step()

    def backward(self, loss: Any, **options: Any) -> Any:
        return super().backward(loss)


@pytest.mark.parametrize("strategy", ["ddp", "cpu-offload"])
def test_one_that_does_not_listen_fails_in_each(suite_of: SuiteOf, strategy: str) -> None:
    suite = suite_of(Deaf)
    for name, fields in {**LOOPS, **OF_ALL_GRADIENTS}.items():
        outcome = suite.judge(loop(strategy, name, **fields))
        assert outcome.verdict.fails, f"{name}: {outcome.verdict} {outcome.message}"
