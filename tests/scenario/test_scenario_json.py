"""A scenario written and read is the same scenario; anything else is a ``ValueError`` of one line."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_strategies import scenarios

from inbackward.scenario import EVENTS, Edit, Scenario

quiet = settings(deadline=None, database=None)


@quiet
@given(scenario=scenarios())
def test_round_trip(scenario):
    read = Scenario.from_json(scenario.to_json())
    assert read == scenario
    assert (hash(read), read.digest, read.label) == (hash(scenario), scenario.digest, scenario.label)
    assert read.to_json() == scenario.to_json()


def test_what_is_left_out_has_its_default():
    assert Scenario.from_json('{"schema": "inbackward.scenario/1"}') == Scenario()


def test_every_field_is_written():
    document = json.loads(Scenario().to_json())
    assert document.keys() == {"schema", *Scenario.__dataclass_fields__}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_file_holds_what_json_does_not_have(value):
    scenario = Scenario(events=(Edit(at=0, value=value),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        scenario.to_json()


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw):
    """The document of a valid scenario in which one value, at any depth, is something else, or one key is new."""
    document = json.loads(draw(scenarios()).to_json())
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if isinstance(place, dict) and draw(st.booleans()):
            place[draw(st.text(max_size=8))] = draw(junk)
            return document
        if not keys:
            return document
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or draw(st.booleans()):
            place[key] = draw(junk)
            return document
        place = place[key]


def refused_in_one_line(text):
    """Whether it is refused; where it is not, it must be a scenario that can be written again."""
    try:
        scenario = Scenario.from_json(text)
    except ValueError as error:
        return bool(str(error).strip())
    assert Scenario.from_json(scenario.to_json()) == scenario
    return False


@settings(quiet, max_examples=300)
@given(document=damaged())
def test_damage_is_refused_or_harmless(document):
    refused_in_one_line(json.dumps(document))


@quiet
@given(document=junk)
def test_junk_is_refused(document):
    assert refused_in_one_line(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": "7"}, "scenario.seed is '7'; it must be a whole number"),
        ({"seed": 7.0}, "scenario.seed is 7.0; it must be a whole number"),
        ({"named": 1}, "scenario.named is 1; it must be true or false"),
        ({"dtype": None}, "scenario.dtype is None; it must be a string"),
        ({"loss_scale": True}, "scenario.loss_scale is True; it must be a number"),
        ({"groups": {}}, "scenario.groups is {}; it must be a list"),
        ({"groups": [{"match": "*"}]}, "scenario.groups[0].match is '*'; it must be a list"),
        ({"groups": [{"match": ["@odd"]}]}, "group.match is '@odd'; choose one of @matrix, @vector"),
        ({"groups": [{"options": {"params": []}}]}, "group.options holds 'params'; group.match chooses the parameters"),
        ({"model": {"mixed": [["*"]]}}, "scenario.model.mixed[0] is ['*']; it must be a list of 2"),
        ({"model": {"dropout": 1}}, "model.dropout is 1.0; it must be in [0, 1)"),
        ({"schedule": {}}, "scenario.schedule: ScheduleConfig.__init__() missing 1 required keyword-only argument: 'c"),
        ({"schedule": {"cls": "StepLR", "parts": [3]}}, "scenario.schedule.parts[0] is 3; it must be an object"),
        ({"events": [{"at": 0}]}, f"scenario.events[0].kind is None; it must be one of {', '.join(EVENTS)}"),
        ({"events": [{"kind": ["edit"], "at": 0}]}, "scenario.events[0].kind is ['edit']; it must be one of"),
        ({"events": [{"kind": "edit", "at": -1}]}, "edit event at iteration -1; iterations count from 0"),
        ({"events": [{"kind": "edit", "at": 0, "name": "params"}]}, "edit.name is 'params'; an edit sets a hyperp"),
        ({"events": [{"kind": "edit", "at": 0, "group": 1}]}, "edit of group 1, but there are 1 groups"),
        ({"events": [{"kind": "skip-branch", "at": 0}]}, "skip-branch event on a model without a branch; set model.b"),
        ({"iterations": 0}, "iterations is 0; a run has at least 1"),
        ({"data": {"length": 65}}, "data.length 65 exceeds model.context 64"),
        ({"optimizer": {"cls": "AdamW"}}, "optimizer.cls is 'AdamW'; write it as module:Class"),
        ({"schema": None}, "schema is None; this version reads 'inbackward.scenario/1'"),
    ],
)
def test_the_line_names_the_place_and_the_mend(change, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        Scenario.from_json(json.dumps({"schema": "inbackward.scenario/1", **change}))
