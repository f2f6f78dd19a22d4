"""What is refused at construction, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.optimizer.toys import build
from torch import nn

from inbackward import OptimizerInBackward


class NeedsTheLoss(torch.optim.SGD):
    def step(self, loss: torch.Tensor) -> None:  # type: ignore[override]
        raise NotImplementedError


def nested(params: Any) -> Any:
    return OptimizerInBackward(params, torch.optim.SGD)


CASES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "not callable": (
        "AdamW",
        {},
        TypeError,
        "^optimizer_cls must be an optimizer class such as torch.optim.AdamW, got 'AdamW'$",
    ),
    "builds something else": (
        list,
        {},
        TypeError,
        "^optimizer_cls must build a plain torch.optim.Optimizer, but list built a list$",
    ),
    "nested": (nested, {}, TypeError, r"^optimizer_cls must build a plain .*, but nested built a OptimizerInBackward$"),
    "closure": (
        torch.optim.LBFGS,
        {},
        ValueError,
        r"^LBFGS cannot step .*, as its step needs the argument 'closure': use it as a plain optimizer$",
    ),
    "another argument": (
        NeedsTheLoss,
        {},
        ValueError,
        "^NeedsTheLoss cannot .* needs the argument 'loss': use it as a ",
    ),
    "differentiable": (
        torch.optim.Adam,
        {"differentiable": True},
        ValueError,
        r"^Adam\(differentiable=True\) cannot step inside backward\(\), as .*: leave differentiable=False$",
    ),
    "the class's own": (torch.optim.SGD, {"lr": -1.0}, ValueError, "^Invalid learning rate: -1.0$"),
    "unknown keyword": (torch.optim.SGD, {"leraning_rate": 1.0}, TypeError, "'leraning_rate'"),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals(case: str) -> None:
    cls, kwargs, error, message = CASES[case]
    model = build()
    with pytest.raises(error, match=message) as caught:
        OptimizerInBackward(model.parameters(), cls, **kwargs)
    assert "\n" not in str(caught.value)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_group_that_is_differentiable() -> None:
    group = {"params": build().parameters(), "differentiable": True}
    with pytest.raises(ValueError, match=r"SGD\(differentiable=True\) cannot step inside backward"):
        OptimizerInBackward([group], torch.optim.SGD)


def test_a_module_instead_of_parameters() -> None:
    message = r"^params must be parameters or groups, got a Linear: pass its parameters\(\)$"
    with pytest.raises(TypeError, match=message):
        OptimizerInBackward(nn.Linear(2, 2), torch.optim.SGD)  # type: ignore[arg-type]


def test_no_parameters() -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        OptimizerInBackward([], torch.optim.SGD)


@pytest.mark.parametrize("version", ["2.5.1+cpu", "1.13.0", "2.0.0a0+git12"])
def test_an_old_torch(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(
        RuntimeError, match=r"^inbackward needs torch 2\.6 or newer, found .*: pip install 'torch>=2\.6'$"
    ):
        OptimizerInBackward(build().parameters(), torch.optim.SGD)


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0.dev20260101+cpu", "3.0.0a0+git12"])
def test_a_new_torch(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert OptimizerInBackward(build().parameters(), torch.optim.SGD).param_groups


def test_a_callable_that_builds_an_optimizer() -> None:
    optimizer = OptimizerInBackward(build().parameters(), lambda params, lr: torch.optim.SGD(params, lr=lr), lr=0.25)
    assert optimizer.param_groups[0]["lr"] == 0.25
