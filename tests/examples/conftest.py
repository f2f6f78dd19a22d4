"""The recipes as their users start them: from the folder that they lie in, with files in a folder of the test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """A recipe by its name, imported for this test alone, so that what a test changes in it ends with the test."""
    monkeypatch.syspath_prepend(EXAMPLES)
    names = ("finetuning", "finetune_single_device", "finetune_distributed")
    yield import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def single(recipe: Any) -> Any:
    return recipe("finetune_single_device")
