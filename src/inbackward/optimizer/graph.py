"""What a backward will reach, read off the graph before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from inbackward.optimizer.hook import step_hooks


def nodes(root: Tensor) -> list[Any]:
    """Every node of the graph that `root` was computed by."""
    found = {root.grad_fn: None} if root.grad_fn is not None else {}
    waiting = list(found)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found:
                found[node] = None
                waiting.append(node)
    return list(found)


def runs_backwards_within(graph: list[Any]) -> bool:
    """Whether reentrant activation checkpointing is in it: then there are more leaves than can be seen."""
    return any(isinstance(node, CheckpointFunction._backward_cls) for node in graph)


@contextmanager
def untouched(graph: list[Any], own: set[Tensor]) -> Iterator[None]:
    """Within, a backward leaves nothing behind on leaves other than `own`: no gradient, and no other one's update."""
    leaves = [node.variable for node in graph if hasattr(node, "variable")]
    others = [leaf for leaf in leaves if leaf not in own]
    gradients = [leaf.grad for leaf in others]
    owners = {hook.owner for leaf in others for hook in step_hooks(leaf)} - {None}
    with ExitStack() as stack:
        for owner in owners:
            stack.enter_context(owner.no_step())
        for leaf in others:
            leaf.grad = None
        try:
            yield
        finally:
            for leaf, gradient in zip(others, gradients, strict=True):
                leaf.grad = gradient
