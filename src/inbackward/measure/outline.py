"""How a model is laid out: its layers, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """The members of the model's outermost ``ModuleList`` or ``ModuleDict``, of a ``Sequential`` where there is none.

    Each module once, by its first name; none without parameters. They are what ``fully_shard`` is called on one by one.
    """
    return _each_once((name, part) for name, part, is_layer in _walk(model, _containers(model)) if is_layer)


def parts(model: nn.Module) -> dict[str, nn.Module]:
    """The layers, and the modules beside them, such as the embedding and the head."""
    return _each_once((name, part) for name, part, _ in _walk(model, _containers(model)))


def _containers(model: nn.Module) -> tuple[type[nn.Module], ...]:
    lists = nn.ModuleList, nn.ModuleDict
    return lists if any(isinstance(m, lists) for m in model.modules()) else (nn.Sequential,)


def _walk(
    module: nn.Module, containers: tuple[type[nn.Module], ...], prefix: str = ""
) -> Iterator[tuple[str, nn.Module, bool]]:
    for name, child in module.named_children():
        if isinstance(module, containers):
            yield prefix + name, child, True
        elif any(isinstance(m, containers) for m in child.modules()):
            yield from _walk(child, containers, f"{prefix}{name}.")
        else:
            yield prefix + name, child, False


def _each_once(found: Iterator[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    names: dict[nn.Module, str] = {}
    for name, part in found:
        if any(True for _ in part.parameters()):
            names.setdefault(part, name)
    return {name: part for part, name in names.items()}
