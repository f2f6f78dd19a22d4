"""An implementation that knows nothing of ranks is right wherever PyTorch itself calls hooks with final gradients."""

from __future__ import annotations

import pytest
from tests.ranks import by_hooks

from inbackward import OptimizerInBackward
from inbackward.requirements import CATALOGUE
from inbackward.scenario.configs import STRATEGIES, TWO_DIMENSIONAL

HOOKS_ARE_ENOUGH = [s for s in STRATEGIES if s not in ("single", "ddp")]
AT = [(s, ranks) for s in HOOKS_ARE_ENOUGH for ranks in (2, 3, 4) if ranks == 4 or s not in TWO_DIMENSIONAL]


def scenarios(suite, id):
    """The first scenario of each optimizer and way to spread: with and without sequence parallelism, say."""
    first = {}
    for scenario in suite.scenarios(CATALOGUE[id], id):
        first.setdefault((scenario.optimizer.cls, scenario.parallel), scenario)
    return list(first.values())


@pytest.mark.parametrize(("strategy", "ranks"), AT)
def test_hooks_are_enough(suite_of, strategy, ranks):
    suite = suite_of(by_hooks.implementation, ranks)
    judged = scenarios(suite, strategy)
    assert len(judged) >= 2
    for scenario in judged:
        assert scenario.parallel.ranks == ranks
        outcome = suite.judge(scenario)
        assert outcome.verdict.value == "equivalent", f"{scenario.name}: {outcome.message}"
        # A rank compares at least a loss, and a parameter and its state, an iteration.
        assert outcome.compared == outcome.existing > ranks * scenario.iterations * 3
        assert (outcome.unobserved, outcome.flavour) == (0, "")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_canonical_class_under_ddp(suite_of, ranks):
    suite = suite_of(OptimizerInBackward, ranks)
    for scenario in scenarios(suite, "ddp"):
        outcome = suite.judge(scenario)
        assert outcome.verdict.value == "equivalent", f"{scenario.name}: {outcome.message}"
        assert outcome.compared == outcome.existing > 0


def test_sequence_parallelism_is_among_them(suite_of):
    for strategy in ("tensor-parallel", "fsdp2-tensor-parallel"):
        assert any(s.parallel.sequence for s in scenarios(suite_of(by_hooks.implementation, 4), strategy))


def test_each_rank_compares_its_own_part(suite_of):
    """Ranks with the same shapes compare as many tensors: the total is that of one process times the ranks."""
    totals = {}
    for ranks in (2, 4):
        suite = suite_of(by_hooks.implementation, ranks)
        (scenario, *_) = scenarios(suite, "fsdp2")
        totals[ranks] = suite.judge(scenario).compared
    assert totals[4] == 2 * totals[2]
