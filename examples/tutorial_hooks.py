"""The hooks of PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass".

One optimizer a parameter, and a hook on each parameter that steps its optimizer and frees the gradient: that is all
there is to it. ``implementation`` lets the suite check it, from the folder that holds ``examples``:

    inbackward verify examples.tutorial_hooks:implementation
    pytest --pyargs inbackward.suite -k optimizer_in_backward \\
        --optimizer-in-backward examples.tutorial_hooks:implementation

The tutorial has no schedule and no checkpoint; both are what anybody would add, one a parameter. What cannot be done
that way is declared, with the reason (``examples/one_optimizer_a_parameter.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from examples.one_optimizer_a_parameter import UNSUPPORTED, load_state_dict, schedulers, state_dict
from torch import Tensor, nn
from torch.optim import Optimizer

from inbackward import Implementation


def step_in_backward(optimizers: Mapping[Tensor, Optimizer]) -> None:
    """Step each trainable parameter with its own optimizer as soon as its gradient is accumulated."""

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(step)


def build(
    model: nn.Module, groups: list[dict[str, Any]], optimizer_cls: Any, kwargs: dict[str, Any]
) -> list[Optimizer]:
    optimizers = {p: optimizer_cls([{**group, "params": [p]}], **kwargs) for group in groups for p in group["params"]}
    step_in_backward(optimizers)
    return list(optimizers.values())


implementation = Implementation(
    name="PyTorch's tutorial hooks",
    build=build,
    scheduler=schedulers,
    state_dict=state_dict,
    load_state_dict=load_state_dict,
    unsupported={**UNSUPPORTED, "ddp": "a hook sees the gradients of its own rank, before DDP has averaged them"},
)
