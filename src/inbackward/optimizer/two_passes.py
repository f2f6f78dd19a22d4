"""A backward whose gradients are changed on their way, which may take a first backward to know how."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inbackward.optimizer.clipping import Clipping
from inbackward.optimizer.graph import nodes, runs_backwards_within, untouched
from inbackward.optimizer.reduction import hint_on_ranks
from inbackward.optimizer.scaling import Scaling

if TYPE_CHECKING:
    from inbackward.optimizer.in_backward import OptimizerInBackward


def dense(parameters: list[Tensor]) -> list[Tensor]:
    """Those whose gradients have a norm: torch has none for a sparse one, which a scaler takes nevertheless."""
    return [p for p in parameters if p.grad is not None and not p.grad.is_sparse]


def local(norm: Tensor) -> Tensor:
    """What this rank's part of a gradient has of its norm, so that no rank waits for another here."""
    part: Tensor = norm.to_local() if hasattr(norm, "to_local") else norm
    return part


class Passes:
    """One call of `OptimizerInBackward.backward`.

    The total norm, and whether an fp16 gradient has overflowed, are known only when the backward is over. So a first
    pass measures each gradient and frees it, and a second one over the same graph changes each and updates (LOMO's
    method, arXiv 2306.09782). Where gradients are there already, from micro-batches that did not step, nothing can be
    saved: all are kept until `step()`, as in the usual loop. So they are where the graph allows one pass only.

    Other leaves of the graph (inputs, parameters of somebody else) would collect the gradients of both passes; so they
    are left as they were by the first.
    """

    def __init__(self, optimizer: OptimizerInBackward, clipping: Clipping, scaling: Scaling | None) -> None:
        self._optimizer = optimizer
        self._clipping = clipping
        self._scaling = scaling
        self._norms: dict[Tensor, Tensor] = {}
        self._looked_again = False
        self._total: Tensor | None = None

    def run(self, loss: Tensor, arguments: dict[str, Any]) -> Tensor | None:
        """`loss.backward(**arguments)`, once or twice; returns the total norm where it was asked for."""
        optimizer = self._optimizer
        if self._clipping.max_norm is None and self._scaling is None:
            self._pass(self._change_and_update, loss, arguments)
            return None
        parameters = optimizer._parameters()
        if self._must_keep(parameters):
            return self._keep(loss, arguments)
        graph = nodes(loss)
        if runs_backwards_within(graph):
            return self._keep_instead(loss, arguments, "it has reentrant activation checkpointing")
        try:
            with untouched(graph, set(parameters)):
                self._pass(self._measure, loss, {**arguments, "retain_graph": True})
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # it has changed no number
            for p in optimizer._left():
                p.grad = None
            return self._keep_instead(loss, arguments, " ".join(str(error).split())[:200])
        if self._clipping.max_norm is not None:
            self._total = self._clipping.total(self._norms, parameters)
        if self._scaling is None or not self._scaling.overflowed():
            for reduction in optimizer._reductions:
                reduction.prepare(loss)
            self._pass(self._change_and_update, loss, arguments)
        if self._scaling is not None:
            self._scaling.tell(optimizer)
        return self._total

    def _must_keep(self, parameters: list[Tensor]) -> bool:
        """Whether it is known beforehand that one pass has to do."""
        optimizer = self._optimizer
        return (
            optimizer._one_pass
            or optimizer._kept  # fully_shard without gradient sync keeps what is not reduced yet where nobody sees it
            or any(p.grad is not None for p in parameters)
            or len(set(parameters)) < len(parameters)
            or not all(reduction.settled for reduction in optimizer._reductions)  # in the first iteration only
        )

    def _pass(self, use: Any, loss: Tensor, arguments: dict[str, Any]) -> None:
        """A backward that hands its gradients to `use`, at last those that no hook has brought."""
        with self._optimizer._using(use):
            loss.backward(**arguments)  # type: ignore[no-untyped-call]
            if left := self._optimizer._left():
                use(left)

    def _measure(self, parameters: list[Tensor]) -> None:
        if self._scaling is not None:
            self._scaling.unscale(parameters)
        self._norms.update(
            self._clipping.norms(parameters if self._clipping.max_norm is not None else dense(parameters))
        )
        for p in parameters:
            p.grad = None

    def _look_again(self, parameters: list[Tensor]) -> None:
        """Whether the second pass brings what the first did, before any of it is used.

        Looked at once, as reading a number waits for the device. Rounding may differ, where kernels are not
        deterministic; what it is for is larger.
        """
        self._looked_again = True
        for p, norm in self._clipping.norms(dense(parameters)).items():
            now, before = local(norm), local(self._norms.get(p, norm))
            if not torch.allclose(now, before, rtol=1e-2, atol=1e-30, equal_nan=True):
                raise RuntimeError(
                    f"{self._optimizer._partial.place_of(p)} got a gradient of norm {before:.6g} in the first of two "
                    f"backward passes and of {now:.6g} in the second, so it cannot be clipped, and nothing was "
                    "updated: put earlier micro-batches into `with optimizer.no_step():`, and let custom functions "
                    "leave what they saved for their backward as it is" + hint_on_ranks()
                )

    def _change_and_update(self, parameters: list[Tensor]) -> None:
        if self._scaling is not None:
            self._scaling.unscale(parameters)
        if self._norms and not self._looked_again:
            self._look_again(parameters)
        if self._total is not None:
            self._clipping.scale(parameters, self._total)
        self._clipping.each(parameters)
        self._optimizer._apply(parameters)

    def _keep(self, loss: Tensor, arguments: dict[str, Any]) -> Tensor | None:
        """All gradients at once, as in the usual loop, which `step()` then uses."""
        with self._optimizer.no_step():
            loss.backward(**arguments)  # type: ignore[no-untyped-call]
        if self._scaling is not None:
            self._scaling.unscale_all(self._optimizer)
        return self._clipping.all_at_once(self._optimizer._parameters())

    def _keep_instead(self, loss: Tensor, arguments: dict[str, Any], reason: str) -> Tensor | None:
        """Say aloud that no memory is saved; what is wrong with the backward itself is raised before that."""
        total = self._keep(loss, arguments)
        self._optimizer._one_pass = True
        warnings.warn(
            "this graph allows no second backward, by which clipping to a total norm and a GradScaler free gradients "
            "early; from now on all gradients are kept until step(): the numbers are the same, no memory is saved "
            f"({reason})",
            stacklevel=4,
        )
        return total
