"""The plugin's options and ini keys, and what they say in one run. torch is not imported here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from inbackward.extras import require_extra
from inbackward.scenario.configs import STRATEGIES

FIXTURE = "optimizer_in_backward"
OPTION = "--optimizer-in-backward"
SUITE = "inbackward.suite"

# What follows the option's name, its metavar and its help; each but replay is an ini key as well.
_OPTIONS = {
    "": ("MODULE:ATTRIBUTE", "the implementation to check: a class, or an inbackward.Implementation"),
    "optimizer": ("MODULE:CLASS", "a plain optimizer to check: may it be stepped one parameter at a time?"),
    "strategy": (
        "NAME,...",
        "single, ddp, fsdp2 ...: only what runs under these (default: all, once)",
    ),
    "world-size": ("N", "ranks of a strategy; hsdp and fsdp2-tensor-parallel have at least 4 (default: 2)"),
    "profile": ("NAME", "how many seeds a scenario: quick, ci or thorough (default: quick)"),
    "seed": ("N", "shifts the seed of every scenario (default: 0)"),
    "device": ("NAME", "cpu or cuda (default: cpu)"),
    "json": ("FILE", "write a report of schema inbackward.report/1"),
    "html": ("FILE", "write the report as one page, with the curves of one training run"),
    "replay": ("FILE", "run one scenario again, from the file that a failure names, and nothing else"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line and the pytest configuration say; the command line wins.

    Attributes:
        target: ``module:attribute`` of an implementation, or ``""``.
        optimizer: ``module:class`` of a plain optimizer, or ``""``; never both.
        named_by: the option or ini key that names either, for messages, or ``""``.
        asked: the name stands on this very command line, not in the configuration.
        strategies: those that were asked for; none means everything but the repetitions under a strategy.
        world_size, profile, seed, device: as ``verification.Suite`` has them.
        json, html, replay: files, or ``None``.
        strict: a declaration that no longer holds fails its test.
    """

    target: str
    optimizer: str
    named_by: str
    asked: bool
    strategies: tuple[str, ...]
    world_size: int
    profile: str
    seed: int
    device: str
    json: Path | None
    html: Path | None
    replay: Path | None
    strict: bool

    @property
    def label(self) -> str:
        """What reports call the target that was named."""
        from inbackward.targets import DEFAULT

        return f"{DEFAULT} over {self.optimizer}" if self.optimizer else self.target


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and the ini keys."""
    group = parser.getgroup("inbackward", "the optimizer stepping inside backward(): are the numbers the same?")
    for name, (metavar, text) in _OPTIONS.items():
        group.addoption(_option(name), dest=_key(name), metavar=metavar, default=None, help=text)
        if name != "replay":
            parser.addini(_key(name), f"{text}; as {_option(name)}", default="")
    text = "a declaration of Implementation that no longer holds fails its test (default: true)"
    parser.addini(_key("strict"), text, type="bool", default=True)


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this run.

    Raises:
        pytest.UsageError: a value that cannot be meant; one line with the mend.
    """

    def value(name: str, default: str = "") -> str:
        given = config.getoption(_key(name))
        return given if given is not None else config.getini(_key(name)) or default

    def said(name: str) -> str:
        return _option(name) if config.getoption(_key(name)) is not None else f"ini key {_key(name)}"

    def number(name: str, default: str) -> int:
        text = value(name, default)
        if not text.isascii() or not text.removeprefix("-").isdigit():
            raise pytest.UsageError(f"{said(name)} is {text!r}; give a whole number")
        return int(text)

    target, optimizer = value(""), value("optimizer")
    if target and optimizer:
        raise pytest.UsageError(f"{said('')} and {said('optimizer')} both name what to check; drop one of them")
    if number("world-size", "2") < 1:
        raise pytest.UsageError(f"{said('world-size')} is {value('world-size')}; give 1 or more")
    strategies = tuple(dict.fromkeys(name.strip() for name in value("strategy").split(",") if name.strip()))
    for strategy in strategies:
        if strategy not in STRATEGIES:
            raise pytest.UsageError(
                f"{said('strategy')} names no strategy {strategy!r}; choose from {', '.join(STRATEGIES)}"
            )
    named = [name for name in ("", "optimizer") if value(name)]
    words = [word.partition("=")[0] for word in map(str, config.invocation_params.args)]
    return Settings(
        target=target,
        optimizer=optimizer,
        named_by=said(named[0]) if named else "",
        asked=bool(named) and _option(named[0]) in words,
        strategies=strategies,
        world_size=number("world-size", "2"),
        profile=value("profile", "quick"),
        seed=number("seed", "0"),
        device=value("device", "cpu"),
        json=_report_path(config, "json"),
        html=_report_path(config, "html"),
        replay=_path(config.invocation_params.dir, config.getoption(_key("replay"))),
        strict=config.getini(_key("strict")),
    )


def _report_path(config: pytest.Config, name: str) -> Path | None:
    """Where a report goes: an option counts from the current directory, an ini key from the configuration's."""
    given = config.getoption(_key(name))
    path = _path(config.invocation_params.dir, given) or _path(config.rootpath, config.getini(_key(name)))
    if path is not None and not path.parent.is_dir():
        raise pytest.UsageError(f"{_option(name)}: the folder {path.parent} does not exist; make it first")
    if path is not None and path.is_dir():
        raise pytest.UsageError(f"{_option(name)}: {path} is a folder; name a file")
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise pytest.UsageError(f"{_option(name)}: {path} may not be written; name another file")
    if path is not None and name == "html":
        try:
            require_extra("plots", _option(name))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
    return path


def _path(folder: Path, name: str | None) -> Path | None:
    return folder / name if name else None


def _option(name: str) -> str:
    return f"{OPTION}-{name}" if name else OPTION


def _key(name: str) -> str:
    return f"{FIXTURE}_{name.replace('-', '_')}" if name else FIXTURE
