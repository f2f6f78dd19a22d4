"""Gradients that `fully_shard` has not reduced are part of the total norm, though no parameter shows them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from tests.ranks.conftest import SuiteOf

from inbackward import OptimizerInBackward
from inbackward.optimizer.two_passes import Passes
from inbackward.requirements.ranks import ONE_LAYER, over
from inbackward.scenario import ClipConfig, Scenario

MIXED = {"mixed_precision": "bfloat16", "reduce_dtype": "float32"}


class Forgets(OptimizerInBackward):
    """Measures what the last micro-batch brings, as if nothing came before it."""

    def backward(self, loss: Any, **options: Any) -> Any:
        self._kept = self._keeps
        return super().backward(loss, **options)


class ForgetsInSilence(Forgets):
    """And does not look whether the second pass brings the same."""

    def backward(self, loss: Any, **options: Any) -> Any:
        with mock.patch.object(Passes, "_look_again", return_value=None):
            return super().backward(loss, **options)


@pytest.mark.parametrize(
    ("cls", "options", "verdict"),
    [
        (OptimizerInBackward, {}, "equivalent"),
        (OptimizerInBackward, MIXED, "equivalent"),
        (Forgets, {}, "broken"),
        (ForgetsInSilence, {}, "not-equivalent"),
    ],
    ids=["ours", "ours-mixed-precision", "forgets", "forgets-in-silence"],
)
def test_reduced_at_the_last_micro_batch(suite_of: SuiteOf, cls: Any, options: dict[str, Any], verdict: str) -> None:
    scenario = Scenario(
        requirement="global-clip",
        name="reduced-last",
        iterations=2,
        model=ONE_LAYER,
        micro_batches=(2,),
        clip=ClipConfig(max_norm=0.1),
        parallel=over("fsdp2", sync_last=True, **options),
    )
    outcome = suite_of(cls).judge(scenario)
    assert outcome.verdict.value == verdict, outcome.message
