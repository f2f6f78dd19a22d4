"""The scenario, its events and JSON; the models, data and optimizers it names."""

from inbackward.scenario.configs import (
    DataConfig,
    GroupConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    class_path,
)
from inbackward.scenario.events import (
    EVENTS,
    Edit,
    Event,
    ExtraCalls,
    Observe,
    Resume,
    SkipBranch,
    StepClosure,
)
from inbackward.scenario.features import without
from inbackward.scenario.scenario import EXPECTATIONS, SCHEMA, Scenario

__all__ = [
    "EVENTS",
    "EXPECTATIONS",
    "SCHEMA",
    "DataConfig",
    "Edit",
    "Event",
    "ExtraCalls",
    "GroupConfig",
    "ModelConfig",
    "Observe",
    "OptimizerConfig",
    "Resume",
    "Scenario",
    "ScheduleConfig",
    "SkipBranch",
    "StepClosure",
    "class_path",
    "without",
]
