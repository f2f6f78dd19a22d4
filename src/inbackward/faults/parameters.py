"""Faults in which parameters are updated: tied, frozen, added, doubled, cast, sparse and odd ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from inbackward import Implementation
from inbackward.faults.fault import fault
from inbackward.faults.right import Carried, Right


class KnowsTheModel(Right):
    """How often the model names each parameter, as code that walks ``named_parameters`` of layers finds it."""

    optimizer_in_backward = Carried(lambda cls: Implementation(build=cls, name=cls.__name__))

    def __init__(self, model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(groups, optimizer_cls, **kwargs)
        self.uses: Counter[Tensor] = Counter(p for _, p in model.named_parameters(remove_duplicate=False))


@fault("tied-weights", reports=(37,))
class OneStepAUse(KnowsTheModel):
    """Steps a weight once for each layer that it belongs to."""

    def update(self, p: Any) -> None:
        for _ in range(self.uses[p]):
            super().update(p)


@fault("tied-weights", reports=(37,))
class TiedBelongsToTheOther(KnowsTheModel):
    """Each of the two layers leaves a shared weight to the other."""

    def update(self, p: Any) -> None:
        if self.uses[p] == 1:
            super().update(p)


@fault("tied-weights", subtle=True)
class TiedGradientAveraged(KnowsTheModel):
    """Divides the gradient of a shared weight by the number of its uses."""

    def update(self, p: Any) -> None:
        p.grad.div_(self.uses[p])
        super().update(p)


@fault("tied-weights", subtle=True)
class TiedInTheLastGroup(KnowsTheModel):
    """A weight with two names gets the lr of the second one's group."""

    def narrowed(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        other = self.param_groups[-1] if self.uses[p] > 1 else group
        return {**super().narrowed(group, p), "lr": other["lr"]}


@fault("frozen", reports=(25,))
class HooksOnFrozen(Right):
    """Registers a hook on every parameter, and torch refuses one that requires no gradient."""

    def watch(self, parameters: list[Any]) -> None:
        for p in parameters:
            p.register_post_accumulate_grad_hook(lambda p: None)
        super().watch(parameters)


@fault("frozen", reports=(11,))
class CountsAllParameters(KnowsTheModel):
    """Asserts that it steps as many parameters as the model has, frozen ones included."""

    def __init__(self, model: nn.Module, groups: Any, optimizer_cls: Any, kwargs: dict[str, Any]) -> None:
        super().__init__(model, groups, optimizer_cls, kwargs)
        assert sum(p.requires_grad for p in self.uses) == len(self.uses), "expected one optimizer a parameter"


@fault("frozen", subtle=True)
class Unfreezes(Right):
    """Unfreezes to get its hook in, and forgets to freeze again."""

    def watch(self, parameters: list[Tensor]) -> None:
        super().watch(parameters)
        for p in parameters:
            p.requires_grad_(True)


@fault("unfreeze-later", reports=(34,))
class HooksOnTrainable(Right):
    """Gives no hook to what is frozen at construction, then or later."""

    def watch(self, parameters: list[Tensor]) -> None:
        super().watch([p for p in parameters if p.requires_grad])


@fault("unfreeze-later", subtle=True)
class CountsFromTheStart(Right):
    """Counts iterations, not a parameter's own updates: one that trains later begins with the count of the others."""

    def update(self, p: Any) -> None:
        first = not self.state.get(p)
        super().update(p)
        if first and "step" in self.state[p]:
            self.state[p]["step"].fill_(self.__dict__.get("iterations", 0) + 1)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.iterations = self.__dict__.get("iterations", 0) + 1


@fault("add-param-group", reports=(34,), what_if="parameter-never-stepped")
class NewGroupsUnwatched(Right):
    """Takes a new group in, and hangs no hook on its parameters."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)


@fault("add-param-group", subtle=True)
class NewGroupsWithDefaults(Right):
    """Takes the parameters of a new group, and none of its options."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group({"params": param_group["params"]})


@fault("add-param-group", subtle=True)
class NewGroupsThaw(Right):
    """What is put into a group is to be trained: a frozen parameter of a new group is not frozen any more."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for p in self.inner.param_groups[-1]["params"]:
            p.requires_grad_(True)


@fault("duplicate-params")
class DuplicatesDropped(Right):
    """Steps once, in silence, what the plain optimizer steps twice, with a warning, or refuses."""

    def __init__(self, params: Any, optimizer_cls: Any, **kwargs: Any) -> None:
        entries, seen = list(params), set()
        for i, entry in enumerate(entries):
            if isinstance(entry, dict):
                entries[i] = {**entry, "params": [p for p in dict.fromkeys(entry["params"]) if p not in seen]}
                seen.update(entry["params"])
        super().__init__(entries if seen else dict.fromkeys(entries), optimizer_cls, **kwargs)


@fault("duplicate-params", subtle=True, reports=(2,))
class TwoHooksForTwo(Right):
    """Hangs a hook on a parameter for each time that it is given, and both step."""

    def update(self, p: Any) -> None:
        times = sum(q is p for group in self.param_groups for q in group["params"])
        for _ in range(times):
            super().update(p)


@fault("cast-or-move", reports=(35,))
class HooksOnNodes(Right):
    """Hangs its hooks on the nodes that accumulate gradients, and a cast makes new ones."""

    def watch(self, parameters: list[Tensor]) -> None:
        self.nodes: list[Any] = [self.node(p) for p in parameters if p.requires_grad]
        for node in self.nodes:
            node.register_hook(lambda *_, node=node: self.on_gradient(node.variable))

    def node(self, p: Tensor) -> Any:
        edge: Any = p.view_as(p).grad_fn
        return edge.next_functions[0][0]


@fault("cast-or-move", subtle=True)
class VectorsAreCached(Right):
    """Updates vectors through views made at construction, which a cast leaves behind."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.views = {p: p.detach() for group in self.param_groups for p in group["params"] if p.dim() == 1}

    def update(self, p: Any) -> None:
        moved_on = p in self.views and self.views[p].data_ptr() != p.data_ptr()
        before = p.detach().clone()
        super().update(p)
        if moved_on:
            p.detach().copy_(before)


@fault("model-only")
class MasterCopies(Right):
    """Keeps copies of the parameters from the start, updates those, and writes them back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.masters = {p: p.detach().clone() for group in self.param_groups for p in group["params"] if self.keeps(p)}

    def keeps(self, p: Tensor) -> bool:
        return True

    def update(self, p: Any) -> None:
        if p in self.masters:
            p.detach().copy_(self.masters[p])
        super().update(p)
        if p in self.masters:
            self.masters[p] = p.detach().clone()


@fault("model-only", subtle=True)
class MasterCopyOfOne(MasterCopies):
    """Keeps a copy from the start of the largest matrix alone, updates that, and writes it back."""

    def keeps(self, p: Tensor) -> bool:
        return p is max((q for group in self.param_groups for q in group["params"]), key=Tensor.numel)


@fault("sparse-gradient", subtle=True)
class RowsOfTheLastToken(Right):
    """Reads one of the several entries that a sparse gradient has for a token that comes again."""

    def update(self, p: Any) -> None:
        if p.grad.is_sparse:
            rows = {int(row): i for i, row in enumerate(p.grad._indices()[0])}
            keep = torch.tensor(sorted(rows.values()))
            p.grad = torch.sparse_coo_tensor(p.grad._indices()[:, keep], p.grad._values()[keep], p.shape)
        super().update(p)


@fault("sparse-gradient")
class MadeDense(Right):
    """Makes every gradient dense, and trains where the plain optimizer raises or leaves rows alone."""

    def update(self, p: Any) -> None:
        if p.grad.is_sparse:
            p.grad = p.grad.to_dense()
        super().update(p)


@fault("zero-size", subtle=True)
class EmptySkipped(Right):
    """Steps no parameter without elements, which the plain optimizer counts."""

    def update(self, p: Any) -> None:
        if p.numel():
            super().update(p)


@fault("zero-size")
class ScalarsSkipped(Right):
    """Steps ``p[i]`` for every row ``i``, and finds none in a scalar."""

    def update(self, p: Any) -> None:
        if p.dim():
            super().update(p)
