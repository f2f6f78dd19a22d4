"""Faults of what is loaded, and of a schedule after it."""

from __future__ import annotations

from typing import Any

from torch import nn

from inbackward.faults.fault import fault
from inbackward.faults.hyperparameters import Frozen
from inbackward.faults.right import Right

# resume


class AfterLoad(Right):
    """Loads rightly, then does something to the state of each parameter."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for entries in self.state.values():
            self.spoil(entries)

    def spoil(self, entries: dict[str, Any]) -> None:
        raise NotImplementedError


@fault("resume", what_if="second-moments-lost-at-load")
class ForgetsTheSecondMoment(AfterLoad):
    """Loads everything but the second moments."""

    def spoil(self, entries: dict[str, Any]) -> None:
        if "exp_avg_sq" in entries:
            entries["exp_avg_sq"].zero_()


@fault("resume", subtle=True, what_if="step-counter-lost-at-load")
class RestartsTheCounter(AfterLoad):
    """Loads everything but how often it has stepped."""

    def spoil(self, entries: dict[str, Any]) -> None:
        if "step" in entries:
            entries["step"].zero_()


@fault("resume", subtle=True)
class ForgetsTheMaximum(AfterLoad):
    """Begins amsgrad's running maximum again from where the moment is now."""

    def spoil(self, entries: dict[str, Any]) -> None:
        if "max_exp_avg_sq" in entries:
            entries["max_exp_avg_sq"].copy_(entries["exp_avg_sq"])


@fault("resume", subtle=True)
class MomentumThroughBfloat16(AfterLoad):
    """Takes momentum through bfloat16 at load."""

    def spoil(self, entries: dict[str, Any]) -> None:
        if "momentum_buffer" in entries:
            entries["momentum_buffer"] = entries["momentum_buffer"].bfloat16().float()


@fault("tensor-lr", subtle=True)
class TensorLrLoadedAsFloat(Right):
    """An lr that is a tensor is a number after loading, and what changes the tensor changes nothing."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["lr"] = float(group["lr"])


class NumbersWhatTrains(Right):
    """Numbers the state in its files over what trains, where the plain optimizer counts every parameter."""

    def places(self) -> dict[int, int]:
        all_of_them = [p for group in self.param_groups for p in group["params"]]
        return {i: n for n, i in enumerate(i for i, p in enumerate(all_of_them) if p.requires_grad)}


@fault("resume-into-plain", subtle=True)
class WritesWhatTrains(NumbersWhatTrains):
    """Numbers the state over the parameters that train."""

    def state_dict(self) -> dict[str, Any]:
        found, places = super().state_dict(), self.places()
        return {**found, "state": {places.get(i, i): entries for i, entries in found["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        back = {n: i for i, n in self.places().items()}
        state = {back.get(n, n): entries for n, entries in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})


@fault("resume-from-plain", subtle=True)
class ReadsWhatTrains(WritesWhatTrains):
    """Reads the state as numbered over the parameters that train, as its own files have it."""


@fault("resume", reports=(27,), what_if="state-lost-at-load")
class LoadsNothing(Right):
    """Leaves a checkpoint where it is."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


@fault("resume", reports=(21,))
class HooksLostOnLoad(Right):
    """Takes its hooks off at load, and nobody puts them on again."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.close()


@fault("resume-into-plain", name="into-plain-state-of-the-first-group", subtle=True)
@fault("resume", subtle=True)
class StateOfTheFirstGroup(Right):
    """Saves the state of the first group alone."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        first = set(saved["param_groups"][0]["params"])
        return {**saved, "state": {k: v for k, v in saved["state"].items() if k in first}}


@fault("resume", reports=(21,))
class ParametersOfItsOwn(Right):
    """Holds copies of the parameters after loading, and the model's are in no group."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for group in self.inner.param_groups:
            group["params"] = [nn.Parameter(p.detach().clone()) for p in group["params"]]


# A schedule after loading


@fault("resume-schedule", reports=(32,))
class ScheduleDeadAfterLoad(Frozen):
    """Puts other group dicts, at load, in place of those that the scheduler goes on to write to."""

    keys = ()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.kept = [{"lr": group["lr"]} for group in self.param_groups]


@fault("resume-schedule", subtle=True, reports=(26,))
class LrOfTheConstructor(Right):
    """Has the moments in its checkpoint but no hyperparameters."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        lr = [group["lr"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, value in zip(self.param_groups, lr, strict=True):
            group["lr"] = value


@fault("resume-schedule")
class InitialLrLost(Right):
    """Saves no ``initial_lr``, from which a scheduler goes on."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        groups = [{k: v for k, v in group.items() if k != "initial_lr"} for group in saved["param_groups"]]
        return {**saved, "param_groups": groups}
