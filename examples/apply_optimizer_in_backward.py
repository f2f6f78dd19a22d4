"""``torch.distributed.optim._apply_optimizer_in_backward``: one optimizer a parameter, hung on the parameter itself.

The function is private to PyTorch, and in use: it hooks the node that accumulates a parameter's gradient, steps there
and sets the gradient to ``None``. ``implementation`` lets the suite check it, from the folder that holds ``examples``:

    inbackward verify examples.apply_optimizer_in_backward:implementation
    pytest --pyargs inbackward.suite -k optimizer_in_backward \\
        --optimizer-in-backward examples.apply_optimizer_in_backward:implementation

What cannot be done that way is declared, with the reason, here and in ``examples/one_optimizer_a_parameter.py``.
"""

from __future__ import annotations

from typing import Any

from examples.one_optimizer_a_parameter import UNSUPPORTED, load_state_dict, schedulers, state_dict
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward, _get_in_backward_optimizers
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from inbackward import Implementation
from inbackward.training import NotRun

NOT_CALLED = "fully_shard accumulates a sharded gradient itself, past the node that the hook sits on"


def build(
    model: nn.Module, groups: list[dict[str, Any]], optimizer_cls: Any, kwargs: dict[str, Any]
) -> list[Optimizer]:
    if isinstance(model, DistributedDataParallel):
        raise NotRun(
            "DistributedDataParallel takes these hooks over only where they are there before it, and makes a "
            "torch.Stream() for them, which a build of torch for CPUs alone cannot"
        )
    for group in groups:
        options = {key: value for key, value in group.items() if key != "params"}
        trainable = [p for p in group["params"] if p.requires_grad]  # a frozen one has no node to hook
        _apply_optimizer_in_backward(optimizer_cls, trainable, {**kwargs, **options})
    return _get_in_backward_optimizers(model)


implementation = Implementation(
    name="torch.distributed.optim._apply_optimizer_in_backward",
    build=build,
    scheduler=schedulers,
    state_dict=state_dict,
    load_state_dict=load_state_dict,
    unsupported={
        **UNSUPPORTED,
        **dict.fromkeys(("fsdp2", "hsdp", "cpu-offload", "fsdp2-tensor-parallel"), NOT_CALLED),
        "cast-or-move": "the hook sits on the node that accumulates the gradient, and a cast makes a new node",
    },
)
