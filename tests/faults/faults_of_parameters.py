"""Faults in which parameters are updated: tied, frozen and unused ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from tests.faults.fault import Fault
from tests.shapes.mine import AtStep, Mine
from torch import Tensor, nn

from inbackward import Implementation


class KnowsTheModel(Mine):
    """How often the model names each parameter, as code that walks ``named_parameters`` of layers finds it."""

    def __init__(self, model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(groups, optimizer_cls, **kwargs)
        self.uses = Counter(p for _, p in model.named_parameters(remove_duplicate=False))


class OneStepAUse(KnowsTheModel):
    def update(self, p: Tensor) -> None:
        for _ in range(self.uses[p]):
            super().update(p)


class TiedBelongsToTheOther(KnowsTheModel):
    """Each of the two layers leaves a shared weight to the other."""

    def update(self, p: Tensor) -> None:
        if self.uses[p] == 1:
            super().update(p)


class TiedGradientAveraged(KnowsTheModel):
    def update(self, p: Tensor) -> None:
        p.grad.div_(self.uses[p])
        super().update(p)


class TiedInTheLastGroup(KnowsTheModel):
    """A weight with two names gets the hyperparameters of the second one's group."""

    def narrowed(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        other = self.param_groups[-1] if self.uses[p] > 1 else group
        return {**super().narrowed(group, p), "lr": other["lr"]}


class HooksOnFrozen(Mine):
    """torch refuses a hook on a parameter that requires no gradient."""

    def watch(self, parameters: list[Tensor]) -> None:
        for p in parameters:
            p.register_post_accumulate_grad_hook(lambda p: None)
        super().watch(parameters)


class Unfreezes(Mine):
    """Unfreezes to get its hook in, and forgets to freeze again."""

    def watch(self, parameters: list[Tensor]) -> None:
        super().watch(parameters)
        for p in parameters:
            p.requires_grad_(True)


class HooksOnTrainable(Mine):
    """What is frozen at construction gets no hook, then or later."""

    def watch(self, parameters: list[Tensor]) -> None:
        super().watch([p for p in parameters if p.requires_grad])


class NewGroupsUnwatched(Mine):
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)


class NewGroupsWithDefaults(Mine):
    """Takes the parameters of a new group, and none of its options."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group({"params": param_group["params"]})


class DuplicatesDropped(Mine):
    """What the plain optimizer steps twice, with a warning, or refuses, is stepped once in silence."""

    def __init__(self, params: Any, optimizer_cls: Any, **kwargs: Any) -> None:
        params, seen = list(params), set()
        for i, entry in enumerate(params):
            if isinstance(entry, dict):
                params[i] = {**entry, "params": [p for p in dict.fromkeys(entry["params"]) if p not in seen]}
                seen.update(entry["params"])
        super().__init__(params if seen else dict.fromkeys(params), optimizer_cls, **kwargs)


class HooksOnNodes(Mine):
    """On the node that accumulates the gradient, as ``_apply_optimizer_in_backward`` has it: a cast makes a new one."""

    def watch(self, parameters: list[Tensor]) -> None:
        self.nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in parameters if p.requires_grad]
        for node in self.nodes:
            node.register_hook(lambda *_, node=node: self.on_gradient(node.variable))


class MasterCopies(Mine):
    """Keeps copies of the parameters from the start, updates those, and writes them back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.masters = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}

    def update(self, p: Tensor) -> None:
        p.detach().copy_(self.masters[p])
        super().update(p)
        self.masters[p] = p.detach().clone()


class RowsOfTheLastToken(Mine):
    """A sparse gradient lists a row as often as its token comes; here one of them counts."""

    def update(self, p: Tensor) -> None:
        if p.grad.is_sparse:
            rows = {int(row): i for i, row in enumerate(p.grad._indices()[0])}
            keep = torch.tensor(sorted(rows.values()))
            p.grad = torch.sparse_coo_tensor(p.grad._indices()[:, keep], p.grad._values()[keep], p.shape)
        super().update(p)


class EmptySkipped(Mine):
    def update(self, p: Tensor) -> None:
        if p.numel():
            super().update(p)


class ScalarsSkipped(Mine):
    """Steps ``p[i]`` for every row ``i``, and finds none in a scalar."""

    def update(self, p: Tensor) -> None:
        if p.dim():
            super().update(p)


class AfterEachStep(Mine):
    """Does something to the parameters that no gradient reached in this iteration."""

    touches_frozen = False

    def update(self, p: Tensor) -> None:
        super().update(p)
        self.__dict__.setdefault("stepped", set()).add(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        stepped = self.__dict__.pop("stepped", set())
        for group in self.param_groups:
            for p in group["params"]:
                if p not in stepped and p.requires_grad != self.touches_frozen:
                    self.touch(p, group)

    def touch(self, p: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class UnusedDecayed(AfterEachStep):
    def touch(self, p: Tensor, group: dict[str, Any]) -> None:
        p.detach().mul_(1 - group["lr"] * group["weight_decay"])


class FrozenDecayed(UnusedDecayed):
    touches_frozen = True


class FrozenHasState(AfterEachStep):
    touches_frozen = True

    def touch(self, p: Tensor, group: dict[str, Any]) -> None:
        self.state[p] = {"step": torch.tensor(0.0)}


class UnusedCounted(AfterEachStep):
    """One counter for all parameters, as a bias correction of its own would use."""

    def touch(self, p: Tensor, group: dict[str, Any]) -> None:
        if self.state.get(p):
            self.state[p]["step"] += 1


class UnusedSteppedOnZeros(AfterEachStep):
    """``zero_grad(set_to_none=False)``: momentum and decay go on."""

    def touch(self, p: Tensor, group: dict[str, Any]) -> None:
        p.grad = torch.zeros_like(p)
        self.update(p)
        p.grad = None


class KeepsZeros(Mine):
    """Makes up in ``step()``, one by one, the zeros that ``zero_grad(set_to_none=False)`` would have left."""

    zeros: frozenset[Tensor] = frozenset()
    met: frozenset[Tensor] = frozenset()

    def update(self, p: Tensor) -> None:
        self.met |= {p}
        super().update(p)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for p in self.zeros - self.met:
            p.grad = torch.zeros_like(p)
            super().update(p)
            self.free(p)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()
        self.zeros = frozenset() if set_to_none else self.zeroed()
        self.met = frozenset()

    def zeroed(self) -> frozenset[Tensor]:
        return self.zeros | self.met


class ZerosForEverything(KeepsZeros):
    """Also for what has never had a gradient, which a plain optimizer leaves alone."""

    def zeroed(self) -> frozenset[Tensor]:
        return frozenset(p for group in self.param_groups for p in group["params"])


class ZerosOnce(KeepsZeros):
    """Zeros in the place of the last gradients only: what was unused twice is left alone the second time."""

    def zeroed(self) -> frozenset[Tensor]:
        return self.met


class UnusedLosesItsState(AfterEachStep):
    def touch(self, p: Tensor, group: dict[str, Any]) -> None:
        self.state.pop(p, None)


class FrozenLosesItsState(UnusedLosesItsState):
    touches_frozen = True


class WaitsForAll(Mine):
    """Updates when the last gradient is there: never, where one parameter has none."""

    def on_gradient(self, p: Tensor) -> None:
        all_of_them = [q for group in self.param_groups for q in group["params"] if q.requires_grad]
        if all(q.grad is not None for q in all_of_them):
            for q in all_of_them:
                super().on_gradient(q)


def with_model(cls: Any) -> Implementation:
    return Implementation(build=cls, name=cls.__name__)


FAULTS = [
    Fault(with_model(OneStepAUse), "tied-weights", "embedding-and-head-sgd", "iteration 0, parameter embedding.weight"),
    Fault(with_model(OneStepAUse), "tied-weights", "convolution-adamw", "iteration 0, parameter embedding.weight"),
    Fault(
        with_model(TiedBelongsToTheOther),
        "tied-weights",
        "embedding-and-head-adamw",
        "iteration 0, parameter embedding",
    ),
    Fault(with_model(TiedGradientAveraged), "tied-weights", "step-schedule-adamw", "iteration 0, parameter embedding"),
    Fault(
        with_model(TiedInTheLastGroup), "tied-weights", "in-a-group-of-its-own-sgd", "iteration 0, parameter embedding"
    ),
    Fault(HooksOnFrozen, "frozen", "last-adamw", "RuntimeError: cannot register a hook", verdict="broken"),
    Fault(Unfreezes, "frozen", "vectors-sgd", "iteration 0, parameter ", first={"parameter": 0, "state-names": 0}),
    Fault(FrozenDecayed, "frozen", "first-adamw", "iteration 0, parameter embedding.weight", first={"loss": 1}),
    Fault(FrozenHasState, "frozen", "a-whole-group-adamw", "iteration 0, state-names "),
    Fault(UnusedDecayed, "unused", "once-adamw", "iteration 2, parameter branch.", first={"loss": 3}),
    Fault(UnusedDecayed, "unused", "at-first-adamw", "iteration 0, parameter branch."),
    Fault(UnusedCounted, "unused", "once-adamw", "iteration 2, state branch.", first={"parameter": 3}),
    Fault(
        UnusedSteppedOnZeros, "unused", "every-other-sgd", "iteration 0, state-names branch.", first={"parameter": 2}
    ),
    Fault(UnusedLosesItsState, "unused", "convolution-sgd", "iteration 1, state-names branch.", first={"parameter": 2}),
    Fault(WaitsForAll, "unused", "always-sgd", "iteration 0, parameter "),
    Fault(ZerosForEverything, "unused", "zeros-adamw", "iteration 1, parameter branch.", right=AtStep),
    Fault(ZerosOnce, "unused", "zeros-sgd", "iteration 4, parameter branch.", right=AtStep),
    Fault(FrozenDecayed, "freeze-later", "first-adamw", "iteration 2, parameter embedding.weight"),
    Fault(FrozenLosesItsState, "freeze-later", "every-other-and-back-sgd", "iteration "),
    Fault(HooksOnTrainable, "unfreeze-later", "vectors-sgd", "iteration 2, parameter ", first={"loss": 3}),
    Fault(NewGroupsUnwatched, "add-param-group", "unfrozen-at-2-sgd", "iteration 2, parameter "),
    Fault(NewGroupsWithDefaults, "add-param-group", "unfrozen-at-0-adamw", "iteration 0, parameter "),
    Fault(DuplicatesDropped, "duplicate-params", "in-one-group-sgd", "iteration 0, parameter "),
    Fault(DuplicatesDropped, "duplicate-params", "in-two-groups-adamw", "the reference raises ValueError: "),
    Fault(HooksOnNodes, "cast-or-move", "float64-at-0-adamw", "iteration 0, parameter "),
    Fault(HooksOnNodes, "cast-or-move", "float64-at-2-sgd", "iteration 2, parameter "),
    Fault(MasterCopies, "model-only", "model-after-sgd", "iteration 2, parameter "),
    Fault(RowsOfTheLastToken, "sparse-gradient", "embedding-adagrad", "iteration 0, parameter embedding.weight"),
    Fault(EmptySkipped, "zero-size", "plain-adamw", "iteration 0, state-names odd.empty"),
    Fault(ScalarsSkipped, "zero-size", "in-a-group-sgd", "iteration 0, parameter odd.scalar"),
]
