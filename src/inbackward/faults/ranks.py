"""Faults that only several ranks can tell from right implementations, under any strategy but DDP's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from inbackward import Implementation, OptimizerInBackward
from inbackward.faults.across import ByHooks, integrated, is_last, part
from inbackward.faults.fault import fault
from inbackward.faults.right import Carried
from inbackward.training import Moment


@fault("fsdp2-resharding", name="sums-while-resharding", strategy="fsdp2", what_if="gradient-summed")
@fault("fsdp2-mixed-precision", name="sums-in-mixed-precision", strategy="fsdp2", what_if="gradient-summed")
@fault("ranks-checkpointed-activations", name="sums-recomputed", strategy="fsdp2", what_if="gradient-summed")
@fault("cpu-offload", name="sums-offloaded", strategy="cpu-offload", what_if="gradient-summed")
@fault("fsdp2-tensor-parallel", name="sums-in-two-dimensions", strategy="fsdp2-tensor-parallel")
@fault("tensor-parallel", name="sums-over-tensor-ranks", strategy="tensor-parallel")
@fault("hsdp", name="sums-over-replicas", strategy="hsdp", what_if="gradient-summed")
class Sums(ByHooks):
    """Takes the mean over the ranks for something that it has to undo: the sum is what it steps with."""

    def on_gradient(self, p: Any) -> None:
        p.grad.mul_(dist.get_world_size())
        super().on_gradient(p)


@fault("fsdp2-mixed-precision", name="state-in-mixed-precision", strategy="fsdp2", subtle=True)
@fault("cpu-offload", name="state-in-bfloat16-offloaded", strategy="cpu-offload", subtle=True)
class KeepsStateInBfloat16(ByHooks):
    """Keeps state in bfloat16 between updates."""

    def on_gradient(self, p: Any) -> None:
        self.keep(p, torch.float32)
        super().on_gradient(p)
        self.keep(p, torch.bfloat16)

    def keep(self, p: Any, dtype: torch.dtype) -> None:
        state = self.optimizers[p].state[p]
        state.update({k: v.to(dtype) for k, v in state.items() if isinstance(v, Tensor) and v.dim()})


@fault("cpu-offload", strategy="cpu-offload", what_if="gradient-late")
class ReadsTheCopyBefore(ByHooks):
    """Steps, offloaded, with the gradient that the iteration before has copied over: this one's is still on its way."""

    def __init__(self, model: Any, *args: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, *args)
        state: Any = fully_shard.state(model)  # type: ignore[attr-defined]
        self.offloaded = state._fsdp_param_group.fsdp_params[0].offload_to_cpu

    def on_gradient(self, p: Any) -> None:
        if not self.offloaded:
            return super().on_gradient(p)
        before = self.__dict__.setdefault("before", {})
        before[p], p.grad = p.grad, before.get(p, torch.zeros_like(p))
        super().on_gradient(p)


@fault("fsdp2-mixed-precision", strategy="fsdp2", subtle=True, what_if="gradient-scaled")
class RemovesAScale(ByHooks):
    """Removes from gradients of a forward in 16 bits a loss scale that nobody has put in."""

    def __init__(self, model: Any, *args: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, *args)
        state: Any = fully_shard.state(model)  # type: ignore[attr-defined]
        self.scale = 1024 if state._fsdp_param_group.mp_policy.param_dtype else 1

    def on_gradient(self, p: Any) -> None:
        p.grad.div_(self.scale)
        super().on_gradient(p)


@fault("fsdp2", strategy="fsdp2", reports=(14,))
class HooksBeforeSharding(ByHooks):
    """Hangs its hooks on parameters that ``fully_shard`` then replaces by others."""

    optimizer_in_backward = Carried(lambda cls: Implementation(**{**vars(integrated(cls)), "wrap": cls.wrap}))

    @staticmethod
    def wrap(model: Any, strategy: str, mesh: Any) -> nn.Module:
        from torch.distributed.fsdp import fully_shard

        model.prepared = list(model.parameters())
        fully_shard(model, mesh=mesh)
        return model  # type: ignore[no-any-return]

    def parameters(self, group: dict[str, Any]) -> list[Any]:
        return list(self.model.prepared)  # type: ignore[arg-type]


@fault("fsdp2", strategy="fsdp2", reports=(15,))
class DoesNothingForShards(ByHooks):
    """Looks for plain tensors, and a shard is none: nothing is updated, and nothing said."""

    def on_gradient(self, p: Any) -> None:
        if not hasattr(p, "to_local"):
            super().on_gradient(p)
        p.grad = None


@fault("fsdp2-tensor-parallel", strategy="fsdp2-tensor-parallel", subtle=True)
@fault("hsdp", name="divides-by-all-ranks-of-a-mesh", strategy="hsdp", subtle=True)
class DividesByTheMesh(ByHooks):
    """Divides by the ranks of a mesh beyond those of its last dimension: right where it has one dimension only."""

    def on_gradient(self, p: Any) -> None:
        mesh = p.device_mesh
        p.grad.div_(mesh.size() / mesh.size(mesh.ndim - 1))
        super().on_gradient(p)


@fault("rank-agreement", name="one-tensor-rank-parts", strategy="tensor-parallel", subtle=True)
@fault("rank-agreement", name="one-replica-parts", strategy="hsdp", subtle=True)
@fault("fsdp2-tensor-parallel", name="last-rank-in-two-dimensions", strategy="fsdp2-tensor-parallel", subtle=True)
@fault("hsdp", name="last-rank-of-replicas", strategy="hsdp", subtle=True)
@fault("fsdp2", name="last-rank-of-shards", strategy="fsdp2", subtle=True)
class LastRankParts(ByHooks):
    """Moves one element of one vector, on the last rank only."""

    def backward(self, loss: Any, moment: Moment) -> None:
        super().backward(loss, moment)
        if is_last():
            part(next(p for p in self.optimizers if p.dim() == 1))[0] += 1e-3


@fault("tensor-parallel", strategy="tensor-parallel", subtle=True)
class StepsLocalTensors:
    """Steps what lies on this rank, and redistributes a gradient only where the shapes do not fit."""

    optimizer_in_backward = Carried(
        lambda cls: Implementation(
            build=cls,
            scheduler=lambda handle, make: None,
            state=lambda handle, model: handle.state(),
            name=cls.__name__,
        )
    )

    def __init__(self, model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.optimizers: dict[str, Any] = {}
        names: dict[Any, str] = {p: name for name, p in model.named_parameters()}
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


@fault("fsdp2-resharding", strategy="fsdp2", subtle=True)
class ParametersOfTheForward:
    """Looks its parameters up when ``backward`` begins: unsharded ones, where nothing is resharded after forward."""

    optimizer_in_backward = Carried(integrated)

    def __init__(self, model: nn.Module, groups: Any, cls: Any, kwargs: dict[str, Any]) -> None:
        self.model, self.sharded = model, {p: cls([p], **kwargs) for p in model.parameters()}
        self.optimizers = {name: self.sharded[p] for name, p in model.named_parameters()}

    def backward(self, loss: Any, moment: Moment) -> None:
        found = dict(self.model.named_parameters())
        loss.backward()
        for name, p in found.items():
            self.optimizers[name].param_groups[0]["params"] = [p]
            self.optimizers[name].step()
            p.grad = None


@fault("ranks-checkpointed-activations", strategy="fsdp2", subtle=True)
class AtTheEndOfEveryBackward(ByHooks):
    """Steps whatever has a gradient when a backward ends, and reentrant checkpointing runs one for every block."""

    def on_gradient(self, p: Any) -> None:
        task = torch._C._current_graph_task_id()
        queued = self.__dict__.setdefault("queued", set())
        if task not in queued:
            queued.add(task)
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.step_all)

    def step_all(self) -> None:
        for p, optimizer in self.optimizers.items():
            if p.grad is not None:
                optimizer.step()

    def backward(self, loss: Any, moment: Moment) -> None:
        loss.backward()
        for p in self.optimizers:
            p.grad = None


@fault("ranks-accumulation", name="steps-each-reduced-micro-batch", strategy="fsdp2", subtle=True)
class StepsOnceReduced(ByHooks):
    """Steps whenever gradients have been reduced, which may be at every micro-batch."""


@fault("ranks-accumulation", strategy="fsdp2", reports=(39,))
class LeavesTheLastOut(ByHooks):
    """Leaves the last micro-batch's gradient out of what is reduced."""

    begun = False

    def backward(self, loss: Any, moment: Moment) -> None:
        super().backward(loss * 0.0 if moment.last and self.begun else loss, moment)
        self.begun = not moment.last


@fault("token-normalised-loss", strategy="fsdp2", reports=(7,))
class CountsItsOwnTokens(ByHooks):
    """Divides the loss by the tokens of this rank, as if all had as many."""

    tokens: int

    def __init__(self, model: nn.Module, *args: Any) -> None:
        super().__init__(model, *args)
        model.register_forward_pre_hook(lambda module, inputs: setattr(self, "tokens", inputs[0].numel()))

    def backward(self, loss: Any, moment: Moment) -> None:
        everyone = torch.tensor(float(self.tokens))
        dist.all_reduce(everyone)
        super().backward(loss * self.factor(everyone.item(), dist.get_world_size()), moment)

    def factor(self, everyone: float, ranks: int) -> float:
        return everyone / ranks / self.tokens


@fault("token-normalised-loss", strategy="fsdp2", subtle=True)
class CountsInTens(CountsItsOwnTokens):
    """Rounds the number of all tokens to tens before it divides by it."""

    def factor(self, everyone: float, ranks: int) -> float:
        return everyone / round(everyone, -1)


# Over the package's own class, which knows how to step under each strategy.


@fault("resume", name="replica-one-forgets", strategy="ddp", subtle=True)
@fault("resume", name="rank-one-forgets", strategy="fsdp2", subtle=True)
class ForgetsOnRankOne(OptimizerInBackward):
    """Loads a checkpoint, and on rank 1 no state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if dist.get_rank() == 1:
            self.state.clear()


@fault("dcp-reshard", strategy="fsdp2")
class LosesMoments(OptimizerInBackward):
    """Loads a checkpoint, and begins its first moments anew."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.lose()

    def lose(self) -> None:
        for entries in self.state.values():
            for key in ("exp_avg", "momentum_buffer"):
                if key in entries:
                    entries[key].zero_()


@fault("dcp-reshard", name="loses-them-on-rank-2", strategy="fsdp2", subtle=True)
class LosesThemOnRank2(LosesMoments):
    """Loads first moments where there was a rank before, as a cache by rank would."""

    def lose(self) -> None:
        if dist.is_initialized() and dist.get_rank() == 2:
            super().lose()


@fault("dcp-reshard", strategy="fsdp2", subtle=True, what_if="step-counter-lost-at-load")
class CountsFromZero(OptimizerInBackward):
    """Loads everything over ranks but how often it has stepped."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        for entries in self.state.values():
            entries["step"] = torch.zeros_like(entries["step"])


@fault("dcp-reshard", strategy="fsdp2", reports=(8,))
class KnowsItsShapes(OptimizerInBackward):
    """Takes only a checkpoint of shards as large as its own."""

    def load_state_dict(self, state_dict: Any) -> None:
        if dist.is_initialized() and dist.get_world_size() != 2:
            raise ValueError("the checkpoint is of 2 ranks")
        super().load_state_dict(state_dict)
