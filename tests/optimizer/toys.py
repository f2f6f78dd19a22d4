"""A model with odd parameters, and the same training run twice: by a plain optimizer, and inside backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from inbackward import OptimizerInBackward


class Toy(nn.Module):
    """A tied weight, a scalar, biases, a parameter with no elements, and a branch that is not always taken."""

    def __init__(self, sparse: bool = False, empty: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4, sparse=sparse)
        self.block = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.ones(empty, 4))
        self.branch = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        if not sparse:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, branch: bool) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.scale * torch.tanh(self.block(x)) + self.empty.sum()
        if branch:
            x = x + self.branch(x)
        return self.head(x)


class Matrices(nn.Module):
    """Matrices only, for Muon."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 6, bias=False)
        self.branch = nn.Linear(6, 6, bias=False)
        self.embedding = nn.Linear(6, 7, bias=False)

    def forward(self, tokens: Tensor, branch: bool) -> Tensor:
        x = torch.tanh(self.block(nn.functional.one_hot(tokens % 4, 4).float()))
        return self.embedding(self.branch(x) if branch else x)


class Rows(nn.Module):
    """A sparse embedding only, for SparseAdam."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 7, sparse=True)

    def forward(self, tokens: Tensor, branch: bool) -> Tensor:
        return self.embedding(tokens)


def build(model: Callable[[], nn.Module] = Toy) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model()


def loss_of(model: nn.Module, iteration: int) -> Tensor:
    tokens = torch.randint(0, 7, (2, 3), generator=torch.Generator().manual_seed(iteration))
    return nn.functional.cross_entropy(
        model(tokens, iteration % 3 != 1).float().flatten(0, 1), (tokens * 3).flatten() % 7
    )


def iterate(model: nn.Module, optimizer: Any, iteration: int) -> None:
    """One iteration of the usual loop."""
    loss_of(model, iteration).backward()
    optimizer.step()
    optimizer.zero_grad()


def same(a: Any, b: Any) -> bool:
    """Equal in every bit, at any depth."""
    if isinstance(a, Tensor):
        if a.is_sparse:
            return b.is_sparse and torch.equal(a.to_dense(), b.to_dense())
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def snapshot(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Copies of everything that training changes; the optimizer's state in the order of the parameters."""
    state = optimizer.state_dict()
    state["state"] = dict(sorted(state["state"].items(), key=str))
    return copy.deepcopy({"model": model.state_dict(), **state})


class Twins:
    """One model twice, `plain` trained by the plain optimizer, `model` inside backward, compared at every iteration."""

    def __init__(
        self,
        optimizer_cls: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        groups: Callable[[nn.Module], Any] = lambda model: model.parameters(),
        model: Callable[[], nn.Module] = Toy,
        **kwargs: Any,
    ) -> None:
        self.plain_model, self.model = build(model), build(model)
        self.plain = optimizer_cls(groups(self.plain_model), **copy.deepcopy(kwargs))
        self.optimizer = OptimizerInBackward(groups(self.model), optimizer_cls, **copy.deepcopy(kwargs))
        self.iteration = 0

    def each(self, do: Callable[[nn.Module, Any], Any]) -> tuple[Any, Any]:
        """Do the same to both."""
        return do(self.plain_model, self.plain), do(self.model, self.optimizer)

    def iterate(self, iterations: int = 4) -> None:
        for _ in range(iterations):
            before = snapshot(self.model, self.optimizer)["model"]
            self.each(lambda model, optimizer: iterate(model, optimizer, self.iteration))
            self.iteration += 1
            if any(group["params"] and group["lr"] for group in self.optimizer.param_groups):
                assert not same(before, self.model.state_dict()), "nothing was trained"
            assert all(p.grad is None for p in self.model.parameters())
            self.check()

    def check(self) -> None:
        a, b = self.each(snapshot)
        assert len(a["model"]) > 0
        for part in a:
            assert same(a[part], b[part]), f"{part} differs at iteration {self.iteration}:\n{a[part]}\n{b[part]}"
