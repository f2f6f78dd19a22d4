"""Several runs of the distributed recipe on the ranks of one torchrun, whose start costs more than a short run.

torchrun --nproc-per-node 2 several_runs.py EXAMPLES '[{"argv": ["--out", ...], "fault": null}, ...]'
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch.distributed as dist


def not_told(optimizer: Any, model: Any) -> None:
    """An optimizer that would step with the gradients of its own rank."""


def not_loaded(path: Any, *parts: Any) -> int:
    """A resume that leaves the model and the optimizer as they were built."""
    return 2


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import finetune_distributed as recipe

    right = recipe.PARALLEL["ddp"], recipe.load, dist.init_process_group
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torchruns = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, is_master=False)
    for i, run in enumerate(json.loads(sys.argv[2])):
        recipe.PARALLEL["ddp"] = replace(right[0], tell=not_told) if run["fault"] == "not-told" else right[0]
        recipe.load = not_loaded if run["fault"] == "not-loaded" else right[1]
        keys = dist.PrefixStore(f"run-{i}", torchruns)  # else a rank finds the address that it had in the run before
        dist.init_process_group = partial(right[2], store=keys, rank=rank, world_size=ranks)
        recipe.main(run["argv"])


if __name__ == "__main__":
    main()
