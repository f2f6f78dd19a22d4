"""Faults of what is saved."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from torch import nn

from inbackward.faults.fault import fault
from inbackward.faults.right import Right

# Between here and the plain optimizer


@fault("resume-from-plain", name="from-plain-layout-of-its-own", reports=(3,))
@fault("resume-into-plain", reports=(3,))
class LayoutOfItsOwn(Right):
    """Has a state dict of another layout than the plain optimizer."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["inner"])


@fault("resume-into-plain")
class StateByName(Right):
    """Saves state under keys that a plain optimizer takes without a word and never looks up again."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "state": {f"parameter {key}": value for key, value in saved["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = {int(str(key).removeprefix("parameter ")): value for key, value in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})


@fault("resume-from-plain", reports=(3,), what_if="state-lost-at-load")
class ForeignStateDropped(Right):
    """Knows its own checkpoints by a mark, and of any other takes the groups alone."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mark": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = state_dict["state"] if "mark" in state_dict else {}
        super().load_state_dict({**state_dict, "state": state})


@fault("resume-from-plain", subtle=True)
class StateInSortedOrder(Right):
    """Numbers the parameters from the smallest, so that state meets another parameter of the same shape."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        order = sorted(range(len(parameters)), key=lambda i: (parameters[i].shape, -i))
        same = sorted(range(len(parameters)), key=lambda i: (parameters[i].shape, i))
        state = {b: state_dict["state"][a] for a, b in zip(order, same, strict=True) if a in state_dict["state"]}
        super().load_state_dict({**state_dict, "state": state})


@fault("resume-at-zero")
class NoStateYet(Right):
    """Says in a checkpoint how often it has stepped, and there is no count before the first."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "steps": len(next(iter(saved["state"].values())))}


@fault("resume-at-zero", subtle=True)
class LoadsFullStateOnly(Right):
    """Takes a checkpoint with fewer entries than parameters for a broken one, and leaves it out."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        full = len(state_dict["state"]) == sum(len(group["params"]) for group in state_dict["param_groups"])
        super().load_state_dict({**state_dict, "state": state_dict["state"] if full else {}})


@fault("mismatched-checkpoint", subtle=True)
class RaisesHalfLoaded(Right):
    """Finds out that the checkpoint does not fit when half of it is in."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if any(p not in self.state for group in self.param_groups for p in group["params"]):
            raise ValueError("the checkpoint lacks the state of a parameter")


@fault("mismatched-checkpoint")
class TakesAnyCheckpoint(Right):
    """Fits the groups to what is there, where the plain optimizer refuses."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = self.inner.state_dict()["param_groups"]
        super().load_state_dict({"state": state_dict["state"], "param_groups": groups})


class LiveDict(dict[str, Any]):
    """Saves memory: a deep copy holds the same tensors."""

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return dict(self)


@fault("snapshot-independent", reports=(31,))
class SnapshotIsLive(Right):
    """Saves memory: a deep copy of its state dict holds the same tensors."""

    def state_dict(self) -> dict[str, Any]:
        return LiveDict(super().state_dict())


class NeverCopied(dict[str, Any]):
    """Is its own deep copy: its tensors are those of the optimizer."""

    def __deepcopy__(self, memo: Any) -> NeverCopied:
        return self


@fault("snapshot-independent")
class SnapshotIsItself(Right):
    """Gives out a state dict that is its own deep copy."""

    def state_dict(self) -> dict[str, Any]:
        return NeverCopied(super().state_dict())


SAVED: dict[int, dict[str, Any]] = {}


@fault("resume-fresh-process")
class StateInARegistry(Right):
    """Gives out a ticket for a state dict; what it stands for is in this process."""

    def state_dict(self) -> dict[str, Any]:
        saved = copy.deepcopy(super().state_dict())
        SAVED[id(self)] = saved["state"]
        return {**saved, "state": {}, "ticket": id(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "state": SAVED.pop(state_dict["ticket"])})


# What a state dict may hold


@fault("weights-only-load", reports=(29,))
class HoldsParameters(Right):
    """Writes the parameters into its state dict."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "parameters": [p for group in self.param_groups for p in group["params"]]}


@fault("weights-only-load", subtle=True, reports=(29,))
class HoldsParametersAsTensors(Right):
    """Writes the parameters' own memory, detached, into its state dict."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {**saved, "master": {i: p.detach() for i, p in enumerate(self.param_groups[0]["params"])}}


@fault("weights-only-load", reports=(28,))
class HoldsAnObject(Right):
    """Writes an object of its own into its state dict."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "config": SimpleNamespace(version=1)}


@fault("weights-only-load")
class HoldsAModule(Right):
    """Writes a module into its state dict."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "projection": nn.Identity()}


@fault("weights-only-load")
class HoldsAFunction(Right):
    """Writes a function into its state dict, which cannot be pickled."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedule": lambda step: 1.0}


@fault("weights-only-load", subtle=True)
class HoldsAStorageInState(Right):
    """Has a view of a parameter among its state, only once there is any."""

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        if saved["state"]:
            saved["state"][0] = {**saved["state"][0], "anchor": self.param_groups[0]["params"][0].detach()[:1]}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = {i: {k: v for k, v in e.items() if k != "anchor"} for i, e in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})
