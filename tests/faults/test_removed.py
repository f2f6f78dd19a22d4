"""With a requirement's own check removed, a fault of it escapes: the row sees what the rest of a scenario does not."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.faults.removed import UNSEEN, removed
from tests.faults.where import WHERE
from tests.ranks.where import WHERE as ACROSS

from inbackward.faults import GALLERY
from inbackward.requirements import CATALOGUE
from inbackward.training import as_implementation
from inbackward.verification import Suite

BY_NAME = {fault.name: fault for fault in GALLERY}


@pytest.mark.parametrize("id", UNSEEN)
def test_without_what_the_row_is_about_the_fault_is_not_seen(id: str) -> None:
    fault = BY_NAME[UNSEEN[id]]
    assert fault.requirement == id
    name = WHERE[fault.name][0].scenario if fault.strategy == "single" else ACROSS[fault.name].scenario
    with closing(Suite(as_implementation(fault.target))) as suite:
        whole = next(s for s in suite.scenarios(CATALOGUE[id], fault.strategy) if s.name == name)
        rest = removed(whole, id)
        assert rest != whole
        outcome = suite.judge(rest)
    assert outcome.verdict.holds, outcome.message
    assert outcome.compared > 0


def test_every_row_but_two_has_one() -> None:
    assert set(CATALOGUE) - set(UNSEEN) == {"plain", "rank-agreement"}
