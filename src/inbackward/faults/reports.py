"""Public reports of optimizers in backward that were wrong: where, and what happened, in our words.

Each is a kind of mistake; the faults that name its number are of that kind.
"""

from __future__ import annotations

REPORTS: dict[int | str, tuple[str, str]] = {
    1: ("torchtune PR 2719", "a scheduler changes the outer groups, the inner optimizers keep the constructor's lr"),
    2: ("torchtune PR 2719", "group dicts are unhashable; betas and momentum cannot cycle; a duplicate gets two hooks"),
    3: ("torchtune PR 2719", "a plain optimizer's checkpoint and its own do not load into each other"),
    4: ("torchtune PR 2719", "torch.distributed.checkpoint finds no state, and says nothing"),
    5: ("torchtune#2145", "the loss is NaN at the second iteration"),
    6: ("torchtune#2825, pytorch PR 180666", "CPU offload: the hook reads pinned memory before the copy has landed"),
    7: ("torchtune PR 2733", "gradients are not divided by the token count; AdamW hides it"),
    8: ("torchtune#2360", "resuming crashes in the distributed recipe"),
    9: ("torchtune#1934, torchtitan#990", "clip_grad_norm_ after backward sees no gradients and clips nothing"),
    10: ("torchtitan PR 705", "hooks close over a loop variable: only the last part's optimizers live"),
    11: ("torchtitan", "as many optimizers as parameters are asserted, and one is frozen"),
    12: ("musubi-tuner#679", "hooks step before DDP's all-reduce: each rank applies its own gradient"),
    13: ("pytorch#95403, #111834", "DDP on gloo and CUDA differs at the first iteration with convolutions"),
    14: ("seen", "hooks registered before fully_shard never fire"),
    15: ("torchrec#4268", "_apply_optimizer_in_backward does nothing for FSDP2 parameters, in silence"),
    16: ("pytorch#81296", "a weight shared by reentrant checkpointed segments is stepped twice"),
    17: ("pytorch#124523, GaLore#78, verl#1295", "a step at every micro-batch"),
    18: ("GaLore#62, APOLLO#14", "the schedule counts micro-batches or hooks"),
    19: ("transformers#30371, #31707, #34559", "schedulers by the parameter: warm-up lost, the lr shown is not used"),
    20: ("Q-GaLore#13", "parameters never update: nothing calls their hooks"),
    21: ("sd-scripts#1344", "training goes on after resume, and weights do not move"),
    22: ("sd-scripts#1834", "it trains, and the adapter has no effect"),
    23: ("accelerate#3462", "scaled gradients are applied first, then the scaler complains"),
    24: ("ao#959", "what schedulers act on is not what updates"),
    25: ("ao#1209", "frozen parameters crash hook registration"),
    26: ("FBGEMM#3597", "the state dict has the moments but neither lr nor decay"),
    27: ("GaLore#35, torchtune PR 527", "optimizer state is not in the checkpoint"),
    28: ("ms-swift#10161", "an object in the state breaks torch.load(weights_only=True)"),
    29: ("optimi", "the saved state contains the parameters themselves"),
    30: ("pytorch#164929", "reading the state dict before the first step makes state and counts a step"),
    31: ("pytorch#196083", "a snapshot in memory changes at the next step"),
    32: ("NVIDIA/apex#766", "after load_state_dict the scheduler has no effect"),
    33: ("pytorch#118435, #112446, #139742", "hooks under torch.compile find no gradient"),
    34: ("seen", "copied together, unfrozen later or added later, a parameter has no hook"),
    35: ("seen", "a cast after construction loses hooks on the accumulation node"),
    36: ("seen", "two backwards over one graph: the second meets parameters that have moved"),
    "36a": ("seen", "a generator's loss steps the discriminator that it flows through"),
    "36b": ("seen", "a segment recomputed late reads parameters that are already stepped"),
    "36c": ("seen", "the second backward of a two-pass clip under DDP skips the all-reduce"),
    37: ("pytorch#87397", "shared parameters raised, or overrode each other"),
    38: ("optimi#5", "memory grows over iterations"),
    39: ("DeepSpeed#7985", "the last micro-batch's gradient is left out of the reduction"),
    40: ("torchtune DPO recipe", "None.zero_grad() before the first step: there is no optimizer yet"),
    41: ("pytorch's FSDP2 memory test", "its bound is 10^12 times too large, so it cannot fail"),
    42: ("torchtune's test_memory", "its comparison returns after the first entry"),
    43: ("kohya, OneTrainer", "each parameter's norm is clipped where a global clip was asked"),
    44: ("axolotl#1598", "it dies on a torch without register_post_accumulate_grad_hook"),
}

WITHOUT_FAULT: dict[int | str, str] = {
    6: "the copy takes time on a GPU only; reads-the-copy-before has its effect, a gradient that is one iteration late",
    13: "gloo with CUDA needs a GPU",
    41: "about a test; each check here has a fault that makes it fail",
    42: "about a test; reports count the tensors that were compared",
    44: "this package needs a torch that has the hook",
}
