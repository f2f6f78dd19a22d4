"""Models that are simulated and run here: what a real one has, in kilobytes."""

from __future__ import annotations

from torch import Tensor, nn

from inbackward.measure.architectures import Decoder, Shape


def llama() -> nn.Module:
    return Decoder(Shape(layers=3, width=32, hidden=64, heads=4, kv_heads=2, vocabulary=64))


def gpt2() -> nn.Module:
    return Decoder(
        Shape(layers=2, width=32, hidden=64, heads=4, kv_heads=4, vocabulary=64, tied=True, qkv_bias=True, positions=32)
    )


class Odd(nn.Module):
    """Frozen and unused parameters, buffers that change, a layer that stands twice in a sequence, and no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        shared = nn.Linear(16, 16)
        self.layers = nn.Sequential(shared, nn.Tanh(), nn.Linear(16, 16), shared)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 64)
        self.unused = nn.Linear(16, 16)
        self.embedding.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.head(self.norm(self.layers(self.embedding(tokens)).transpose(1, 2)).transpose(1, 2))
        return x


def odd() -> nn.Module:
    return Odd()
