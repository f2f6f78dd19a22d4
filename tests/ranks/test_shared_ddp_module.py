"""One DDP module, several optimizers over its parameters: each takes what is its own, and leaves the rest as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from inbackward import OptimizerInBackward, Scenario
from inbackward.optimizer.reduction import Reduction
from inbackward.ranks import Pool
from inbackward.scenario import ParallelConfig
from inbackward.training import World

SGD = torch.optim.SGD


class Side:
    """A model in DDP, with an optimizer over its body and another over its head."""

    def __init__(self, body: Callable[..., Any], head: Callable[..., Any], **ddp: Any) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(
            nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), **ddp
        )
        layers: Any = self.model.module
        self.body_parameters = [*layers[0].parameters(), *layers[2].parameters()]
        self.body, self.head = body(self.body_parameters), head(list(layers[4].parameters()))
        for optimizer in (self.body, self.head):
            if isinstance(optimizer, OptimizerInBackward):
                optimizer.register_ddp(self.model)

    def loss(self, iteration: int) -> Tensor:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * iteration + dist.get_rank()))
        loss: Tensor = self.model(x).square().mean()
        return loss

    def step(self) -> None:
        for optimizer in (self.body, self.head):
            optimizer.step()
            optimizer.zero_grad()

    def values(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def plain(parameters: list[Tensor]) -> Any:
    return SGD(parameters, lr=0.1, momentum=0.9)


def ours(parameters: list[Tensor]) -> Any:
    return OptimizerInBackward(parameters, SGD, lr=0.1, momentum=0.9)


def unclipped(side: Side, loss: Tensor) -> None:
    loss.backward()


def to_a_norm(side: Side, loss: Tensor) -> None:
    if isinstance(side.body, OptimizerInBackward):
        side.body.backward(loss, max_norm=0.05)
    else:
        loss.backward()
        clip_grad_norm_(side.body_parameters, 0.05)


def by_value(side: Side, loss: Tensor) -> None:
    if isinstance(side.body, OptimizerInBackward):
        side.body.backward(loss, clip_value=0.01)
    else:
        loss.backward()
        clip_grad_value_(side.body_parameters, 0.01)


def apart(test: Side, reference: Side, backward: Callable[[Side, Tensor], None]) -> list[int]:
    """The iterations of four after which some parameter is not the reference's, bit for bit."""
    found = []
    for iteration in range(4):
        for side in (test, reference):
            backward(side, side.loss(iteration))
            side.step()
        if not equal(test, reference):
            found.append(iteration)
    return found


def equal(a: Side, b: Side) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.values(), b.values(), strict=True))


def scaled(world: World) -> list[int]:
    """Both optimizers by one scaler, of which the head's is plain."""
    test, reference, found = Side(ours, plain), Side(plain, plain), []
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    for iteration in range(3):
        for side, scaler in zip((test, reference), scalers, strict=True):
            if side is test:
                side.body.backward(side.loss(iteration), scaler=scaler)
            else:
                scaler.scale(side.loss(iteration)).backward()
            for optimizer in (side.body, side.head):
                scaler.step(optimizer)
            scaler.update()
            for optimizer in (side.body, side.head):
                optimizer.zero_grad()
        if not equal(test, reference):
            found.append(iteration)
    return found


def renewed(world: World) -> list[int]:
    """A closed optimizer, and a new one over the same module; momentum begins anew on either side."""
    test, reference = Side(ours, ours), Side(plain, plain)
    first = apart(test, reference, unclipped)
    for side, make in ((test, ours), (reference, plain)):
        if side is test:
            side.body.close()
        side.body = make(side.body_parameters)
        if side is test:
            side.body.register_ddp(side.model)
            side.body.register_ddp(side.model)  # told twice is told once
    return first + apart(test, reference, unclipped)


WORK: dict[str, Callable[[World], Any]] = {
    "plain head": lambda world: apart(Side(ours, plain), Side(plain, plain), unclipped),
    "plain head, to a norm": lambda world: apart(Side(ours, plain), Side(plain, plain), to_a_norm),
    "plain head, by value": lambda world: apart(Side(ours, plain), Side(plain, plain), by_value),
    "two of ours": lambda world: apart(Side(ours, ours), Side(plain, plain), unclipped),
    "two of ours, to a norm": lambda world: apart(Side(ours, ours), Side(plain, plain), to_a_norm),
    "two of ours, views of buckets": lambda world: apart(
        Side(ours, ours, gradient_as_bucket_view=True), Side(plain, plain), unclipped
    ),
    "scaled": scaled,
    "renewed": renewed,
    "takes all": lambda world: apart(Side(TakesAll, plain), Side(plain, plain), by_value),
}


class TakesAll(OptimizerInBackward):
    """Uses whatever a bucket holds."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, SGD, lr=0.1, momentum=0.9)

    def register_ddp(self, module: DistributedDataParallel) -> None:
        reduction = Reduction.of(module)
        reduction.join(self, lambda owner, parameters: owner._use(parameters))
        self._reductions.append(reduction)


def serve(scenario: Scenario, world: World) -> Any:
    return WORK[scenario.name](world)


@pytest.fixture(scope="module")
def pool() -> Any:
    with closing(Pool(serve, torch.device("cpu"))) as ranks:
        yield ranks


@pytest.mark.parametrize("name", [name for name in WORK if name != "takes all"])
def test_each_takes_its_own(pool: Any, name: str) -> None:
    found = pool.run(Scenario(name=name, parallel=ParallelConfig(strategy="ddp", ranks=2)))
    assert found == [[], []], "iterations that differ, by rank"


def test_it_would_show(pool: Any) -> None:
    found = pool.run(Scenario(name="takes all", parallel=ParallelConfig(strategy="ddp", ranks=2)))
    assert found == [[0, 1, 2, 3]] * 2
