"""Hypothesis strategies for valid scenarios, drawn from the classes' own annotations: a new field or event is included.

What training them would give is another matter.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from hypothesis import strategies as st

from inbackward.requirements import CATALOGUE
from inbackward.scenario import EVENTS, Edit, Resume, Scenario, ScheduleConfig
from inbackward.scenario.configs import SELECTORS
from inbackward.scenario.json_schema import LIMITS
from inbackward.scenario.plain_data import field_types

numbers = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=12)
patterns = st.lists(st.sampled_from([*SELECTORS, "*", "*.bias", "nothing"]), max_size=2).map(tuple)
# JSON has no tuples, and lists are read as tuples: values are drawn as they are read.
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | numbers | names,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
options = st.dictionaries(names.filter(lambda n: n not in ("params", "lr")), values, max_size=3)

schedules = st.recursive(
    st.builds(ScheduleConfig, cls=st.sampled_from(["StepLR", "OneCycleLR"]), kwargs=options)
    | st.builds(
        ScheduleConfig,
        cls=st.just("LambdaLR"),
        factors=st.lists(numbers, min_size=1, max_size=3).map(lambda row: (tuple(row),)),
    ),
    lambda inner: st.builds(
        ScheduleConfig, cls=st.just("ChainedScheduler"), parts=st.lists(inner, min_size=1, max_size=2).map(tuple)
    ),
    max_leaves=3,
)

# Fields whose values must fit other fields.
SPECIAL = {
    "Scenario.requirement": st.sampled_from(sorted(CATALOGUE)) | names,
    "Scenario.schedule": st.none() | schedules,
    "ModelConfig.dim": st.just(32),
    "ModelConfig.heads": st.sampled_from([1, 2, 4]),
    "ModelConfig.kv_heads": st.just(1),
    "ModelConfig.context": st.just(64),
    "ModelConfig.branch": st.just(True),
    "ModelConfig.mixed": st.just((("*norm*", "float64"),)),
    "ModelConfig.factory": st.sampled_from(["", "package.module:factory"]),
    "DataConfig.length": st.integers(1, 64),
    "OptimizerConfig.cls": st.sampled_from(["torch.optim:AdamW", "mine:Outer.Inner"]),
    "OptimizerConfig.tensor_lr": st.just(False),
    "ParallelConfig.ranks": st.just(4),
    "ParallelConfig.strategy": st.just("fsdp2-tensor-parallel"),
    **{f"ParallelConfig.{name}": st.just(False) for name in ("find_unused", "bucket_view", "static_graph")},
    "Scenario.token_normalised": st.just(False),
    "Edit.group": st.none() | st.just(0),
}


def of_class(cls, **given):
    """Instances of a dataclass, every field drawn, those in ``given`` as it says."""
    fields = {name: _of_field(cls, name, kind) for name, kind in field_types(cls).items()}
    return st.builds(cls, **{**fields, **given})


def _of_field(cls, name, kind):
    keys = [f"{c.__name__}.{name}" for c in cls.__mro__]
    special = next((SPECIAL[key] for key in keys if key in SPECIAL), None)
    limit = next((LIMITS[key] for key in keys if key in LIMITS), {})
    if special is not None:
        return special
    if name in ("match", "frozen"):
        return patterns
    return _of_kind(kind, limit)


def _of_kind(kind, limit):
    if kind is Any:
        return values
    if is_dataclass(kind):
        return of_class(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return st.lists(_of_kind(arguments[0], limit), min_size=1, max_size=3).map(tuple)
    if origin in (typing.Union, types.UnionType):
        return st.none() | _of_kind(next(a for a in arguments if a is not type(None)), limit)
    if origin is Mapping:
        return options
    if "enum" in limit:
        return st.sampled_from(limit["enum"])
    lowest = limit.get("minimum", limit.get("exclusiveMinimum", 0))
    below = limit.get("exclusiveMaximum")
    if kind is float:
        above, under = "exclusiveMinimum" in limit, below is not None
        return st.floats(lowest, below, exclude_min=above, exclude_max=under, allow_nan=False)
    return {str: names, bool: st.booleans(), int: st.integers(lowest, lowest + 9)}[kind]


@st.composite
def scenarios(draw):
    iterations = draw(st.integers(1, 6))
    at = st.integers(0, iterations - 1)
    edited = names.filter(lambda n: n != "params")
    resumed = {
        "schedule": st.just("state-dict"),  # last-epoch is LambdaLR's only
        "route": st.sampled_from(["memory", "file", "dcp", "process"]),
        "parallel": st.none(),  # which other routes go with
    }
    rules_of = {Edit: {"name": edited}, Resume: resumed}
    events = st.one_of(of_class(cls, at=at, **rules_of.get(cls, {})) for cls in EVENTS.values())
    scaled = draw(st.booleans())
    rules = {
        "iterations": st.just(iterations),
        "events": st.lists(events, max_size=3).map(tuple),
        "groups": st.just(())
        if draw(st.booleans())
        else _of_field(Scenario, "groups", field_types(Scenario)["groups"]),
        "split": st.just(""),
        "autocast": st.just("float16" if scaled else ""),
        "autocast_backward": st.booleans() if scaled else st.just(False),
        "scaler": _of_field(Scenario, "scaler", field_types(Scenario)["scaler"]) if scaled else st.none(),
    }
    return draw(of_class(Scenario, **rules))
