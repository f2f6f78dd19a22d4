"""Every optimizer of ``torch.optim`` that needs no closure, with each flag it has. A new one is one entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from inbackward.requirements.arms import make_arm
from inbackward.scenario import GroupConfig, ModelConfig, Scenario

SMALL = ModelConfig(layers=1)


@dataclass(frozen=True)
class Entry:
    """One class: what every run is given, the further keyword arguments of each run by its name, and where it runs.

    ``groups`` and ``frozen`` confine an optimizer to the parameters that it accepts. Values are such that a relative
    error of 1e-5 in any of them shows in float32 (docs/detection.md): a large eps goes with a large lr.
    """

    cls: str
    base: dict[str, Any]
    flags: dict[str, dict[str, Any]]
    model: ModelConfig = SMALL
    groups: tuple[GroupConfig, ...] = ()
    frozen: tuple[str, ...] = ()
    kernels: tuple[str, ...] = field(default=("foreach",))
    iterations: int = 3

    def scenarios(self) -> Iterator[Scenario]:
        """One a run; nothing on a torch that does not have the class."""
        import torch  # late, so that the catalogue can be listed without it

        cls = getattr(torch.optim, self.cls, None)
        if cls is None:
            return
        runs = {"plain": {}, **self.flags, **{kernel: {kernel: True} for kernel in self.kernels}}
        for name, kwargs in runs.items():
            arm = make_arm(self.cls.lower(), cls, {**self.base, **kwargs})
            iterations = max(6, self.iterations) if name == "plain" else self.iterations
            yield arm.run(name, model=self.model, iterations=iterations, groups=self.groups, frozen=self.frozen)


DECAY = {"decay": {"weight_decay": 0.1}}
DECOUPLED = {"decoupled-decay": {"weight_decay": 0.1, "decoupled_weight_decay": True}}
MAXIMIZE = {"maximize": {"maximize": True}}

TABLE = (
    Entry(
        "SGD",
        {"lr": 0.1},
        {
            **DECAY,
            **MAXIMIZE,
            "momentum": {"momentum": 0.9},
            "dampening": {"momentum": 0.9, "dampening": 0.3},
            "nesterov": {"momentum": 0.9, "nesterov": True},
            "momentum-decay": {"momentum": 0.9, "weight_decay": 0.1},
            "momentum-foreach": {"momentum": 0.9, "foreach": True},
            "momentum-fused": {"momentum": 0.9, "fused": True},
        },
        kernels=("foreach", "fused"),
    ),
    Entry(
        "Adam",
        {"lr": 0.01},
        {
            **DECAY,
            **DECOUPLED,
            **MAXIMIZE,
            "amsgrad": {"amsgrad": True},
            "betas": {"betas": (0.5, 0.7)},
            "large-eps": {"eps": 0.1, "lr": 0.1},
            "amsgrad-fused": {"amsgrad": True, "fused": True},
        },
        kernels=("foreach", "fused"),
    ),
    Entry(
        "AdamW",
        {"lr": 0.01, "weight_decay": 0.1},
        {
            **MAXIMIZE,
            "no-decay": {"weight_decay": 0.0},
            "amsgrad": {"amsgrad": True},
            "betas": {"betas": (0.5, 0.7)},
            "large-eps": {"eps": 0.1, "lr": 0.1},
            "large-decay": {"weight_decay": 30.0},
            "amsgrad-foreach": {"amsgrad": True, "foreach": True},
        },
        kernels=("foreach", "fused"),
    ),
    Entry(
        "Adagrad",
        {"lr": 0.05},
        {
            **DECAY,
            **MAXIMIZE,
            "lr-decay": {"lr_decay": 3.0},
            "initial-accumulator": {"initial_accumulator_value": 0.2},
            "large-eps": {"eps": 0.1},
        },
        kernels=("foreach", "fused"),
    ),
    Entry(
        "RMSprop",
        {"lr": 0.01},
        {
            **DECAY,
            **MAXIMIZE,
            "momentum": {"momentum": 0.9},
            "centered": {"centered": True},
            "centered-momentum": {"centered": True, "momentum": 0.9},
            "alpha": {"alpha": 0.5},
            "large-eps": {"eps": 0.1},
        },
    ),
    Entry(
        "Adadelta",
        {"lr": 1.0},
        {**DECAY, **MAXIMIZE, "rho": {"rho": 0.5}, "large-eps": {"eps": 0.01}},
    ),
    Entry(
        "Adamax",
        {"lr": 0.01},
        {**DECAY, **MAXIMIZE, "betas": {"betas": (0.5, 0.7)}, "large-eps": {"eps": 0.1}},
    ),
    Entry(
        "NAdam",
        {"lr": 0.01},
        {
            **DECAY,
            **DECOUPLED,
            **MAXIMIZE,
            "momentum-decay": {"momentum_decay": 5.0},
            "betas": {"betas": (0.5, 0.7)},
            "large-eps": {"eps": 0.1, "lr": 0.1},
        },
    ),
    Entry(
        "RAdam",
        {"lr": 0.01},
        {
            **DECAY,
            **DECOUPLED,
            **MAXIMIZE,
            "betas": {"betas": (0.5, 0.9)},
            "large-eps": {"eps": 0.1, "lr": 0.5, "betas": (0.5, 0.9)},
        },
        iterations=8,  # of which the last are rectified: before, neither eps nor the second moment is used
    ),
    Entry(
        "ASGD",
        {"lr": 0.1},
        {
            "decay": {"weight_decay": 3.0},
            **MAXIMIZE,
            "lambd-alpha": {"lambd": 3.0, "alpha": 0.75},
            "averaging": {"t0": 1.0},
        },
    ),
    Entry(
        "Rprop",
        {"lr": 0.01},
        {**MAXIMIZE, "etas": {"etas": (0.3, 1.5)}, "step-sizes": {"step_sizes": (0.005, 0.02)}},
    ),
    Entry(
        "Adafactor",
        {"lr": 0.01},
        {
            **DECAY,
            **MAXIMIZE,
            "beta2-decay": {"beta2_decay": -0.5},
            "clip": {"d": 1.5},
            "eps": {"eps": (0.01, 1.0)},
            "large-decay": {"weight_decay": 30.0},
        },
    ),
    Entry(
        "Muon",
        {"lr": 0.01},
        {
            "large-decay": {"weight_decay": 30.0},
            "no-decay": {"weight_decay": 0.0},
            "no-nesterov": {"nesterov": False},
            "momentum": {"momentum": 0.5},
            "ns-steps": {"ns_steps": 2},
            "match-rms": {"adjust_lr_fn": "match_rms_adamw"},
        },
        groups=(GroupConfig(match=("@matrix",)),),
        frozen=("@vector",),
        kernels=(),
    ),
    Entry(
        "SparseAdam",
        {"lr": 0.01},
        {**MAXIMIZE, "betas": {"betas": (0.5, 0.7)}, "large-eps": {"eps": 0.1, "lr": 10.0}},
        model=ModelConfig(layers=1, sparse=True),
        groups=(GroupConfig(match=("embedding*",)),),
        frozen=("blocks*", "norm*", "head*"),
        kernels=(),
    ),
)
