"""The numbers are those of the plain optimizer, in every bit, at every iteration."""

from __future__ import annotations

import inspect

import pytest
import torch
from tests.optimizer.toys import Matrices, Rows, Toy, Twins, build, iterate, loss_of
from torch import nn
from torch._dynamo import compiled_autograd

from inbackward import OptimizerInBackward

NEEDS_CLOSURE = {"LBFGS"}
MODELS = {"Muon": Matrices, "SparseAdam": Rows, "Adafactor": lambda: Toy(empty=1)}  # Adafactor divides by the size
CLASSES = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}
FLAGS = {
    "maximize": True,
    "foreach": True,
    "fused": True,
    "amsgrad": True,
    "centered": True,
    "momentum": 0.9,
    "weight_decay": 0.1,
    "decoupled_weight_decay": True,
    "initial_accumulator_value": 0.3,
    "lr_decay": 0.1,
}


def cases() -> list[object]:
    found = []
    for name, cls in CLASSES.items():
        if name not in NEEDS_CLOSURE:
            flags = [flag for flag in FLAGS if flag in inspect.signature(cls).parameters]
            found += [
                pytest.param(cls, {flag: FLAGS[flag]} if flag else {}, id=f"{name}-{flag}") for flag in ["", *flags]
            ]
    return found


@pytest.mark.parametrize(("cls", "flags"), cases())
def test_every_optimizer_and_flag(cls: type[torch.optim.Optimizer], flags: dict[str, object]) -> None:
    Twins(cls, model=MODELS.get(cls.__name__, Toy), **flags).iterate(4)


def test_the_classes_are_found() -> None:
    assert {"SGD", "Adam", "AdamW", "Adagrad", "SparseAdam", "LBFGS"} < set(CLASSES)
    assert len(cases()) > 40


@pytest.mark.parametrize(
    "kwargs", [{"lr": 0.1, "nesterov": True, "momentum": 0.9}, {"lr": 0.1, "dampening": 0.5, "momentum": 0.9}]
)
def test_sgd_with_flags_that_go_together(kwargs: dict[str, object]) -> None:
    Twins(torch.optim.SGD, **kwargs).iterate()


def test_capturable_raises_on_the_cpu_as_the_plain_optimizer_does() -> None:
    twins = Twins(torch.optim.AdamW, capturable=True)

    def message(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        with pytest.raises(AssertionError, match="capturable") as caught:
            iterate(model, optimizer, 0)
        return str(caught.value)

    plain, ours = twins.each(message)
    assert plain == ours


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    Twins(model=lambda: Toy().to(dtype)).iterate()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize(
    ("cls", "kwargs"), [(torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adagrad, {})]
)
def test_sparse_gradients(cls: type[torch.optim.Optimizer], kwargs: dict[str, object]) -> None:
    Twins(cls, model=lambda: Toy(sparse=True), lr=0.1, **kwargs).iterate()


def test_a_sparse_gradient_that_the_optimizer_refuses() -> None:
    twins = Twins(torch.optim.Adam, model=Rows)
    before = twins.model.embedding.weight.clone()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        loss_of(twins.model, 0).backward()
    assert torch.equal(twins.model.embedding.weight, before)


def test_a_tied_weight_has_one_update_an_iteration() -> None:
    twins = Twins()
    twins.iterate(3)
    assert twins.model.head.weight is twins.model.embedding.weight
    assert twins.optimizer.state[twins.model.embedding.weight]["step"] == 3


def test_state_made_at_construction_survives() -> None:
    optimizer = OptimizerInBackward(build().parameters(), torch.optim.Adagrad, initial_accumulator_value=0.5)
    assert all((optimizer.state[p]["sum"] == 0.5).all() for p in optimizer.param_groups[0]["params"])


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.Adafactor])
def test_backward_inside_autocast(cls: type[torch.optim.Optimizer], inside: bool) -> None:
    twins = Twins(cls, model=MODELS.get(cls.__name__, Toy))

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, 0)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        optimizer.step()

    for _ in range(3):
        twins.each(train)
        twins.plain.zero_grad()
        twins.check()


def test_backward_without_grad_mode_and_with_a_kept_graph() -> None:
    twins = Twins(torch.optim.SGD, lr=0.1)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = loss_of(model, 0)
        with torch.no_grad():
            loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

    twins.each(train)
    twins.check()
    twins.iterate(2)


def test_create_graph() -> None:
    twins = Twins()

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        weight = model.block.weight
        (grad,) = torch.autograd.grad(loss_of(model, 0), weight, create_graph=True)
        (loss_of(model, 1) + grad.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    twins.each(train)
    twins.check()


@pytest.mark.filterwarnings("ignore")  # of torch's own, about its own tensors
def test_compiled_autograd_does_not_trace_the_update() -> None:
    twins = Twins(model=Matrices)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with compiled_autograd._enable(torch.compile(backend="eager")):
            loss_of(model, 1).backward()
        optimizer.step()
        optimizer.zero_grad()

    twins.each(train)
    twins.check()
    assert twins.optimizer.state[twins.model.block.weight]["step"] == 1


def test_hooks_that_the_user_put_before_see_and_change_the_gradient() -> None:
    twins = Twins()
    seen = []

    def hook(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.block.weight.register_hook(lambda grad: grad * 3)

    twins.each(hook)
    twins.iterate(2)
    other = build()
    other.scale.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    optimizer = OptimizerInBackward(other.parameters(), torch.optim.SGD)
    loss_of(other, 0).backward()
    assert len(seen) == 1
    assert optimizer.param_groups


def test_a_cast_after_construction() -> None:
    twins = Twins(torch.optim.SGD, lr=0.1)
    twins.iterate(1)
    twins.each(lambda model, optimizer: model.double())
    twins.iterate(2)
    assert twins.model.scale.dtype is torch.float64


@pytest.mark.parametrize("lr", [0.1 * (1 + 1e-6), 0.1 * (1 - 1e-6)])
def test_control_a_millionth_of_the_learning_rate_is_seen(lr: float) -> None:
    twins = Twins(torch.optim.SGD, lr=0.1)
    twins.optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(AssertionError, match="model differs"):
        twins.iterate(4)


def test_control_the_state_is_compared_too() -> None:
    twins = Twins()
    twins.iterate(2)
    twins.optimizer.state[twins.model.scale]["exp_avg_sq"].mul_(1 + 1e-6)
    with pytest.raises(AssertionError, match="state differs"):
        twins.check()


def test_control_a_parameter_left_out_is_seen() -> None:
    twins = Twins()
    twins.optimizer.close()
    twins.optimizer = OptimizerInBackward(list(twins.model.parameters())[:-1], torch.optim.AdamW)
    with pytest.raises(AssertionError):
        twins.iterate(1)
