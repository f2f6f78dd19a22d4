"""``docs/migrating.md``: its code runs, and checkpoints of others load after what it says, and not before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.optimizer.toys import Twins, build, loss_of
from torch import nn

from inbackward import OptimizerInBackward

TEXT = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def optimizers_of(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    return {name: torch.optim.AdamW([p], lr=0.01) for name, p in model.named_parameters()}


def by_functions(optimizers: dict[str, torch.optim.Optimizer]) -> dict[Any, Any]:
    """What torchtune's ``OptimizerInBackwardWrapper`` saves."""
    return {name: optimizer.state_dict() for name, optimizer in optimizers.items()}


def by_class(optimizers: dict[str, torch.optim.Optimizer]) -> dict[Any, Any]:
    """What torchtune's ``OptimizerInBackward`` saves."""
    each = [optimizer.state_dict() for optimizer in optimizers.values()]
    return {"per_param": {7 * i: state_dict for i, state_dict in enumerate(each)}, "proxy": each[0]}


@pytest.mark.parametrize("save", [by_functions, by_class])
def test_checkpoints_of_torchtune(save: Any) -> None:
    twins = Twins(lr=0.01)
    theirs = build()
    optimizers = optimizers_of(theirs)
    for iteration in range(3):
        loss_of(theirs, iteration).backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    twins.iterate(3)
    saved = save(optimizers)
    model = build()
    model.load_state_dict(theirs.state_dict())
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW)
    with pytest.raises(
        ValueError, match=r"holds one state dict a parameter, .*: put them together as docs/migrating\.md "
    ):
        optimizer.load_state_dict(saved)
    exec(BLOCKS[2], {"optimizer": optimizer, "saved": saved})
    twins.model, twins.optimizer = model, optimizer
    twins.check()
    twins.iterate(2)


def test_the_tutorial_in_one_line() -> None:
    trained = []
    for block in BLOCKS[:2]:
        model = build(lambda: nn.Linear(3, 1))
        data = [torch.full((2, 3), float(i)) for i in range(3)]
        scope = {"torch": torch, "OptimizerInBackward": OptimizerInBackward, "data": data}
        exec(block, {**scope, "model": Summed(model)})
        if block is BLOCKS[0]:
            for batch in data:
                model(batch).sum().backward()
        trained.append(model.state_dict())
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


class Summed:
    """A model whose output is its loss, as the page's is."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = model.parameters

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch).sum()
