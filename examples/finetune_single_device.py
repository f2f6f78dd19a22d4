"""Train a small Llama on real text, on one device; the optimizer steps in `step()` or inside `backward()`.

    python examples/finetune_single_device.py --out run
    python examples/finetune_single_device.py --out usual --optimizer plain
    python examples/finetune_single_device.py --out run --resume run/step-100.pt --optimizer plain
    python examples/finetune_single_device.py --out mine --text book.txt --micro-batches 4 --max-norm 0.5

The numbers of both optimizers are the same, bit for bit: compare their `losses.csv`. A checkpoint of one resumes with
the other. With one micro-batch a step, `in-backward` never holds all gradients; with more, it must keep them until the
total norm is known, as the usual loop does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from finetuning import MODEL, OPTIMIZERS, Losses, Parser, check_unfinished, fail, loss_of, warm_up_then_cosine

from inbackward.scenario.models import build_model


def main(argv: Iterable[str] | None = None) -> None:
    args = Parser(__doc__).parse(argv, checkpoint="")
    model = build_model(MODEL, args.seed, torch.float32).to(args.device)
    optimizer = OPTIMIZERS[args.optimizer](model.parameters(), lr=args.lr)  # the line that --optimizer touches
    scheduler = warm_up_then_cosine(optimizer, args.steps)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    done = load(args.resume, parts) if args.resume else 0
    check_unfinished(args, done)
    losses = Losses(args.out, done)

    for step in range(done + 1, args.steps + 1):
        loss = torch.zeros((), device=args.device)
        for micro_batch in range(args.micro_batches - 1):
            with optimizer.no_step():
                part = loss_of(model, args, step, micro_batch)
                part.backward()
            loss += part.detach()
        part = loss_of(model, args, step, args.micro_batches - 1)
        norm = optimizer.backward(part, max_norm=args.max_norm)
        loss += part.detach()
        losses.add(step, loss.item(), scheduler.get_last_lr()[0], norm.item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % args.save_every == 0 or step == args.steps:
            save(args.out / f"step-{step}.pt", step, parts)
            losses.write()


def save(path: Path, step: int, parts: dict[str, Any]) -> None:
    """Beside its place first, so that what stands there is whole."""
    unfinished = path.with_suffix(".unfinished")
    torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, unfinished)
    os.replace(unfinished, path)


def load(path: Path, parts: dict[str, Any]) -> int:
    """Load all parts; returns the steps that they have done."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        return int(saved["step"])
    except Exception as error:
        fail(f"--resume {path} is no checkpoint of this model: {type(error).__name__}: {str(error)[:200]}")


if __name__ == "__main__":
    main()
