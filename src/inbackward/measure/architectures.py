"""Decoder-only transformers of public shapes, in as few lines as tell how much memory they take.

The sources are the ``config.json`` files that the models are published with; what a rotary table takes (a megabyte at
most) is left out. Shape legend: B batch, T time, C channels (``width``), H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """What a model's ``config.json`` says, and which family's details it has.

    Attributes:
        layers, width, hidden, heads, kv_heads, vocabulary: sizes; ``hidden`` is the feed-forward's.
        head_size: of one head; 0 is ``width / heads``.
        tied: the head is the embedding.
        qkv_bias: biases on the three projections (Qwen2).
        qk_norm: a norm on each query and key head (Qwen3).
        positions: learned positions, as many; then it is a GPT-2: layer norms, biases, and GELU without a gate.
    """

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_size: int = 0
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    positions: int = 0


def _gpt2(layers: int, width: int, heads: int) -> Shape:
    return Shape(layers, width, 4 * width, heads, heads, 50257, tied=True, qkv_bias=True, positions=1024)


def _llama3(layers: int, width: int, hidden: int, heads: int, tied: bool = False) -> Shape:
    return Shape(layers, width, hidden, heads, 8, 128256, tied=tied)


def _qwen2(layers: int, width: int, hidden: int, heads: int, kv_heads: int, vocabulary: int, tied: bool) -> Shape:
    return Shape(layers, width, hidden, heads, kv_heads, vocabulary, tied=tied, qkv_bias=True)


def _qwen3(layers: int, width: int, hidden: int, heads: int, tied: bool) -> Shape:
    return Shape(layers, width, hidden, heads, 8, 151936, head_size=128, tied=tied, qk_norm=True)


MODELS = {
    "llama2-7b": Shape(32, 4096, 11008, 32, 32, 32000),
    "llama2-13b": Shape(40, 5120, 13824, 40, 40, 32000),
    "llama2-70b": Shape(80, 8192, 28672, 64, 8, 32000),
    "llama3-8b": _llama3(32, 4096, 14336, 32),
    "llama3-70b": _llama3(80, 8192, 28672, 64),
    "llama3.1-405b": _llama3(126, 16384, 53248, 128),
    "llama3.2-1b": _llama3(16, 2048, 8192, 32, tied=True),
    "llama3.2-3b": _llama3(28, 3072, 8192, 24, tied=True),
    "mistral-7b": Shape(32, 4096, 14336, 32, 8, 32000),
    "qwen2.5-0.5b": _qwen2(24, 896, 4864, 14, 2, 151936, True),
    "qwen2.5-1.5b": _qwen2(28, 1536, 8960, 12, 2, 151936, True),
    "qwen2.5-3b": _qwen2(36, 2048, 11008, 16, 2, 151936, True),
    "qwen2.5-7b": _qwen2(28, 3584, 18944, 28, 4, 152064, False),
    "qwen2.5-14b": _qwen2(48, 5120, 13824, 40, 8, 152064, False),
    "qwen2.5-32b": _qwen2(64, 5120, 27648, 40, 8, 152064, False),
    "qwen2.5-72b": _qwen2(80, 8192, 29568, 64, 8, 152064, False),
    "qwen3-0.6b": _qwen3(28, 1024, 3072, 16, True),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, 16, True),
    "qwen3-4b": _qwen3(36, 2560, 9728, 32, True),
    "qwen3-8b": _qwen3(36, 4096, 12288, 32, False),
    "qwen3-14b": _qwen3(40, 5120, 17408, 40, False),
    "qwen3-32b": _qwen3(64, 5120, 25600, 64, False),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
}


class Attention(nn.Module):
    """Causal; every ``heads / kv_heads`` query heads share one key and value head."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.head_size = s.head_size or s.width // s.heads
        self.grouped = s.heads != s.kv_heads
        self.query = nn.Linear(s.width, s.heads * self.head_size, bias=s.qkv_bias)
        self.key = nn.Linear(s.width, s.kv_heads * self.head_size, bias=s.qkv_bias)
        self.value = nn.Linear(s.width, s.kv_heads * self.head_size, bias=s.qkv_bias)
        self.out = nn.Linear(s.heads * self.head_size, s.width, bias=bool(s.positions))
        self.query_norm, self.key_norm = (nn.RMSNorm(self.head_size) if s.qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x_BTC: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.view(*y.shape[:2], -1, self.head_size).transpose(1, 2)

        q, k = self.query_norm(split(self.query(x_BTC))), self.key_norm(split(self.key(x_BTC)))
        mixed = F.scaled_dot_product_attention(q, k, split(self.value(x_BTC)), is_causal=True, enable_gqa=self.grouped)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(s.width, s.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(s.hidden, s.width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x_BTC)) * self.up(x_BTC))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = _norm(s), _norm(s)
        self.attention = Attention(s)
        self.feed_forward: nn.Module = GatedFeedForward(s)
        if s.positions:
            up, down = nn.Linear(s.width, s.hidden), nn.Linear(s.hidden, s.width)
            self.feed_forward = nn.Sequential(up, nn.GELU(approximate="tanh"), down)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x = x_BTC + self.attention(self.attention_norm(x_BTC))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Decoder(nn.Module):
    """Maps int64 tokens ``(B, T)`` to logits ``(B, T, vocabulary)``."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.positions = nn.Embedding(s.positions, s.width) if s.positions else None
        self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = _norm(s)
        self.head = nn.Linear(s.width, s.vocabulary, bias=False)
        if s.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x = self.embedding(tokens_BT)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens_BT.shape[1]]
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def _norm(s: Shape) -> nn.Module:
    return nn.LayerNorm(s.width) if s.positions else nn.RMSNorm(s.width)
