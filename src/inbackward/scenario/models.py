"""The models a scenario can name: small enough to train in milliseconds, odd enough to expose a wrong optimizer.

Shape legend: B batch, T time, C channels (``dim``), H query heads, K key/value heads, D head size, V vocabulary.
Every model maps int64 tokens ``x_BT`` to logits ``(B, T, V)``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inbackward.scenario.configs import ModelConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang & Sennrich 2019), computed in at least fp32 whatever the weight's dtype."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (normed * self.weight).to(x.dtype)


def rotary_table(head_size: int, length: int) -> Tensor:
    """Angles of rotary position embedding (Su et al. 2021), shape ``(length, head_size / 2)``, fp32."""
    frequencies = 10_000.0 ** (-torch.arange(0, head_size, 2).float() / head_size)
    return torch.outer(torch.arange(length).float(), frequencies)


def rotate(x_BHTD: Tensor, angles_TD: Tensor) -> Tensor:
    even, odd = x_BHTD[..., 0::2], x_BHTD[..., 1::2]
    cos, sin = angles_TD.cos().to(x_BHTD.dtype), angles_TD.sin().to(x_BHTD.dtype)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Causal grouped-query attention: every ``heads / kv_heads`` query heads share one key and value head."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = c.heads, c.kv_heads, c.dim // c.heads
        self.query = nn.Linear(c.dim, c.heads * self.head_size, bias=c.bias)
        self.key = nn.Linear(c.dim, c.kv_heads * self.head_size, bias=c.bias)
        self.value = nn.Linear(c.dim, c.kv_heads * self.head_size, bias=c.bias)
        self.out = nn.Linear(c.heads * self.head_size, c.dim, bias=c.bias)

    def forward(self, x_BTC: Tensor, angles_TD: Tensor) -> Tensor:
        def split(y: Tensor, heads: int) -> Tensor:  # under sequence parallelism, y is longer than x
            return y.view(*y.shape[:2], heads, self.head_size).transpose(1, 2)

        q = rotate(split(self.query(x_BTC), self.heads), angles_TD)
        k = rotate(split(self.key(x_BTC), self.kv_heads), angles_TD)
        v = split(self.value(x_BTC), self.kv_heads)
        share = self.heads // self.kv_heads
        if share > 1:
            k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class SwiGLU(nn.Module):
    """Gated feed-forward layer (Shazeer 2020)."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(c.dim, c.hidden, bias=c.bias)
        self.up = nn.Linear(c.dim, c.hidden, bias=c.bias)
        self.down = nn.Linear(c.hidden, c.dim, bias=c.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(c.dim), Attention(c)
        self.feed_forward_norm, self.feed_forward = RMSNorm(c.dim), SwiGLU(c)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor, angles_TD: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), angles_TD))
        out: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return out


class Odd(nn.Module):
    """Parameters of unusual size that all take part: none, one element, no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.Parameter(torch.ones(0))
        self.empty_rows = nn.Parameter(torch.ones(0, 3))
        self.one = nn.Parameter(torch.ones(1))
        self.scalar = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one + self.scalar + self.empty.sum() + self.empty_rows.sum()


class LateRead(torch.autograd.Function):
    """Scales by a value read off a parameter, in the forward and again in the backward, as late recomputation does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor) -> Tensor:
        ctx.parameter = parameter  # not saved for the backward, so that autograd does not guard its version
        return x * (1 + parameter.square().mean())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * (1 + ctx.parameter.square().mean()), None


class Llama(nn.Module):
    """A Llama-style transformer. ``take_branch`` says whether the optional branch takes part in the next forward."""

    angles: Tensor

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(c.vocabulary, c.dim, sparse=c.sparse)
        first = Block(c)
        self.blocks = nn.ModuleList([first, *(first if c.shared else Block(c) for _ in range(c.layers - 1))])
        self.odd = Odd() if c.odd else None
        self.checkpointing, self.late_read = c.checkpointing, c.late_read
        self.branch = nn.Linear(c.dim, c.dim) if c.branch else None
        self.norm = RMSNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocabulary, bias=False)
        if c.tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("angles", rotary_table(c.dim // c.heads, c.context))
        self.take_branch = True

    def forward(self, x_BT: Tensor) -> Tensor:
        x = self.embedding(x_BT)
        if self.late_read:
            # Detached: as an input of its own, the weight would not be final before this function's backward.
            x = LateRead.apply(x, self.head.weight.detach())  # type: ignore[no-untyped-call]
        angles = self.angles[: x_BT.shape[1]]
        for block in self.blocks:
            if self.checkpointing:
                x = checkpoint(block, x, angles, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = block(x, angles)
        if self.odd is not None:
            x = self.odd(x)
        if self.branch is not None and self.take_branch:
            x = x + self.branch(x)
        out: Tensor = self.head(self.norm(x))
        return out


class Convolution(nn.Module):
    """Embedding, causal-free 1-d convolution, batch norm (buffers that change in the forward), head."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(c.vocabulary, c.dim, sparse=c.sparse)
        self.layers = nn.ModuleList(nn.Conv1d(c.dim, c.dim, 3, padding=1, bias=c.bias) for _ in range(c.layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(c.dim) for _ in range(c.layers))
        self.dropout = nn.Dropout(c.dropout)
        self.branch = nn.Linear(c.dim, c.dim) if c.branch else None
        self.head = nn.Linear(c.dim, c.vocabulary, bias=c.bias and not c.tied)
        if c.tied:
            self.head.weight = self.embedding.weight
        self.take_branch = True

    def forward(self, x_BT: Tensor) -> Tensor:
        x = self.embedding(x_BT).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms):
            x = x + self.dropout(F.gelu(norm(layer(x))))
        x = x.transpose(1, 2)
        if self.branch is not None and self.take_branch:
            x = x + self.branch(x)
        out: Tensor = self.head(x)
        return out


KINDS: dict[str, type[nn.Module]] = {"llama": Llama, "convolution": Convolution}


def build_model(config: ModelConfig, seed: int, dtype: torch.dtype) -> nn.Module:
    """The model of ``config`` with weights drawn from ``seed``; the global RNG is left as found.

    ``config.mixed`` then gives the parameters that match a pattern a dtype of their own, and ``config.transposed``
    matrices another layout.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed queues a call, and a traceback, for every backend
        model = _factory(config.factory)() if config.factory else KINDS[config.kind](config)
    if dtype is not torch.float32 or config.factory:
        model.to(dtype)
    for pattern, name in config.mixed:
        for parameter_name, parameter in model.named_parameters():
            if fnmatchcase(parameter_name, pattern):
                parameter.data = parameter.data.to(getattr(torch, name))
    for parameter in model.parameters() if config.transposed else ():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()
    return model.train()


def _factory(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
