"""Under DistributedDataParallel a gradient is final once all ranks have added theirs: after its bucket's reduction.

DDP lets a communication hook take the place of its all-reduce. This one does the same arithmetic and then hands over
the bucket's gradients. (A parameter's own hook fires before that: what it would step with are this rank's gradients.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel


class Reduction:
    """The communication hook of one DDP module, for all optimizers that have some of its parameters.

    A module takes one hook, once; so there is one of these for each (``of``), which optimizers join, and which outlives
    them.

    Args:
        module: must not have another communication hook.

    Attributes:
        parameters: those whose gradients come this way.
        settled: a backward may run twice over one graph: DDP, which arranges its buckets anew by the order of its first
            backward, has seen that one.

    Raises:
        RuntimeError: from DDP, if there is a communication hook already.
    """

    def __init__(self, module: DistributedDataParallel) -> None:
        self._joined: list[tuple[weakref.ref[Any], Callable[[Any, list[Tensor]], None]]] = []
        self._module = weakref.ref(module)
        self._world = dist.get_world_size(module.process_group)
        # Where a parameter may be unused, a bucket holds zeros for it, and only all ranks together know.
        self._sparse_use = module.find_unused_parameters or module.static_graph
        self.settled = self._sparse_use  # then it keeps its buckets
        self.parameters = {p for p in module.module.parameters() if p.requires_grad}
        module.register_comm_hook(self, _reduce)
        reducer: Any = module.reducer
        reducer._set_optimizer_in_backward()  # or DDP would write back the gradients that were taken

    @classmethod
    def of(cls, module: DistributedDataParallel) -> Reduction:
        """That of ``module``, made where it has none."""
        if module not in _OF_MODULES:
            _OF_MODULES[module] = cls(module)
        return _OF_MODULES[module]

    def join(self, owner: Any, final: Callable[[Any, list[Tensor]], None]) -> None:
        """Serve an optimizer too.

        Args:
            owner: held weakly; once it is dead it is left out.
            final: called with the owner and parameters whose ``.grad`` is now that of all ranks, in whatever thread has
                brought it: the owner's own among them, and others. It may take the gradients of its own; those that
                nobody takes stay, as DDP would have left them.
        """
        self._joined = [(ref, known) for ref, known in self._joined if ref() not in (None, owner)]
        self._joined.append((weakref.ref(owner), final))

    def prepare(self, loss: Tensor) -> None:
        """Before another backward over the same graph, for which DDP would otherwise reduce nothing, in silence."""
        module = self._module()
        if module is not None and module.require_backward_grad_sync:
            reducer: Any = module.reducer
            reducer.prepare_for_backward([loss] if self._sparse_use else [])

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average the bucket over the ranks as DDP does, multiplying first, then hand over its gradients."""
        module = self._module()
        assert module is not None  # it holds what calls this
        # Not kept: what waits for the sum may be let go in a thread of the group's own, and a group that is destroyed
        # there would wait for itself, and abort the process.
        group: dist.ProcessGroup = module.process_group
        parameters = bucket.parameters()
        mean = bucket.buffer().mul_(1.0 / self._world)  # dividing after the sum rounds otherwise at 3 ranks
        parts = [dist.all_reduce(mean, group=group, async_op=True).get_future()]
        used = None
        if self._sparse_use:
            used = torch.tensor([float(p.grad is not None) for p in parameters], device=mean.device)
            parts.append(dist.all_reduce(used, group=group, async_op=True).get_future())

        def hand_over(_: Any) -> Tensor:
            taken = [1.0] * len(parameters) if used is None else used.tolist()
            taking_part = [(p, g) for p, g, uses in zip(parameters, bucket.gradients(), taken, strict=True) if uses]
            for p, gradient in taking_part:
                if p.grad is None:
                    p.grad = gradient
                elif not _same_memory(p.grad, gradient):
                    p.grad.copy_(gradient)
            for ref, final in self._joined:
                owner = ref()
                if owner is not None:
                    final(owner, [p for p, _ in taking_part])
            for p, gradient in taking_part:
                if p.grad is gradient:
                    p.grad = gradient.clone()  # the bucket is filled anew by the next backward
            buffer: Tensor = bucket.buffer()
            self.settled |= bucket.is_last()
            return buffer

        return torch.futures.collect_all(parts).then(hand_over)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """By their storages and not by addresses, which a fake tensor has none of."""
    same: bool = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    return same and a.storage_offset() == b.storage_offset()


_OF_MODULES: weakref.WeakKeyDictionary[DistributedDataParallel, Reduction] = weakref.WeakKeyDictionary()


def _reduce(state, bucket):  # type: ignore[no-untyped-def]
    """DDP takes no method, wants these names, and compares annotations, which here are strings."""
    return state.reduce(bucket)


def hint_on_ranks() -> str:
    """What to add to an error that a DDP module brings about whose optimizer was not told of it."""
    on_ranks = dist.is_available() and dist.is_initialized()
    return "; for a model in DistributedDataParallel, call register_ddp(model)" if on_ranks else ""
