"""The same four kinds, each wrong in the ways that its own kind invites: which requirement says so, and where first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.faults.fault import Fault, assert_caught
from tests.shapes import hooked, lomo, theirs
from tests.shapes.mine import Mine
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward import Implementation

# A class.


class OptimizersOfTheirOwn(Mine):
    """One optimizer a parameter, built once: what is done to the outer groups later reaches none of them."""

    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        super().__init__(params, optimizer_cls, **kwargs)
        self.each = {p: optimizer_cls([{**g, "params": [p]}]) for g in self.param_groups for p in g["params"]}

    def update(self, p: Tensor) -> None:
        self.each[p].step()


class TakesNoDicts(Mine):
    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        super().__init__(dict.fromkeys(params), optimizer_cls, **kwargs)


class StepsAgain(Mine):
    """``step()`` updates what the hooks have updated already."""

    def free(self, p: Tensor) -> None:
        pass

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        self.inner.step(closure)


# A dict of optimizers.


def hooks_over_a_loop_variable(model: nn.Module, optimizers: dict[Any, Optimizer]) -> None:
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _: optimizers[p].step())  # noqa: B023


def hooks_that_keep_gradients(model: nn.Module, optimizers: dict[Any, Optimizer]) -> None:
    def step(p: Tensor) -> None:
        optimizers[p].step()
        p.grad.zero_()

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(step)


def hooked_by(register: Callable[..., None]) -> Implementation:
    def build(model: nn.Module, groups: Any, cls: Any, kw: dict[str, Any]) -> hooked.Wrapper:
        d = {p: cls([{**g, "params": [p]}], **kw) for g in groups for p in g["params"]}
        register(model, d)
        return hooked.Wrapper(model, d)

    return replace(hooked.implementation, build=build)


def groups_forgotten(model: nn.Module, groups: Any, cls: Any, kw: dict[str, Any]) -> hooked.Wrapper:
    d = {p: cls([p], **kw) for g in groups for p in g["params"]}
    hooked.register_hooks(model, d)
    return hooked.Wrapper(model, d)


def nobody_follows(wrapper: hooked.Wrapper, make: Callable[[Optimizer], Any]) -> Any:
    return make(next(iter(wrapper.optimizers.values())))


# fused_backward(loss, lr).


class LrOfTheFirstCall(lomo.Lomo):
    def fused_backward(self, loss: Tensor, lr: float) -> None:
        super().fused_backward(loss, self.lr or lr)


class HooksOnAll(lomo.Lomo):
    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: None)


class BatchOne(lomo.Lomo):
    """Divides by a batch size that the loss has divided by already."""

    def update(self, p: Tensor) -> None:
        p.detach().add_(p.grad, alpha=-self.lr / 2)


def lomo_of(cls: type[lomo.Lomo]) -> Implementation:
    return replace(lomo.implementation, build=lambda model, groups, _, kw: cls(model, **kw), name=cls.__name__)


# A flag on the optimizer.


class OneCounter(theirs.AdamW):
    """Counts its updates, of which there is one a parameter now."""

    count = 0

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if self.release:
            state.update({} if state else {k: torch.zeros_like(p) for k in ("exp_avg", "exp_avg_sq")})
            state["step"] = self.count
            self.count += 1
        super().update(p, gradient, state, group)


class FlagOfTheCheckpoint(theirs.SGD):
    """The flag stands in the groups, so that loading a plain checkpoint switches the release off."""

    def step(self, closure: Callable[[], Any] | None = None, param: Tensor | None = None) -> Any:
        if param is None or self.param_groups[0]["gradient_release"]:
            return super().step(closure, param)
        return None


def prepared_too_early(model: nn.Module, groups: Any, cls: Any, kw: dict[str, Any]) -> Optimizer:
    other = cls(groups, **kw, gradient_release=True)
    theirs.prepare(model, other)
    return cls(groups, **kw, gradient_release=True)


def flag_of(*optimizers: Any) -> Implementation:
    return replace(theirs.implementation, optimizers=list(optimizers), name=optimizers[0].__name__)


def named(name: str, implementation: Implementation) -> Implementation:
    return replace(implementation, name=name)


CASES = [
    Fault(
        Implementation.drop_in(OptimizersOfTheirOwn, state=lambda o, model: o.each),
        "lr-schedule", "step-sgd", "iteration 1, parameter ", first={"loss": 2},
    ),
    Fault(TakesNoDicts, "param-groups", "own-lr-adamw", "TypeError: ", verdict="broken"),
    Fault(StepsAgain, "plain", "one-layer-sgd", "iteration 0, parameter "),
    Fault(
        named("hooks over a loop variable", hooked_by(hooks_over_a_loop_variable)),
        "plain", "one-layer-adamw", "iteration 0, parameter ",
    ),
    Fault(
        named("hooks keep gradients", hooked_by(hooks_that_keep_gradients)),
        "gradient-freed", "llama-adamw", "iteration 0, gradient ",
    ),
    Fault(
        named("groups forgotten", replace(hooked.implementation, build=groups_forgotten)),
        "param-groups", "own-lr-sgd", "iteration 0, parameter ",
    ),
    Fault(
        named("nobody follows", replace(hooked.implementation, scheduler=nobody_follows)),
        "lr-schedule", "step-adamw", "iteration 1, parameter ",
    ),
    Fault(lomo_of(LrOfTheFirstCall), "lr-schedule", "step-sgd", "iteration 1, parameter ", first={"loss": 2}),
    Fault(lomo_of(HooksOnAll), "frozen", "first-sgd", "RuntimeError: cannot register a hook", verdict="broken"),
    Fault(lomo_of(BatchOne), "plain", "one-layer-sgd", "iteration 0, parameter "),
    Fault(flag_of(OneCounter), "plain", "one-layer-onecounter", "iteration 0, parameter "),
    Fault(
        flag_of(FlagOfTheCheckpoint), "resume-from-plain", "at-1-file-flagofthecheckpoint", "iteration 1, parameter ",
    ),
    Fault(
        named("another optimizer prepared", replace(theirs.implementation, build=prepared_too_early)),
        "resume", "at-1-memory-adamw", "iteration 1, parameter ",
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", CASES, ids=lambda fault: fault.label)
def test_wrong_shape_is_caught(fault: Fault) -> None:
    assert_caught(fault)
