"""The kinds of contract §2, each wrong in the ways that its own kind invites: which row says so, and where first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.faults.catching import Where, assert_caught
from tests.shapes import hooked, lomo, theirs
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward import Implementation

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


CASES: list[tuple[Implementation, str, Where]] = [
    (
        named("hooks over a loop variable", hooked_by(hooks_over_a_loop_variable)),
        "plain",
        Where("one-layer-adamw", "iteration 0, parameter "),
    ),
    (
        named("hooks keep gradients", hooked_by(hooks_that_keep_gradients)),
        "gradient-freed",
        Where("llama-adamw", "iteration 0, gradient "),
    ),
    (
        named("groups forgotten", replace(hooked.implementation, build=groups_forgotten)),
        "param-groups",
        Where("own-lr-sgd", "iteration 0, parameter "),
    ),
    (
        named("nobody follows", replace(hooked.implementation, scheduler=nobody_follows)),
        "lr-schedule",
        Where("step-adamw", "iteration 1, parameter "),
    ),
    (lomo_of(LrOfTheFirstCall), "lr-schedule", Where("step-sgd", "iteration 1, parameter ", first={"loss": 2})),
    (lomo_of(HooksOnAll), "frozen", Where("first-sgd", "RuntimeError: cannot register a hook", verdict="broken")),
    (lomo_of(BatchOne), "plain", Where("one-layer-sgd", "iteration 0, parameter ")),
    (flag_of(OneCounter), "plain", Where("one-layer-onecounter", "iteration 0, parameter ")),
    (
        flag_of(FlagOfTheCheckpoint),
        "resume-from-plain",
        Where("at-1-file-flagofthecheckpoint", "iteration 1, parameter "),
    ),
    (
        named("another optimizer prepared", replace(theirs.implementation, build=prepared_too_early)),
        "resume",
        Where("at-1-memory-adamw", "iteration 1, parameter "),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "id", "where"),
    [pytest.param(*case, id=f"{case[1]}-{case[0].name}") for case in CASES],
)
def test_wrong_shape_is_caught(target: Implementation, id: str, where: Where) -> None:
    assert_caught(target, id, where)
