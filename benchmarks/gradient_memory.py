"""The most bytes of gradients that exist at once, over iterations: the plain optimizer against the class.

    python benchmarks/gradient_memory.py [--iterations 50]

Every gradient's storage is followed from its accumulation until nobody holds it (`GradientWatch`, as the requirement
`gradient-peak` does it). Figures are in units of the largest single gradient; "later" is the peak of the last ten
iterations, which shows growth. Each way to train has a limit, and the command fails where it is exceeded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from benchmarks.step_time import Transformer, plain_clipped

from inbackward import OptimizerInBackward
from inbackward.training.watching import GradientWatch

SHAPES = {"15 M parameters": (4096, 384, 7), "12 layers, matrices alike": (64, 32, 12)}
Train = Callable[[Transformer], Callable[[], object]]


def ours(max_norm: float | None = None, micro_batches: int = 1, bucket_bytes: int | None = None) -> Train:
    def train(model: Transformer) -> Callable[[], object]:
        optimizer = OptimizerInBackward(model.parameters(), torch.optim.AdamW, bucket_bytes=bucket_bytes)

        def iterate() -> None:
            for _ in range(micro_batches - 1):
                with optimizer.no_step():
                    optimizer.backward(model.loss())
            optimizer.backward(model.loss(), max_norm=max_norm)
            optimizer.step()
            optimizer.zero_grad()

        return iterate

    return train


WAYS: dict[str, tuple[Train, float]] = {
    "plain": (plain_clipped, float("inf")),
    "OptimizerInBackward": (ours(), 2.0),
    "  bucket_bytes=0": (ours(bucket_bytes=0), 1.02),
    "  max_norm=1.0, two passes": (ours(max_norm=1.0), 2.0),
    "  max_norm=1.0, bucket_bytes=0": (ours(max_norm=1.0, bucket_bytes=0), 1.02),
    "  max_norm=1.0, 2 micro-batches": (ours(max_norm=1.0, micro_batches=2), float("inf")),
}


def peaks(train: Train, shape: tuple[int, int, int], iterations: int) -> tuple[float, float, float]:
    """The peak of the first ten iterations and of the last ten, and all gradients, in units of the largest."""
    torch.manual_seed(0)
    model = Transformer(*shape)
    watch = GradientWatch(model.parameters(), copies=False)  # the norms of two passes are no copies
    iterate = train(model)
    seen = []
    for _ in range(iterations):
        watch.reset()
        iterate()
        seen.append(watch.peak / watch.largest)
    return max(seen[:10]), max(seen[-10:]), watch.total / watch.largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=50)
    options = parser.parse_args()
    exceeded = False
    for name, shape in SHAPES.items():
        for way, (train, limit) in WAYS.items():
            first, later, everything = peaks(train, shape, options.iterations)
            exceeded |= max(first, later) > limit or later > first
            print(f"{name}: {way:32} {first:6.2f}, later {later:6.2f}, of {everything:6.2f} in all (limit {limit})")
    print("a limit is exceeded" if exceeded else "within all limits")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
