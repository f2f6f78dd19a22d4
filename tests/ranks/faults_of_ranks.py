"""Wrong implementations that only several ranks can tell from right ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from tests.ranks import by_hooks
from tests.ranks.by_hooks import Optimizers, backward, build
from tests.ranks.fault import RankFault
from torch import Tensor, nn

from inbackward import Implementation, OptimizerInBackward
from inbackward.training import Moment, as_implementation

BOTH = (0, 1)
ALL = (0, 1, 2, 3)


Change = Callable[[Optimizers, Tensor], None]


def changed(name: str, before: Change, after: Change = lambda optimizers, p: None) -> Implementation:
    """``by_hooks`` with a change before and after the step of each parameter."""

    def build_changed(model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> Optimizers:
        optimizers = build(model, groups, cls, kwargs)
        for optimizer in optimizers.values():
            (p,) = optimizer.param_groups[0]["params"]
            optimizer.register_step_pre_hook(lambda *_, p=p: before(optimizers, p))
            optimizer.register_step_post_hook(lambda *_, p=p: after(optimizers, p))
        return optimizers

    return Implementation(build=build_changed, backward=backward, scheduler=lambda handle, make: None, name=name)


def part(x: Any) -> Tensor:
    """What lies on this rank; it shares its memory."""
    return (x.to_local() if hasattr(x, "to_local") else x).detach()


def sum_instead_of_mean(optimizers: Optimizers, p: Tensor) -> None:
    p.grad.mul_(dist.get_world_size())


def kept_in(dtype: torch.dtype) -> Callable[[Optimizers, Tensor], None]:
    """Between updates, state is kept in another dtype."""

    def store(optimizers: Optimizers, p: Tensor) -> None:
        state = optimizers[p].state[p]
        state.update({k: v.to(dtype) for k, v in state.items() if isinstance(v, Tensor) and v.dim()})

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
            p.register_post_accumulate_grad_hook(lambda p, mine=mine, name=names[p]: self.update(p, mine, name))

    def update(self, p: Any, mine: Tensor, name: str) -> None:
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


def diverges_on_the_last_rank(handle: Any, loss: Tensor, moment: Moment) -> None:
    """One element of one norm."""
    loss.backward()
    if dist.get_rank() == dist.get_world_size() - 1:
        part(next(p for p in handle.param_groups[0]["params"] if p.dim() == 1))[0] += 1e-3


class ForgetsOnRankOne(OptimizerInBackward):
    """Loads a checkpoint, and on rank 1 no state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if dist.get_rank() == 1:
            self.state.clear()


def scheduled_but_on_rank_one(handle: Any, make: Callable[[Any], Any]) -> Any:
    return make(handle if dist.get_rank() != 1 else torch.optim.SGD([torch.zeros(1)], lr=1.0))


CANONICAL = as_implementation(OptimizerInBackward)
SUMMED = changed("summed", sum_instead_of_mean)
KEPT_IN_BFLOAT16 = changed("state kept in bfloat16", kept_in(torch.float32), kept_in(torch.bfloat16))
LAST = replace(CANONICAL, backward=diverges_on_the_last_rank, name="last rank diverges")
FORGETS = as_implementation(ForgetsOnRankOne)
SCHEDULED = replace(CANONICAL, scheduler=scheduled_but_on_rank_one, name="rank 1 not scheduled")
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
    RankFault(by_hooks.implementation, "ddp", "ddp", "llama-sgd", 0, "parameter", BOTH),
    RankFault(LAST, "ddp", "ddp", "llama-adamw", 0, "parameter", (1,)),
    RankFault(BEFORE_SHARDING, "fsdp2", "fsdp2", "llama-adamw", 0, "parameter", BOTH),
    RankFault(LAST, "fsdp2", "fsdp2", "llama-sgd", 0, "parameter", (1,)),
    RankFault(SUMMED, "hsdp", "hsdp", "biases-sgd", 0, "parameter", ALL),
    RankFault(LOCAL, "tensor-parallel", "tensor-parallel", "sequence-adamw", 0, "parameter", BOTH, "llama-adamw"),
    RankFault(LAST, "fsdp2-tensor-parallel", "fsdp2-tensor-parallel", "sequence-adamw", 0, "parameter", (3,)),
    RankFault(KEPT_IN_BFLOAT16, "cpu-offload", "cpu-offload", "biases-adamw", 0, "state", BOTH),
    RankFault(KEPT_IN_BFLOAT16, "fsdp2-mixed-precision", "fsdp2", "reduced-in-bfloat16-sgd", 0, "state", BOTH),
    RankFault(AT_FORWARD, "fsdp2-resharding", "fsdp2", "off-adamw", 0, "parameter", BOTH, "on-adamw"),
    RankFault(by_hooks.implementation, "rank-agreement", "ddp", "ddp-adamw", 0, "replica", BOTH),
    RankFault(LAST, "rank-agreement", "hsdp", "hsdp-adamw", 0, "replica", (1, 3)),
    RankFault(LAST, "rank-agreement", "tensor-parallel", "tensor-parallel-sgd", 0, "replica", BOTH),
    RankFault(
        by_hooks.implementation,
        "ranks-accumulation",
        "fsdp2",
        "fsdp2-reduced-every-time-sgd",
        0,
        "early",
        BOTH,
        passes="fsdp2-reduced-last-sgd",
    ),
    RankFault(
        AT_END,
        "ranks-checkpointed-activations",
        "fsdp2",
        "fsdp2-reentrant-adamw",
        0,
        "parameter",
        BOTH,
        passes="fsdp2-non-reentrant-adamw",
    ),
    RankFault(OWN_COUNT, "token-normalised-loss", "fsdp2", "fsdp2-sgd", 0, "parameter", BOTH),
    RankFault(FORGETS, "resume", "ddp", "at-3-file-adamw", 3, "parameter", (1,)),
    RankFault(FORGETS, "resume", "fsdp2", "at-3-file-sgd", 3, "parameter", (1,)),
    RankFault(SCHEDULED, "lr-schedule", "ddp", "warm-up-from-0-adamw", 0, "parameter", (1,)),
    RankFault(SCHEDULED, "lr-schedule", "fsdp2", "warm-up-from-0-sgd", 0, "parameter", (1,)),
]
