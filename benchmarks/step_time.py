"""What an iteration costs with the step inside the backward, over the plain optimizer with the same kernel.

    python benchmarks/step_time.py [--rounds 60] [--only fused]

Whole iterations of AdamW (forward, backward, step, zero_grad), each way on a model of its own, in turn within one
process; medians, and the median over rounds of the ratio to the plain optimizer's iteration in the same round. Models:
15 M parameters; 148 tiny tensors, where all there is to pay is overhead, once with the embedding the largest, as in
most models, and once with all matrices alike, where the bound on what may wait makes a bucket of nearly each.

Beside the class stand its idea bare, buckets and nothing that checks anything, in twenty lines: the least that is to be
paid; and what people use today, where it is installed (`pip install torch-optimi torchtune==0.6.1`): torchtune's hook
functions, its class re-created, and optimi's gradient release, whose ratio is to optimi's own AdamW. The ratio of
clipping by two passes is to the plain optimizer with `clip_grad_norm_`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from inbackward import OptimizerInBackward
from inbackward.measure import in_turn, quartiles, ratio

KERNELS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
}
MODELS = {
    "15 M parameters": (4096, 384, 7),
    "148 tiny tensors": (1024, 32, 12),
    "148 tiny tensors, none of them larger than others": (64, 32, 12),
}
LIMITS = {"fused": (0.92, 1.05), "for-loop": (1.00, 1.08), "foreach": (1.00, 1.08)}
Iteration = Callable[[], None]


class Transformer(nn.Module):
    """Twelve tensors a layer, and four."""

    def __init__(self, vocabulary: int, dim: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.tokens = torch.randint(0, vocabulary, (2, 33))

    def loss(self) -> Tensor:
        x = self.embedding(self.tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())


def usual_loop(model: Transformer, optimizer: torch.optim.Optimizer) -> Iteration:
    def iterate() -> None:
        model.loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return iterate


def plain(model: Transformer, **kernel: bool) -> Iteration:
    return usual_loop(model, torch.optim.AdamW(model.parameters(), **kernel))


def ours(model: Transformer, bucket_bytes: int | None = None, **kernel: bool) -> Iteration:
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, bucket_bytes=bucket_bytes, **kernel)
    return usual_loop(model, optimizer)


class BareBuckets:
    """Steps what is ready when it has the bytes of the largest gradient, and at the end; knows one group."""

    def __init__(self, parameters: list[nn.Parameter], **kernel: bool) -> None:
        self._optimizer = torch.optim.AdamW(parameters, **kernel)
        self._groups = self._optimizer.param_groups
        self._limit = max(p.nbytes for p in parameters)
        self._ready: list[Tensor] = []
        self._bytes = 0
        self._queued = False
        for p in parameters:
            p.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, p: Tensor) -> None:
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._ready.append(p)
        self._bytes += p.nbytes
        if self._bytes >= self._limit:
            self._use()

    def _end(self) -> None:
        self._queued = False
        if self._ready:
            self._use()

    def _use(self) -> None:
        self._optimizer.param_groups = [{**self._groups[0], "params": self._ready}]
        self._optimizer.step()
        self._optimizer.param_groups = self._groups
        for p in self._ready:
            p.grad = None
        self._ready, self._bytes = [], 0


def bare(model: Transformer, **kernel: bool) -> Iteration:
    held = BareBuckets(list(model.parameters()), **kernel)

    def iterate() -> None:
        assert held
        model.loss().backward()

    return iterate


def plain_clipped(model: Transformer, **kernel: bool) -> Iteration:
    optimizer = torch.optim.AdamW(model.parameters(), **kernel)

    def iterate() -> None:
        model.loss().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return iterate


def two_passes(model: Transformer, **kernel: bool) -> Iteration:
    optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, **kernel)

    def iterate() -> None:
        optimizer.backward(model.loss(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()

    return iterate


def torchtune_functions(model: Transformer, **kernel: bool) -> Iteration:
    from torchtune.training import create_optim_in_bwd_wrapper, register_optim_in_bwd_hooks

    optimizers = {p: torch.optim.AdamW([p], **kernel) for p in model.parameters()}
    register_optim_in_bwd_hooks(model, optimizers)
    held = create_optim_in_bwd_wrapper(model, optimizers)

    def iterate() -> None:
        assert held
        model.loss().backward()

    return iterate


def torchtune_class(model: Transformer, **kernel: bool) -> Iteration:
    """What torchtune's `OptimizerInBackward` (its pull request 2719) does in an iteration."""

    def hook(optimizer: torch.optim.Optimizer, p: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(partial(hook, torch.optim.AdamW([p], **kernel)))
    return lambda: model.loss().backward()


def optimi_plain(model: Transformer, **kernel: bool) -> Iteration:
    import optimi

    return usual_loop(model, optimi.AdamW(model.parameters(), lr=1e-3, foreach=kernel.get("foreach", False)))


def optimi_release(model: Transformer, **kernel: bool) -> Iteration:
    import optimi

    optimizer = optimi.AdamW(model.parameters(), lr=1e-3, gradient_release=True)
    optimi.prepare_for_gradient_release(model, optimizer)
    return usual_loop(model, optimizer)


WAYS: dict[str, Callable[..., Iteration]] = {
    "plain": plain,
    "OptimizerInBackward": ours,
    "  one at a time": partial(ours, bucket_bytes=0),
    "  the idea, bare": bare,
    "plain, clipped": plain_clipped,
    "clipped by two passes": two_passes,
    "torchtune's functions": torchtune_functions,
    "torchtune's class": torchtune_class,
    "optimi, plain": optimi_plain,
    "optimi, gradient release": optimi_release,
}
BASES = {"clipped by two passes": "plain, clipped", "optimi, gradient release": "optimi, plain"}


def available(kernel: dict[str, bool], shape: tuple[int, int, int]) -> dict[str, Iteration]:
    """The ways that are installed, each over a model of its own with the same weights."""
    made: dict[str, Iteration] = {}
    for name, way in WAYS.items():
        if name.startswith("optimi") and kernel.get("fused"):
            continue  # it has no fused kernel for a CPU
        torch.manual_seed(0)
        try:
            made[name] = way(Transformer(*shape), **kernel)
        except ImportError as missing:
            print(f"  {name}: {missing}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", choices=KERNELS)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.rounds} rounds")
    for kernel in [options.only] if options.only else KERNELS:
        for (model, shape), limit in zip_longest(MODELS.items(), LIMITS[kernel]):
            print(f"{kernel}, {model}" + (f" (aim: {limit:.2f})" if limit else ""))
            seconds = in_turn(available(KERNELS[kernel], shape), options.rounds)
            for name, times in seconds.items():
                base = seconds[BASES.get(name, "plain")]
                print(f"  {name:26} {1e3 * quartiles(times).median:8.2f} ms   {ratio(base, times).median:5.2f}")


if __name__ == "__main__":
    main()
