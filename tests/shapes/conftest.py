"""One scenario is judged for several implementations: the usual loop runs once for all of them."""

from __future__ import annotations

import pytest

from inbackward.training import remembering


@pytest.fixture
def references_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "_last", None)  # which is put back at the end
    remembering.remember_references()
