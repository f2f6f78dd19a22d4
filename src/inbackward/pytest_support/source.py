"""Where the implementation under test comes from, and how a command line reaches it again."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from inbackward.pytest_support.settings import FIXTURE, OPTION, SUITE, Settings

if TYPE_CHECKING:
    from inbackward.training import Implementation

MEND = (
    f"give {OPTION} MODULE:ATTRIBUTE, set the ini key {FIXTURE}, or define a fixture {FIXTURE} in conftest.py "
    "that returns a class or an inbackward.Implementation"
)


@dataclass(frozen=True)
class Wrong:
    """Stands in for what cannot be had; the message is one line with the mend."""

    message: str


class Named:
    """An implementation that an option or ini key names, imported once a test of the suite is about to run."""

    def __init__(self, settings: Settings, config: pytest.Config) -> None:
        self.settings = settings
        self.search = search_path(config)

    def load(self) -> Implementation:
        """What is named, as the project under ``rootdir`` sees it.

        Raises:
            TypeError, ValueError: one line with the mend.
        """
        from inbackward import targets
        from inbackward.training import Implementation, as_implementation

        path, said = self.settings.target or self.settings.optimizer, self.settings.named_by
        found = targets.load(path, said, self.search)
        if self.settings.target:
            return as_implementation(found)
        if not callable(found):
            raise TypeError(f"{said} {path!r} is {found!r}; name an optimizer class")
        return Implementation.of_optimizer(found)


def search_path(config: pytest.Config) -> list[Path]:
    """Where modules that are named by a path are looked for, beside what is installed."""
    return [config.rootpath, config.invocation_params.dir]


def providers(config: pytest.Config) -> list[str]:
    """The modules given by ``-p`` that hold the fixture."""
    names = [name for name in config.getoption("plugins") or [] if not name.startswith("no:")]
    return [name for name in names if hasattr(config.pluginmanager.get_plugin(name), FIXTURE)]


def fixture_at_start(config: pytest.Config) -> str:
    """Where the fixture is, as far as pytest knows before it collects; ``""`` where it has seen none."""
    found = ""
    for _, plugin in config.pluginmanager.list_name_plugin():
        file = getattr(plugin, "__file__", None)
        if isinstance(file, str) and hasattr(plugin, FIXTURE):
            found = _fixture_of(Path(file), config)
    return found


def fixture_in_use(metafunc: pytest.Metafunc) -> str:
    """Where the fixture that a test gets is, the nearest of its definitions; ``""`` where there is none."""
    definitions = metafunc._arg2fixturedefs.get(FIXTURE)
    return _fixture_of(Path(inspect.getfile(definitions[-1].func)), metafunc.config) if definitions else ""


def way_in(item: pytest.Function, settings: Settings) -> list[str]:
    """The arguments by which pytest reaches the same implementation again, from where it was started."""
    config = item.config
    arguments: list[str] = []
    if settings.target:
        arguments += [OPTION, settings.target]
    if settings.optimizer:
        arguments += [f"{OPTION}-optimizer", settings.optimizer]
    if settings.device != "cpu":
        arguments += [f"{OPTION}-device", settings.device]
    for name in providers(config):
        arguments += ["-p", name]
    if item.path.samefile(str(import_module(SUITE).__file__)):
        arguments.append("--pyargs")
        place = SUITE
    else:
        place = os.path.relpath(item.path, config.invocation_params.dir)
    # A fixture with parameters makes an item for each; its node id tells which it was.
    alone = item.name == f"{item.originalname}[{item.callspec.params['requirement_id']}]"
    return [*arguments, place if alone else f"{place}::{item.name}"]


def _fixture_of(file: Path, config: pytest.Config) -> str:
    root = config.rootpath
    return f"fixture {FIXTURE} of {file.relative_to(root) if file.is_relative_to(root) else file}"
