"""Batches of text: bytes of the standard library's own source files, or a synthetic stream of the same shape.

Real text has what random tokens lack: frequent and rare rows of the embedding, and a loss that falls.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from inbackward.scenario.configs import DataConfig

# Pure-Python modules that every CPython since 3.10 ships with their source.
SOURCES = ("argparse", "ast", "dataclasses", "difflib", "fractions", "heapq", "inspect", "textwrap")


@lru_cache(maxsize=1)
def standard_library_text() -> Tensor:
    """uint8 tensor ``(bytes,)``: the concatenated sources.

    Raises:
        RuntimeError: this interpreter ships without the sources of its standard library.
    """
    text = b""
    for name in SOURCES:
        spec = find_spec(name)
        read = getattr(spec.loader, "get_source", None) if spec else None
        text += ((read(name) if read else None) or "").encode()
    if len(text) < 1 << 16:
        raise RuntimeError("this Python ships no sources of its standard library; use data source 'synthetic'")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch(
    config: DataConfig, seed: int, iteration: int, micro_batch: int = 0, rank: int = 0, *, text: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens and their successors, both int64 ``(batch, length)``, the same for the same arguments everywhere.

    A text token is one byte. The synthetic source draws bytes with a skew, as text has, from the seed alone.

    Args:
        text: uint8 ``(bytes,)``, more than ``length + 1``, in the place of the standard library's.
    """
    draw = torch.Generator().manual_seed(((seed * 1009 + iteration) * 64 + micro_batch) * 8192 + rank)
    shape = (config.batch, config.length + 1)
    if config.source == "synthetic":
        window = (torch.rand(shape, generator=draw).square() * 256).long()
    else:
        text = standard_library_text() if text is None else text
        starts = torch.randint(0, len(text) - shape[1], (config.batch, 1), generator=draw)
        window = text[starts + torch.arange(shape[1])].long()
    return window[:, :-1], window[:, 1:]
