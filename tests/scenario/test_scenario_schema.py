"""The schema that ships is the one that the classes give, and accepts what they accept."""

import json
from dataclasses import fields
from importlib.resources import files

import jsonschema
import pytest
from hypothesis import given, settings
from scenario_strategies import scenarios

from inbackward.requirements import CATALOGUE, default_arms
from inbackward.scenario import EVENTS, Event, Scenario, configs
from inbackward.scenario.json_schema import LIMITS, schema

SCHEMA = json.loads(files("inbackward.scenario").joinpath("scenario.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_it_is_up_to_date():
    mend = "run: python -m inbackward.scenario.json_schema > src/inbackward/scenario/scenario.schema.json"
    assert schema() == SCHEMA, mend


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_no_limit_is_dead():
    classes = [Scenario, Event, *EVENTS.values()]
    classes += [c for name, c in vars(configs).items() if name.endswith("Config")]
    assert {f"{c.__name__}.{f.name}" for c in classes for f in fields(c)} >= LIMITS.keys()


def test_every_object_is_strict():
    objects = [SCHEMA, *SCHEMA["$defs"].values()]
    assert all(o["additionalProperties"] is False for o in objects)
    assert {o["properties"]["kind"]["const"] for o in objects if "const" in o["properties"].get("kind", {})} == set(
        EVENTS
    )


@pytest.mark.parametrize("id", CATALOGUE)
def test_every_scenario_of_the_catalogue(id):
    documents = [json.loads(s.to_json()) for s in CATALOGUE[id].scenarios(default_arms())]
    assert documents
    for document in documents:
        VALIDATOR.validate(document)


@settings(deadline=None, database=None)
@given(scenario=scenarios())
def test_every_scenario(scenario):
    VALIDATOR.validate(json.loads(scenario.to_json()))


BROKEN = [
    {"schema": "inbackward.scenario/2"},
    {"lr": 0.1},
    {"seed": -1},
    {"seed": "0"},
    {"seed": 2**31},
    {"iterations": 0},
    {"dtype": "float8"},
    {"strategy": "ddp"},
    {"named": 1},
    {"loss_scale": "1"},
    {"expect": ["moves"]},
    {"frozen": "*"},
    {"model": {"kind": "gpt"}},
    {"model": {"layers": 0}},
    {"model": {"vocabulary": 255}},
    {"model": {"dropout": 1.0}},
    {"model": {"mixed": [["*"]]}},
    {"data": {"source": "web"}},
    {"data": {"batch": 0}},
    {"optimizer": {"cls": "AdamW"}},
    {"optimizer": {"kwargs": []}},
    {"groups": [{"pattern": ["*"]}]},
    {"schedule": {"cls": "MagicLR"}},
    {"schedule": {"kwargs": {}}},
    {"events": [{"kind": "explode", "at": 0}]},
    {"events": [{"kind": "edit"}]},
    {"events": [{"at": 0}]},
    {"events": [{"kind": "edit", "at": -1}]},
    {"events": [{"kind": "resume", "at": 0, "route": "pigeon"}]},
    {"events": [{"kind": "resume", "at": 0, "what": ["state"]}]},
    {"events": [{"kind": "observe", "at": 0, "what": ["mind"]}]},
    {"events": [{"kind": "extra-calls", "at": 0, "calls": ["close"]}]},
    {"events": [{"kind": "extra-calls", "at": 0, "when": "during"}]},
]


@pytest.mark.parametrize("change", BROKEN, ids=[json.dumps(change) for change in BROKEN])
def test_a_broken_document_is_refused_by_both(change):
    document = {"schema": "inbackward.scenario/1", **change}
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(ValueError, match=r"\w"):
        Scenario.from_json(json.dumps(document))


def test_a_document_without_its_schema_is_refused():
    assert not VALIDATOR.is_valid({})
