"""One training run, written down completely."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from inbackward.scenario.configs import (
    DTYPES,
    ClipConfig,
    DataConfig,
    GroupConfig,
    HookConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    ScalerConfig,
    ScheduleConfig,
    choose,
    require,
    require_selectors,
)
from inbackward.scenario.events import Edit, Event, Resume, SkipBranch
from inbackward.scenario.plain_data import from_plain, to_plain

SCHEMA = "inbackward.scenario/1"
EXPECTATIONS = ("moved", "gradients-freed", "gradient-peak", "no-leak", "weights-only", "ranks-agree")
AUTOCASTS = ("", "bfloat16", "float16")
COMPILED = ("", "layers", "whole")
SPLITS = ("", "model", "parts")
ZERO_GRADS = ("set-to-none", "zeros", "told-zeros")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A training run: the same scenario gives the same numbers on the same machine.

    Attributes:
        requirement: id of the requirement that asks for this run.
        name: what sets it apart from its siblings, for people.
        seed: of weights, data and dropout.
        iterations: optimizer steps.
        micro_batches: backwards of each iteration, each loss divided by their number; the last entry goes on forever.
        groups: parameter groups; none means one plain group of all parameters.
        named: give the parameters with their names.
        split: two optimizers over the two halves of the parameters, each given the whole ``"model"``, or as of two
            models the ``"parts"`` of it that hold its half.
        frozen: patterns of parameters frozen before construction; they stay in the groups.
        autocast: dtype of ``torch.autocast`` around the forward, or ``""``.
        autocast_backward: the backward is called inside the autocast block as well.
        hooks: the user's own gradient hooks.
        step_hooks: count the calls of the optimizer's own step hooks and of torch's global ones.
        clip: clip the global gradient norm.
        scaler: scale the loss for fp16; needs ``autocast="float16"``.
        zero_grad: how gradients are cleared. ``"zeros"``: both loops call ``zero_grad(set_to_none=False)``;
            ``"told-zeros"``: only the implementation is told so, and is to free them as the reference does.
        compiled: ``torch.compile`` of ``"layers"`` or the ``"whole"`` model, by the aot_eager backend.
        loss_scale: factor on the loss before ``backward()``; the loss in the trace is unscaled.
        token_weighted: multiply the loss by the number of tokens as well, as a summed loss does.
        token_normalised: every rank has another number of tokens, and the loss is the mean over those of all ranks. The
            implementation is given a loss that is divided by their count, the reference divides its gradients.
        parallel: how the model is spread over processes.
        expect: what must hold beside equality with the reference (``EXPECTATIONS``).
        may_refuse: an exception that says why, before any number changed, is a right answer.

    Raises:
        ValueError: a value is outside what the field allows; the line names the field, the value and the mend.
    """

    requirement: str = "plain"
    name: str = "default"
    seed: int = 0
    iterations: int = 4
    micro_batches: tuple[int, ...] = (1,)
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    groups: tuple[GroupConfig, ...] = ()
    named: bool = False
    split: str = ""
    schedule: ScheduleConfig | None = None
    dtype: str = "float32"
    autocast: str = ""
    autocast_backward: bool = False
    frozen: tuple[str, ...] = ()
    hooks: tuple[HookConfig, ...] = ()
    step_hooks: bool = False
    clip: ClipConfig | None = None
    scaler: ScalerConfig | None = None
    zero_grad: str = "set-to-none"
    compiled: str = ""
    loss_scale: float = 1.0
    token_weighted: bool = False
    token_normalised: bool = False
    parallel: ParallelConfig = ParallelConfig()
    events: tuple[Event, ...] = ()
    expect: tuple[str, ...] = ()
    may_refuse: bool = False

    def __post_init__(self) -> None:
        require(self.iterations >= 1, f"iterations is {self.iterations}; a run has at least 1")
        require(self.iterations <= 100_000, f"iterations is {self.iterations}; it must be at most 100000")
        require(0 <= self.seed < 2**31, f"seed is {self.seed}; it must be in [0, 2**31)")
        choose(self.dtype, DTYPES, "dtype")
        choose(self.autocast, AUTOCASTS, "autocast")
        choose(self.compiled, COMPILED, "compiled")
        choose(self.zero_grad, ZERO_GRADS, "zero_grad")
        require(
            bool(self.autocast) or not self.autocast_backward,
            "autocast_backward is true, and autocast is ''; give autocast a dtype",
        )
        require(
            self.scaler is None or self.autocast == "float16",
            f"scaler needs autocast 'float16', and autocast is {self.autocast!r}",
        )
        require(
            bool(self.micro_batches) and all(k >= 1 for k in self.micro_batches),
            f"micro_batches is {self.micro_batches}; give at least one number, each at least 1",
        )
        require(
            not self.token_normalised or (self.micro_batches == (1,) and self.strategy in ("ddp", "fsdp2")),
            "token_normalised goes with one micro-batch under ddp or fsdp2",
        )
        choose(self.split, SPLITS, "split")
        require(not (self.split and (self.groups or self.schedule)), "split goes with one plain group and no schedule")
        require_selectors(self.frozen, "frozen")
        for expectation in self.expect:
            choose(expectation, EXPECTATIONS, "expect")
        require(
            self.data.length <= self.model.context,
            f"data.length {self.data.length} exceeds model.context {self.model.context}",
        )
        groups = max(len(self.groups), 1)
        for event in self.events:
            require(
                event.at < self.iterations,
                f"{event.kind} event at iteration {event.at}, but the run has {self.iterations}",
            )
            if isinstance(event, Edit) and event.group is not None:
                require(0 <= event.group < groups, f"edit of group {event.group}, but there are {groups} groups")
            if isinstance(event, SkipBranch):
                require(self.model.branch, "skip-branch event on a model without a branch; set model.branch")
        over_others = [e for e in self.events if isinstance(e, Resume) and e.parallel is not None]
        require(
            not over_others or (len(over_others) == 1 and over_others[0].at >= 1 and self.schedule is None),
            "resume.parallel goes with one such event, after the first iteration, and no schedule",
        )
        resumed_by_epoch = any(isinstance(e, Resume) and e.schedule == "last-epoch" for e in self.events)
        require(
            not (resumed_by_epoch and self.schedule) or self.schedule.cls == "LambdaLR",
            "resume.schedule is 'last-epoch', which torch computes anew from the factors of LambdaLR only",
        )
        if self.schedule is not None and self.schedule.factors:
            rows = len(self.schedule.factors)
            require(rows in (1, groups), f"schedule.factors has {rows} rows for {groups} groups; give 1 or {groups}")

    def __hash__(self) -> int:
        return hash(self.digest)

    def at(self, iteration: int, kind: type[Event]) -> tuple[Any, ...]:
        """The events of one kind in one iteration, in the scenario's order."""
        return tuple(e for e in self.events if e.at == iteration and isinstance(e, kind))

    def backwards(self, iteration: int) -> int:
        """How many micro-batches the iteration has."""
        return self.micro_batches[min(iteration, len(self.micro_batches) - 1)]

    def with_(self, **changes: Any) -> Scenario:
        """A copy with some fields changed, validated again."""
        return replace(self, **changes)

    @property
    def strategy(self) -> str:
        """The name of the parallel strategy."""
        return self.parallel.strategy

    @property
    def ranks(self) -> int:
        """How many processes the run needs, at most at once."""
        spread = [self.parallel, *(e.parallel for e in self.events if isinstance(e, Resume) and e.parallel)]
        return max(parallel.ranks for parallel in spread)

    @property
    def label(self) -> str:
        """What reports call it: ``requirement/name``."""
        return f"{self.requirement}/{self.name}"

    @cached_property
    def digest(self) -> str:
        """12 hex digits of the run itself: two scenarios that differ only in what they are called share it."""
        run = to_plain(self.with_(requirement="", name=""))
        return sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """The scenario as a JSON document of schema ``inbackward.scenario/1``."""
        return json.dumps({"schema": SCHEMA, **to_plain(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Read what ``to_json`` wrote; fields left out have their defaults.

        Raises:
            ValueError: not JSON, another schema, an unknown or ill-typed field, or a value that is not allowed.
        """
        try:
            document = json.loads(text, parse_float=_finite, parse_constant=_finite, parse_int=_whole)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"not a JSON document: {error}") from None
        require(isinstance(document, dict), f"a scenario is a JSON object, not {type(document).__name__}")
        schema = document.pop("schema", None)
        require(schema == SCHEMA, f"schema is {schema!r}; this version reads {SCHEMA!r}")
        scenario: Scenario = from_plain(cls, document, "scenario")
        return scenario

    @classmethod
    def load(cls, path: str | Path) -> Scenario:
        """Read a scenario file.

        Raises:
            OSError: the file cannot be read.
            ValueError: as ``from_json``, the line led by the file's name.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None


def _finite(text: str) -> float:
    value = float(text)
    require(math.isfinite(value), f"not a scenario: the number {text[:40]} is not finite")
    return value


def _whole(text: str) -> int:
    require(len(text) < 20, f"not a scenario: the number {text[:20]}... has {len(text)} digits")
    return int(text)
