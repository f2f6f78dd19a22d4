"""What the doors are given by name: hooks, which are wrong under ddp and right under fsdp2, and what they say of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.ranks import by_hooks

hooks = replace(by_hooks.implementation, optimizers=[(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})], name="hooks")
declared = replace(hooks, unsupported={"plain@ddp": "hooks fire before the gradients are averaged"})
tracked = replace(hooks, expected_failures={"ddp": "issue 12"})
stale = replace(hooks, unsupported={"plain@fsdp2": "never tried"})
typo = replace(hooks, unsupported={"plain@dpp": "hooks fire before the gradients are averaged"})
