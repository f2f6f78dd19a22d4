"""Wrong implementations that only several ranks can tell from right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.ranks.by_hooks import Optimizers, backward, build, implementation
from tests.ranks.fault import RankFault
from torch import Tensor, nn

from inbackward import Implementation
from inbackward.training import Moment

BOTH = (0, 1)
ALL = (0, 1, 2, 3)


def changed(name: str, change: Callable[[Optimizers, Tensor], None], before: bool = False) -> Implementation:
    """``by_hooks`` with a change after each step, or to each gradient ``before`` it."""

    def build_changed(model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> Optimizers:
        optimizers = build(model, groups, cls, kwargs)
        for optimizer in optimizers.values():
            (p,) = optimizer.param_groups[0]["params"]
            register = optimizer.register_step_pre_hook if before else optimizer.register_step_post_hook
            register(lambda *_, p=p: change(optimizers, p))
        return optimizers

    return Implementation(build=build_changed, backward=backward, scheduler=lambda handle, make: None, name=name)


def part(x: Any) -> Tensor:
    """What lies on this rank; it shares its memory."""
    return (x.to_local() if hasattr(x, "to_local") else x).detach()


def sum_instead_of_mean(optimizers: Optimizers, p: Tensor) -> None:
    p.grad.mul_(dist.get_world_size())


def one_element_on_the_last_rank(optimizers: Optimizers, p: Tensor) -> None:
    if dist.get_rank() == dist.get_world_size() - 1 and p is next(iter(optimizers)):
        part(p).view(-1)[0] += 1e-3


def state_in(dtype: torch.dtype, keep: bool) -> Callable[[Optimizers, Tensor], None]:
    """State is stored in another dtype, and kept in it or only rounded by it."""

    def store(optimizers: Optimizers, p: Tensor) -> None:
        state = optimizers[p].state[p]
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim():
                stored = value.to(dtype)
                state[name] = stored if keep else stored.to(value.dtype)

    return store


def register_then_shard(model: nn.Module, strategy: str, mesh: Any) -> nn.Module:
    """A framework that prepares the model's parameters, which ``fully_shard`` then replaces by others."""
    from torch.distributed.fsdp import fully_shard

    old = list(model.parameters())
    fully_shard(model, mesh=mesh)
    model.prepared = old  # type: ignore[assignment]
    return model


def build_on_the_old(model: Any, groups: Any, cls: Any, kwargs: dict[str, Any]) -> Optimizers:
    return build(model, [{**groups[0], "params": model.prepared}], cls, kwargs)


class Local:
    """Steps what lies on this rank, and redistributes a gradient only where the shapes do not fit."""

    def __init__(self, model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.optimizers: dict[str, Any] = {}
        names = {p: name for name, p in model.named_parameters()}
        for p in (p for group in groups for p in group["params"]):
            mine = nn.Parameter(part(p))
            self.optimizers[names[p]] = cls([mine], **kwargs)
            p.register_post_accumulate_grad_hook(lambda p, mine=mine, name=names[p]: self.step(p, mine, name))

    def step(self, p: Any, mine: Tensor, name: str) -> None:
        gradient = part(p.grad)
        fits = gradient.shape == mine.shape
        mine.grad = gradient if fits else part(p.grad.redistribute(placements=p.placements))
        self.optimizers[name].step()
        p.grad = mine.grad = None

    def state(self) -> dict[str, Any]:
        return {name: next(iter(o.state.values()), {}) for name, o in self.optimizers.items()}


class AtForward:
    """Looks its parameters up in the model when ``backward`` begins, and steps those afterwards."""

    def __init__(self, model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.model, self.sharded = model, {p: cls([p], **kwargs) for p in model.parameters()}
        self.optimizers = {name: self.sharded[p] for name, p in model.named_parameters()}

    def backward(self, loss: Tensor, moment: Moment) -> None:
        found = dict(self.model.named_parameters())
        loss.backward()
        for name, p in found.items():
            self.optimizers[name].param_groups[0]["params"] = [p]
            self.optimizers[name].step()
            p.grad = None


class AtEndOfBackward:
    """Steps everything that has a gradient whenever a backward ends, and frees gradients for the next iteration.

    Reentrant checkpointing runs a backward of its own inside the backward, for every block.
    """

    def __init__(self, model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.optimizers = {p: cls([p], **kwargs) for group in groups for p in group["params"]}
        self.queued: set[int] = set()
        for p in self.optimizers:
            p.register_post_accumulate_grad_hook(self.queue)

    def queue(self, p: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task not in self.queued:
            self.queued.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(self.step_all)

    def step_all(self) -> None:
        for p, optimizer in self.optimizers.items():
            if p.grad is not None:
                optimizer.step()

    def backward(self, loss: Tensor, moment: Moment) -> None:
        loss.backward()
        for p in self.optimizers:
            p.grad = None


class OwnCount:
    """Divides the loss by the tokens of this rank, as if all had as many; it counts them where the model is called."""

    def __init__(self, model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.optimizers = build(model, groups, cls, kwargs)
        model.register_forward_pre_hook(lambda module, inputs: setattr(self, "tokens", inputs[0].numel()))

    def backward(self, loss: Tensor, moment: Moment) -> None:
        everyone = torch.tensor(float(self.tokens))
        dist.all_reduce(everyone)
        (loss * (everyone.item() / dist.get_world_size() / self.tokens)).backward()


def of(cls: Any, name: str) -> Implementation:
    return Implementation(
        build=cls,
        backward=getattr(cls, "backward", None),
        scheduler=lambda handle, make: None,
        state=lambda handle, model: handle.state() if hasattr(handle, "state") else handle.optimizers,
        name=name,
    )


SUMMED = changed("summed", sum_instead_of_mean, before=True)
LAST = changed("last rank diverges", one_element_on_the_last_rank)
IN_BFLOAT16 = changed("state through bfloat16", state_in(torch.bfloat16, keep=False))
IN_FLOAT64 = changed("state in float64", state_in(torch.float64, keep=True))
BEFORE_SHARDING = Implementation(
    build=build_on_the_old,
    wrap=register_then_shard,
    backward=backward,
    scheduler=lambda handle, make: None,
    name="prepared before fully_shard",
)
LOCAL = of(Local, "local tensors")
AT_FORWARD = of(AtForward, "parameters of the forward")
AT_END = of(AtEndOfBackward, "at the end of every backward")
OWN_COUNT = of(OwnCount, "own count")

FAULTS = [
    RankFault(implementation, "ddp", "ddp", "llama-sgd", 0, "parameter", 0, BOTH),
    RankFault(LAST, "ddp", "ddp", "llama-adamw", 0, "parameter", 1),
    RankFault(BEFORE_SHARDING, "fsdp2", "fsdp2", "llama-adamw", 0, "parameter", 0, BOTH),
    RankFault(SUMMED, "fsdp2", "fsdp2", "llama-adamw", 0, "state", 0, BOTH),
    RankFault(LAST, "fsdp2", "fsdp2", "llama-adamw", 0, "parameter", 1),
    RankFault(SUMMED, "hsdp", "hsdp", "biases-sgd", 0, "parameter", 0, ALL),
    RankFault(LAST, "hsdp", "hsdp", "biases-sgd", 0, "parameter", 3),
    RankFault(LOCAL, "tensor-parallel", "tensor-parallel", "sequence-sgd", 0, "parameter", 0, BOTH),
    RankFault(LAST, "fsdp2-tensor-parallel", "fsdp2-tensor-parallel", "sequence-adamw", 0, "parameter", 3),
    RankFault(IN_FLOAT64, "cpu-offload", "cpu-offload", "biases-adamw", 0, "state", 0, BOTH),
    RankFault(IN_BFLOAT16, "fsdp2-mixed-precision", "fsdp2", "reduced-in-bfloat16-adamw", 0, "state", 0, BOTH),
    RankFault(AT_FORWARD, "fsdp2-resharding", "fsdp2", "off-adamw", 0, "parameter", 0, BOTH),
    RankFault(implementation, "rank-agreement", "ddp", "ddp-adamw", 0, "replica", 0, BOTH),
    RankFault(LAST, "rank-agreement", "hsdp", "hsdp-adamw", 0, "replica", 1),
    RankFault(LAST, "rank-agreement", "tensor-parallel", "tensor-parallel-adamw", 0, "replica", 1),
    RankFault(implementation, "ranks-accumulation", "fsdp2", "fsdp2-reduced-every-time-sgd", 0, "early", 0, BOTH),
    RankFault(AT_END, "ranks-checkpointed-activations", "fsdp2", "fsdp2-reentrant-adamw", 0, "parameter", 0, BOTH),
    RankFault(OWN_COUNT, "token-normalised-loss", "fsdp2", "fsdp2-sgd", 0, "parameter", 0, BOTH),
]
