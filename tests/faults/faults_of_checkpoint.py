"""Faults of saving and loading."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from tests.faults.fault import Fault
from tests.faults.faults_of_hyperparameters import Frozen
from tests.shapes.mine import AtStep, Mine
from torch import nn

# resume


class AfterLoad(Mine):
    """Loads rightly, then does something to the state of each parameter."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for entries in self.state.values():
            self.spoil(entries)

    def spoil(self, entries: dict[str, Any]) -> None:
        raise NotImplementedError


class ForgetsTheSecondMoment(AfterLoad):
    def spoil(self, entries: dict[str, Any]) -> None:
        if "exp_avg_sq" in entries:
            entries["exp_avg_sq"].zero_()


class RestartsTheCounter(AfterLoad):
    def spoil(self, entries: dict[str, Any]) -> None:
        if "step" in entries:
            entries["step"].zero_()


class ForgetsTheMaximum(AfterLoad):
    """amsgrad's running maximum begins again from where the moment is now."""

    def spoil(self, entries: dict[str, Any]) -> None:
        if "max_exp_avg_sq" in entries:
            entries["max_exp_avg_sq"].copy_(entries["exp_avg_sq"])


class MomentumThroughBfloat16(AfterLoad):
    def spoil(self, entries: dict[str, Any]) -> None:
        if "momentum_buffer" in entries:
            entries["momentum_buffer"] = entries["momentum_buffer"].bfloat16().float()


class LoadsNothing(Mine):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class HooksLostOnLoad(Mine):
    """Loading takes the hooks off, and nobody puts them on again."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.close()


class StateOfTheFirstGroup(Mine):
    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        first = set(saved["param_groups"][0]["params"])
        return {**saved, "state": {k: v for k, v in saved["state"].items() if k in first}}


class ParametersOfItsOwn(Mine):
    """After loading it holds copies of the parameters, and the model's are in no group."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for group in self.inner.param_groups:
            group["params"] = [nn.Parameter(p.detach().clone()) for p in group["params"]]


# A schedule after loading


class ScheduleDeadAfterLoad(Frozen):
    """``load_state_dict`` puts other group dicts in place of those that the scheduler goes on to write to."""

    keys = ()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.kept = [{"lr": group["lr"]} for group in self.param_groups]


class LrOfTheConstructor(Mine):
    """The checkpoint has the moments but no hyperparameters."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        lr = [group["lr"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, value in zip(self.param_groups, lr, strict=True):
            group["lr"] = value


class InitialLrLost(Mine):
    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        groups = [{k: v for k, v in group.items() if k != "initial_lr"} for group in saved["param_groups"]]
        return {**saved, "param_groups": groups}


# Between here and the plain optimizer


class LayoutOfItsOwn(Mine):
    def state_dict(self) -> dict[str, Any]:
        return {"inner": super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["inner"])


class StateByName(Mine):
    """Keys that a plain optimizer takes without a word and never looks up again."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "state": {f"parameter {key}": value for key, value in saved["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = {int(str(key).removeprefix("parameter ")): value for key, value in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})


class ForeignStateDropped(Mine):
    """Knows its own checkpoints by a mark; of any other it takes the groups alone."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mark": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = state_dict["state"] if "mark" in state_dict else {}
        super().load_state_dict({**state_dict, "state": state})


class StateInSortedOrder(Mine):
    """Numbers the parameters from the smallest: state meets another parameter of the same shape, or of another."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        order = sorted(range(len(parameters)), key=lambda i: (parameters[i].shape, -i))
        same = sorted(range(len(parameters)), key=lambda i: (parameters[i].shape, i))
        state = {b: state_dict["state"][a] for a, b in zip(order, same, strict=True) if a in state_dict["state"]}
        super().load_state_dict({**state_dict, "state": state})


class NoStateYet(Mine):
    """Saving says which steps it stands at, and there is none before the first."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "steps": len(next(iter(saved["state"].values())))}


class LoadsFullStateOnly(Mine):
    """A checkpoint with fewer entries than parameters is taken for a broken one, and left out."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        full = len(state_dict["state"]) == sum(len(group["params"]) for group in state_dict["param_groups"])
        super().load_state_dict({**state_dict, "state": state_dict["state"] if full else {}})


class RaisesHalfLoaded(Mine):
    """Finds out that the checkpoint does not fit when half of it is in."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if any(p not in self.state for group in self.param_groups for p in group["params"]):
            raise ValueError("the checkpoint lacks the state of a parameter")


class TakesAnyCheckpoint(Mine):
    """Fits the groups to what is there, where the plain optimizer refuses."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = self.inner.state_dict()["param_groups"]
        super().load_state_dict({"state": state_dict["state"], "param_groups": groups})


class LiveDict(dict[str, Any]):
    """Saves memory: a deep copy holds the same tensors."""

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return dict(self)


class SnapshotIsLive(Mine):
    def state_dict(self) -> dict[str, Any]:
        return LiveDict(super().state_dict())


class NeverCopied(dict[str, Any]):
    """Is its own deep copy: its tensors are those of the optimizer."""

    def __deepcopy__(self, memo: Any) -> NeverCopied:
        return self


class SnapshotIsItself(Mine):
    def state_dict(self) -> dict[str, Any]:
        return NeverCopied(super().state_dict())


SAVED: dict[int, dict[str, Any]] = {}


class StateInARegistry(Mine):
    """The state dict is a ticket; what it stands for is in this process."""

    def state_dict(self) -> dict[str, Any]:
        saved = copy.deepcopy(super().state_dict())
        SAVED[id(self)] = saved["state"]
        return {**saved, "state": {}, "ticket": id(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "state": SAVED.pop(state_dict["ticket"])})


# What a state dict may hold


class HoldsParameters(Mine):
    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "parameters": [p for group in self.param_groups for p in group["params"]]}


class HoldsParametersAsTensors(Mine):
    """Detached, and still the parameters' own memory, written to the file a second time."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "master": {i: p.detach() for i, p in enumerate(self.param_groups[0]["params"])}}


class HoldsAnObject(Mine):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "config": SimpleNamespace(version=1)}


class HoldsAModule(Mine):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "projection": nn.Identity()}


class HoldsAFunction(Mine):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedule": lambda step: 1.0}


class HoldsAStorageInState(Mine):
    """Only once there is state: one of its tensors is a view of the parameter."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        if saved["state"]:
            saved["state"][0] = {**saved["state"][0], "anchor": self.param_groups[0]["params"][0].detach()[:1]}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = {i: {k: v for k, v in e.items() if k != "anchor"} for i, e in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})


FAULTS = [
    Fault(
        ForgetsTheSecondMoment, "resume", "at-1-memory-adamw", "iteration 1, parameter ", first={"state": 1, "loss": 2}
    ),
    Fault(RestartsTheCounter, "resume", "at-3-file-adamw", "iteration 3, parameter ", first={"state": 3}),
    Fault(ForgetsTheMaximum, "resume", "amsgrad-adamw", "iteration 2, "),
    Fault(MomentumThroughBfloat16, "resume", "at-1-file-sgd", "iteration 1, parameter "),
    Fault(LoadsNothing, "resume", "twice-sgd", "iteration 1, parameter ", first={"parameter": 1, "loss": 2}),
    Fault(LoadsNothing, "resume", "of-plain-rmsprop", "iteration 2, "),
    Fault(HooksLostOnLoad, "resume", "batch-norm-adamw", "iteration 2, parameter "),
    Fault(StateOfTheFirstGroup, "resume", "groups-adamw", "iteration 2, parameter "),
    Fault(ParametersOfItsOwn, "resume", "tied-sgd", "iteration 2, parameter "),
    Fault(ScheduleDeadAfterLoad, "resume-schedule", "step-sgd", "iteration 3, parameter "),
    Fault(ScheduleDeadAfterLoad, "resume-schedule", "edited-after-loading-adamw", "iteration 3, parameter "),
    Fault(LrOfTheConstructor, "resume-schedule", "two-groups-state-dict-adamw", "iteration 2, parameter "),
    Fault(InitialLrLost, "resume-schedule", "last-epoch-sgd", "KeyError: ", verdict="broken"),
    Fault(LayoutOfItsOwn, "resume-from-plain", "at-1-memory-adamw", "KeyError: 'inner'", verdict="broken"),
    Fault(ForeignStateDropped, "resume-from-plain", "at-3-file-sgd", "iteration 3, parameter "),
    Fault(StateInSortedOrder, "resume-from-plain", "groups-out-of-order-adamw", "iteration 2, parameter "),
    Fault(LayoutOfItsOwn, "resume-into-plain", "at-1-memory-adamw", "KeyError: ", verdict="broken"),
    Fault(StateByName, "resume-into-plain", "at-1-file-adamw", "iteration 1, parameter ", first={"state": 1}),
    Fault(StateOfTheFirstGroup, "resume-into-plain", "groups-sgd", "iteration 2, parameter "),
    Fault(HoldsParameters, "weights-only-load", "plain-adamw", "iteration 2, state-dict: state_dict['parameters'][0]"),
    Fault(
        HoldsParametersAsTensors, "weights-only-load", "named-sgd", "iteration 1, state-dict: state_dict['master'][0]"
    ),
    Fault(HoldsAnObject, "weights-only-load", "before-training-sgd", "iteration 0, state-dict: UnpicklingError: "),
    Fault(HoldsAModule, "weights-only-load", "plain-sgd", "iteration 2, state-dict: UnpicklingError: "),
    Fault(HoldsAFunction, "weights-only-load", "plain-sgd", "", verdict="broken"),
    Fault(
        HoldsAStorageInState, "weights-only-load", "groups-and-schedule-adamw", "iteration 2, state-dict: state_dict["
    ),
    Fault(NoStateYet, "resume-at-zero", "at-first-memory-adamw", "StopIteration: ", verdict="broken"),
    Fault(LoadsFullStateOnly, "resume-at-zero", "some-without-state-file-sgd", "iteration 2, parameter "),
    Fault(RaisesHalfLoaded, "mismatched-checkpoint", "missing-state-adamw", "ValueError: ", verdict="broken"),
    Fault(TakesAnyCheckpoint, "mismatched-checkpoint", "missing-parameter-sgd", "the reference raises ValueError: "),
    Fault(SnapshotIsLive, "snapshot-independent", "memory-sgd", "iteration 2, bystander a snapshot"),
    Fault(SnapshotIsItself, "snapshot-independent", "memory-adamw", "iteration 2, bystander a snapshot"),
    Fault(StateInARegistry, "resume-fresh-process", "file-sgd", "RuntimeError: in the process that", verdict="broken"),
    Fault(Mine, "dcp", "resumed-sgd", "iteration 2, parameter ", right=AtStep),
]
