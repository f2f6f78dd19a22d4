"""Fixtures of the repository itself, which is held to its own suite as a downstream project is."""

import pytest

from inbackward import OptimizerInBackward

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def optimizer_in_backward():
    return OptimizerInBackward
