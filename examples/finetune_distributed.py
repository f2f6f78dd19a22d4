"""Train a small Llama on real text across ranks, by DDP or FSDP2; the step is in `step()` or inside `backward()`.

    torchrun --nproc-per-node 2 examples/finetune_distributed.py --out run --parallel fsdp2
    torchrun --nproc-per-node 2 examples/finetune_distributed.py --out usual --parallel fsdp2 --optimizer plain
    torchrun --nproc-per-node 2 examples/finetune_distributed.py --out run --resume run/step-100 --optimizer plain

The numbers of both optimizers are the same, bit for bit: compare their `losses.csv`. A checkpoint of one resumes with
the other, and under the other kind of parallelism. With one micro-batch a step, `in-backward` never holds all gradients
(under DDP, beside those of its buckets, and after the first step); with more, it must keep them until the total norm is
known, as the usual loop does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from finetuning import MODEL, OPTIMIZERS, Losses, Parser, check_unfinished, fail, loss_of, warm_up_then_cosine
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from inbackward.scenario.models import build_model
from inbackward.training.parallel import whole


def shard(model: Any) -> Any:
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for layer in (*model.blocks, model):
        fully_shard(layer, mesh=mesh)
    return model


@contextmanager
def not_reduced(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


@dataclass(frozen=True)
class Parallel:
    """How a model is spread, how its gradients wait for those of later micro-batches, what its optimizer must know."""

    spread: Callable[[Any], Any]
    accumulating: Callable[[Any], AbstractContextManager[None]]
    tell: Callable[[Any, Any], None]


PARALLEL = {
    "ddp": Parallel(
        DistributedDataParallel, DistributedDataParallel.no_sync, lambda optimizer, model: optimizer.register_ddp(model)
    ),
    "fsdp2": Parallel(shard, not_reduced, lambda optimizer, model: None),
}


def main(argv: Iterable[str] | None = None) -> None:
    parser = Parser(__doc__)
    parser.add_argument("--parallel", choices=PARALLEL, default="fsdp2")
    args = parser.parse(argv, checkpoint=".metadata")  # which is written last
    if "LOCAL_RANK" not in os.environ:
        parser.error("there are no ranks; start it by torchrun --nproc-per-node 2 examples/finetune_distributed.py")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    try:
        train(args, PARALLEL[args.parallel])
    finally:
        dist.destroy_process_group()


def train(args: Any, parallel: Parallel) -> None:
    model = parallel.spread(build_model(MODEL, args.seed, torch.float32).to(args.device))
    optimizer = OPTIMIZERS[args.optimizer](model.parameters(), lr=args.lr)  # the line that --optimizer touches
    parallel.tell(optimizer, model)
    scheduler = warm_up_then_cosine(optimizer, args.steps)
    done = load(args.resume, model, optimizer, scheduler) if args.resume else 0
    check_unfinished(args, done)
    losses, rank = Losses(args.out, done), dist.get_rank()

    for step in range(done + 1, args.steps + 1):
        loss = torch.zeros((), device=args.device)
        for micro_batch in range(args.micro_batches - 1):
            with parallel.accumulating(model), optimizer.no_step():
                part = loss_of(model, args, step, micro_batch, rank)
                part.backward()
            loss += part.detach()
        part = loss_of(model, args, step, args.micro_batches - 1, rank)
        norm = whole(optimizer.backward(part, max_norm=args.max_norm))
        loss += part.detach()
        dist.all_reduce(loss)
        losses.add(step, loss.item() / dist.get_world_size(), scheduler.get_last_lr()[0], norm.item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % args.save_every == 0 or step == args.steps:
            save(args.out / f"step-{step}", step, model, optimizer, scheduler)
            if rank == 0:
                losses.write()


def state(step: int, model: Any, optimizer: Any, scheduler: Any) -> dict[str, Any]:
    """What a checkpoint holds, under the same names whatever the optimizer and the parallelism are."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"step": step, "model": model_state, "optimizer": optimizer_state, "scheduler": scheduler.state_dict()}


def save(path: Path, step: int, *parts: Any) -> None:
    """All ranks write; what makes it a checkpoint comes last, and goes first where one is replaced."""
    (path / ".metadata").unlink(missing_ok=True)
    dcp.save(state(step, *parts), checkpoint_id=path)


def load(path: Path, model: Any, optimizer: Any, scheduler: Any) -> int:
    """Load all parts; returns the steps that they have done."""
    saved = state(0, model, optimizer, scheduler)
    try:
        dcp.load(saved, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    except (Exception, CheckpointException) as error:
        fail(f"--resume {path} is no checkpoint of this model: {type(error).__name__}: {str(error)[:200]}")
    return int(saved["step"])


if __name__ == "__main__":
    main()
