"""A right optimizer in backward of the simplest kind: a class over one optimizer, narrowed to a parameter at a time.

It is written apart from the package's own class, so that a flaw of that one is not taken for the truth. The faults of
``tests/faults`` derive from it: each of its methods is something that can be got wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Mine(Optimizer):
    def __init__(self, params: Any, optimizer_cls: Callable[..., Optimizer], **kwargs: Any) -> None:
        self.inner = optimizer_cls(params, **kwargs)
        self.hooks = [self.watch(p) for group in self.inner.param_groups for p in group["params"] if p.requires_grad]

    def watch(self, p: Tensor) -> Any:
        return p.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, p: Tensor) -> None:
        self.update(p)
        self.free(p)

    def update(self, p: Tensor) -> None:
        """Step ``p`` alone, with the hyperparameters that its group has now."""
        groups = self.inner.param_groups
        self.inner.param_groups = [self.narrowed(g, p) for g in groups if any(q is p for q in g["params"])]
        try:
            self.inner.step()
        finally:
            self.inner.param_groups = groups

    def narrowed(self, group: dict[str, Any], p: Tensor) -> dict[str, Any]:
        return {**group, "params": [p]}

    def free(self, p: Tensor) -> None:
        p.grad = None

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        if closure is not None:
            raise RuntimeError("step() takes no closure: the update is done inside backward()")

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.inner.defaults
