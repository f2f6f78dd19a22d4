"""A LOMO-like object (arXiv 2306.09782): stochastic gradient descent without state, its own ``fused_backward``.

It is no ``Optimizer``, holds no groups and saves nothing. To clip by the global norm it runs a first backward that only
adds up the norm. The integration is contract §2's, to the line.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from inbackward import Implementation
from inbackward.training import Moment


class Lomo:
    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.on_gradient)
        self.lr = 0.0
        self.scale: Tensor | None = None
        self.squares: list[Tensor] | None = None

    def on_gradient(self, p: Tensor) -> None:
        if self.squares is not None:
            self.squares.append(torch.linalg.vector_norm(p.grad))
        else:
            self.update(p)
        p.grad = None

    def update(self, p: Tensor) -> None:
        gradient = p.grad if self.scale is None else p.grad * self.scale
        p.detach().add_(gradient, alpha=-self.lr)

    def grad_norm(self, loss: Tensor, max_norm: float = 1.0) -> Tensor:
        """The norm over all gradients, by a backward of its own; the next ``fused_backward`` clips to ``max_norm``."""
        self.squares = []
        loss.backward(retain_graph=True)
        norm = torch.linalg.vector_norm(torch.stack(self.squares))
        self.squares = None
        self.scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return norm

    def fused_backward(self, loss: Tensor, lr: float) -> None:
        self.lr = float(lr)
        loss.backward()
        self.scale = None


def backward(o: Lomo, loss: Tensor, moment: Moment) -> None:
    if moment.max_norm is not None:
        o.grad_norm(loss)
    o.fused_backward(loss, moment.groups[0]["lr"])


implementation = Implementation(
    build=lambda model, groups, cls, kw: Lomo(model, **kw),
    backward=backward,
    optimizers=[torch.optim.SGD],
    scheduler=lambda o, make: None,
    state=lambda o, model: {},
    unsupported={"param-groups": "one lr for all"},
)
