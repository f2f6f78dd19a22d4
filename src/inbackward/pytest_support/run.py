"""What the plugin knows of one pytest run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from inbackward.pytest_support.settings import FIXTURE, Settings, read_settings
from inbackward.pytest_support.source import Named, Wrong, fixture_at_start, search_path

if TYPE_CHECKING:
    from inbackward.ranks import Torchrun
    from inbackward.requirements import Item
    from inbackward.scenario import Scenario
    from inbackward.verification import Suite


class Run:
    """The settings of a run, what they name, and the suite in use.

    Raises:
        pytest.UsageError: a setting or the replay file is wrong.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.settings: Settings = read_settings(config)
        self.named = Named(self.settings, config) if self.settings.named_by else None
        self.scenario = self._scenario(config)
        self._last: tuple[Any, Suite | Wrong] | None = None
        self.torchrun: Torchrun | None = None  # set once the suite is known to take part
        self.fixture = ""  # where the fixture is that the suite last collected gets
        self.shown = ""  # what the header said of where the implementation comes from

    @cached_property
    def items(self) -> dict[str, Item]:
        """What becomes a test each, by what stands in its brackets."""
        from inbackward.requirements import Item, items

        replayed = self.scenario and Item(self.scenario.requirement, (self.scenario.strategy,))
        return {item.label: item for item in ([replayed] if replayed else items(self.settings.strategies or None))}

    def suite(self, given: Any) -> Suite | Wrong:
        """The suite for what a test was given, or why there is none; one for all that are given the same object."""
        if self._last is None or self._last[0] is not given:
            self.close()
            self._last = given, given if isinstance(given, Wrong) else self._make_suite(given)
        return self._last[1]

    def close(self) -> None:
        """End the ranks of the suite in use."""
        if self._last is not None and not isinstance(self._last[1], Wrong):
            self._last[1].close()

    @property
    def leads(self) -> bool:
        """Whether this process judges and reports: the only one, or rank 0 of a torchrun."""
        return self.torchrun is None or self.torchrun.rank == 0

    def label(self, suite: Suite) -> str:
        """What reports call the implementation of a suite."""
        return self.settings.label if self.named else suite.implementation.name or FIXTURE

    def header(self, config: pytest.Config) -> list[str]:
        """What is checked, where it comes from, and on what; nothing where nothing is named yet."""
        s = self.settings
        source = f"{s.label} ({s.named_by})" if self.named else fixture_at_start(config)
        return self.describe(source) if source else []

    def describe(self, source: str) -> list[str]:
        """The lines of the header."""
        from importlib.metadata import version

        self.shown = source
        s = self.settings
        return [
            f"inbackward: {source}",
            f"inbackward: torch {version('torch')}, device {s.device}, strategies {', '.join(s.strategies) or 'all'}, "
            f"ranks {s.world_size}, seed {s.seed}, profile {s.profile}",
        ]

    def _make_suite(self, given: Any) -> Suite | Wrong:
        from inbackward.training import as_implementation
        from inbackward.verification import Suite

        s = self.settings
        try:
            implementation = given.load() if isinstance(given, Named) else as_implementation(given)
            suite = Suite(
                implementation,
                device=s.device,
                seed=s.seed,
                profile=s.profile,
                world_size=s.world_size,
                torchrun=self.torchrun,
            )
            _ = suite.arms  # a reference optimizer that cannot be built is no verdict on a requirement
        except (TypeError, ValueError) as error:
            return Wrong(" ".join(str(error).split()))
        return suite

    def _scenario(self, config: pytest.Config) -> Scenario | None:
        path = self.settings.replay
        if path is None:
            return None
        from inbackward import targets
        from inbackward.requirements import require_known
        from inbackward.scenario import Scenario

        try:
            scenario = Scenario.load(path)
            require_known([scenario.requirement], str(path))
            if scenario.model.factory:
                targets.load(scenario.model.factory, f"{path}: the model", search_path(config))
        except OSError as error:
            raise pytest.UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        return scenario


RUN = pytest.StashKey[Run]()
# What a test leaves for its report, as plain data that a worker can send: {"target", "row"} or {"problem"}.
FINDING = pytest.StashKey[dict[str, Any]]()
