"""Known mistakes with a number in them that is fitted to the run."""

from __future__ import annotations

from functools import partial

from inbackward.judging.mistakes.gradients import ScaledGradient
from inbackward.judging.mistakes.hyperparameters import Scaled
from inbackward.judging.what_if import WhatIf, uses

MISTAKES = (
    WhatIf(
        id="lr-scaled",
        sentence="has {k} times the learning rate",
        mend="use group['lr'] as it is",
        page="plain",
        fitted=partial(Scaled, "lr"),
    ),
    WhatIf(
        id="weight-decay-scaled",
        sentence="has {k} times the weight decay",
        mend="use group['weight_decay'] as it is",
        page="plain",
        applies=uses("weight_decay"),
        fitted=partial(Scaled, "weight_decay"),
    ),
    WhatIf(
        id="gradient-scaled",
        sentence="steps on {k} times the gradient",
        mend="see that the gradient is divided once: by micro-batches, by ranks, by a loss scale",
        page="gradient-scale",
        fitted=ScaledGradient,
    ),
)
