"""The JSON Schema of a scenario file, made from the classes that read it.

``python -m inbackward.scenario.json_schema`` prints what ``scenario.schema.json`` must hold; a test compares the two.
What ties several fields together (heads that divide a width, an event's iteration) only the classes check.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from inbackward.scenario import configs, events
from inbackward.scenario.plain_data import field_types
from inbackward.scenario.scenario import (
    AUTOCASTS,
    COMPILED,
    EXPECTATIONS,
    SCHEMA,
    SPLITS,
    ZERO_GRADS,
    Scenario,
)

SIMPLE = {str: {"type": "string"}, bool: {"type": "boolean"}, int: {"type": "integer"}}
AT_LEAST_1 = {"minimum": 1}
SIZE = {"minimum": 1, "maximum": configs.LARGEST}


def _one_of(choices: tuple[str, ...]) -> dict[str, Any]:
    return {"enum": list(choices)}


# What the annotations do not say; of a list, it is said of the items.
LIMITS: dict[str, dict[str, Any]] = {
    "Scenario.iterations": {"minimum": 1, "maximum": 100_000},
    "Scenario.seed": {"minimum": 0, "exclusiveMaximum": 2**31},
    "Scenario.dtype": _one_of(configs.DTYPES),
    "Scenario.expect": _one_of(EXPECTATIONS),
    "Scenario.micro_batches": AT_LEAST_1,
    "Scenario.autocast": _one_of(AUTOCASTS),
    "Scenario.compiled": _one_of(COMPILED),
    "Scenario.split": _one_of(SPLITS),
    "Scenario.zero_grad": _one_of(ZERO_GRADS),
    "ClipConfig.max_norm": {"exclusiveMinimum": 0},
    "ScalerConfig.init_scale": {"exclusiveMinimum": 0},
    "ScalerConfig.growth_interval": AT_LEAST_1,
    "HookConfig.kind": _one_of(configs.HOOKS),
    "ModelConfig.checkpointing": _one_of(configs.CHECKPOINTING),
    "ModelConfig.kind": _one_of(configs.MODEL_KINDS),
    "ModelConfig.vocabulary": {"minimum": 256, "maximum": configs.LARGEST},
    "ModelConfig.dropout": {"minimum": 0, "exclusiveMaximum": 1},
    **{f"ModelConfig.{name}": SIZE for name in ("layers", "dim", "heads", "kv_heads", "hidden", "context")},
    "DataConfig.source": _one_of(configs.DATA_SOURCES),
    "DataConfig.batch": SIZE,
    "DataConfig.length": SIZE,
    "OptimizerConfig.cls": {"pattern": "^[^:]*:[^:]*$"},
    "ScheduleConfig.cls": _one_of(configs.SCHEDULES),
    "ParallelConfig.strategy": _one_of(configs.STRATEGIES),
    "ParallelConfig.ranks": SIZE,
    "ParallelConfig.mixed_precision": _one_of(("", *configs.DTYPES)),
    "ParallelConfig.reduce_dtype": _one_of(("", *configs.DTYPES)),
    "SkipBranch.ranks": {"minimum": 0},
    "Event.at": {"minimum": 0},
    "Resume.saved_by": _one_of(events.SIDES),
    "Resume.loaded_by": _one_of(events.SIDES),
    "Resume.route": _one_of(events.ROUTES),
    "Resume.schedule": _one_of(events.SCHEDULE_ROUTES),
    "Observe.what": _one_of(events.READINGS),
    "ExtraCalls.calls": _one_of(events.CALLS),
    "ExtraCalls.when": _one_of(events.MOMENTS),
    "Cast.dtype": _one_of(configs.DTYPES),
    "NonFinite.value": _one_of(events.SPECIALS),
    "AccessGradient.how": _one_of(events.ACCESSES),
    "Recreate.how": _one_of(events.RECREATIONS),
    "Copy.how": _one_of(events.COPIES),
    "ForeignBackward.how": _one_of(events.FOREIGN),
    "Snapshot.route": _one_of(events.SNAPSHOT_ROUTES),
    "LoadUnfit.what": _one_of(events.UNFIT),
}


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of ``inbackward.scenario/1``."""
    definitions: dict[str, Any] = {}
    top = _object(Scenario, definitions, {"schema": {"const": SCHEMA}})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One training run of inbackward, written down completely",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(cls: type, definitions: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    properties = dict(head)
    required = list(head)
    for field in fields(cls):
        limit = next((LIMITS[key] for c in cls.__mro__ if (key := f"{c.__name__}.{field.name}") in LIMITS), {})
        properties[field.name] = _type(field_types(cls)[field.name], definitions, limit)
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(field.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type(kind: Any, definitions: dict[str, Any], limit: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        return {}
    if kind is events.Event:
        return {"oneOf": [_reference(cls, definitions) for cls in events.EVENTS.values()]}
    if is_dataclass(kind):
        return _reference(typing.cast(type, kind), definitions)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _type(arguments[0], definitions, limit)}
    if origin is tuple:
        items = [_type(argument, definitions, limit) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in arguments if a is not type(None))
        return {"anyOf": [{"type": "null"}, _type(inner, definitions, limit)]}
    if origin is Mapping:
        return {"type": "object"}
    if kind is float:
        return {"anyOf": [{"const": "inf"}, {"type": "number", **limit}]}
    return {**SIMPLE[kind], **limit}


def _reference(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}  # a schedule holds schedules
        head = {"kind": {"const": cls.kind}} if issubclass(cls, events.Event) else {}
        definitions[cls.__name__] = _object(cls, definitions, head)
    return {"$ref": f"#/$defs/{cls.__name__}"}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
