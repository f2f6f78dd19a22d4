"""The suite as tests: one a requirement, named ``test_optimizer_in_backward[ID]``.

Bring it into a test file with ``from inbackward.suite import *``, beside a fixture ``optimizer_in_backward`` that
returns what to check, or have pytest collect this module; ``docs/pytest.md`` has all the ways. The plugin gives the
test its parameters. No fixture of that name is defined here: it would hide the one of a plugin given by ``-p``.
"""

from __future__ import annotations

from typing import Any

import pytest

from inbackward.pytest_support.collection import suite_test

__all__ = ["test_optimizer_in_backward"]


@suite_test
def test_optimizer_in_backward(optimizer_in_backward: Any, requirement_id: str, request: pytest.FixtureRequest) -> None:
    """One requirement holds for the implementation under test."""
    from inbackward.pytest_support.outcome import check  # torch: not before a test of the suite runs

    check(request.node, optimizer_in_backward, requirement_id)
