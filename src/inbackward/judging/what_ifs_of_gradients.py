"""Known mistakes in what reaches the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from inbackward.judging.evidence import Evidence
from inbackward.judging.mistakes.gradients import (
    ClippedApart,
    DividedAgain,
    FirstMicroBatch,
    LastMicroBatch,
    LateGradient,
    NonFiniteReplaced,
    NonFiniteSkipped,
    NotClipped,
    OwnGradient,
    ScaledGradient,
    ScaleKept,
    SummedGradient,
    UnusedAsZeros,
    ZeroSkipped,
)
from inbackward.judging.what_if import Build, WhatIf, accumulates, clips, does, has_event, several_groups, some_unused
from inbackward.scenario import Freeze, NonFinite, Scenario, Unfreeze
from inbackward.training import Intervention


def clipped_apart(by_group: bool) -> Callable[[Evidence], Iterable[Build]]:
    def builds(evidence: Evidence) -> Iterable[Build]:
        clip = evidence.scenario.clip
        return (partial(ClippedApart, clip.max_norm, by_group),) if clip else ()

    return builds


def _nothing_frozen(scenario: Scenario) -> Scenario:
    events = tuple(e for e in scenario.events if not isinstance(e, (Freeze, Unfreeze)))
    return scenario.with_(frozen=(), events=events)


MISTAKES = (
    WhatIf(
        id="unused-stepped-on-zeros",
        sentence="steps parameters that no gradient reached as if it were zeros",
        mend="leave a parameter alone whose .grad is None: momentum and decay must not go on",
        page="unused",
        applies=some_unused,
        builds=does(UnusedAsZeros),
    ),
    WhatIf(
        id="zero-gradient-skipped",
        sentence="takes a gradient of zeros for none",
        mend="ask whether .grad is None, not whether it has a non-zero element",
        page="gradient-scale",
        builds=does(ZeroSkipped),
    ),
    WhatIf(
        id="last-micro-batch-only",
        sentence="steps on the gradient of the last micro-batch alone",
        mend="add up what every micro-batch leaves in .grad",
        page="accumulation",
        applies=accumulates,
        builds=does(LastMicroBatch),
    ),
    WhatIf(
        id="first-micro-batch-only",
        sentence="steps on the gradient of the first micro-batch alone",
        mend="add up what every micro-batch leaves in .grad",
        page="accumulation",
        applies=accumulates,
        builds=does(FirstMicroBatch),
    ),
    WhatIf(
        id="averaged-again",
        sentence="divides by the number of micro-batches once more",
        mend="the loss is divided already: add gradients up as they come",
        page="accumulation",
        applies=accumulates,
        builds=does(DividedAgain),
    ),
    WhatIf(
        id="micro-batches-summed",
        sentence="steps on the sum over micro-batches, and not on their mean",
        mend="keep the division that the loss has, and hand it on to the update",
        page="accumulation",
        applies=accumulates,
        builds=does(partial(DividedAgain, True)),
    ),
    WhatIf(
        id="clip-dropped",
        sentence="does not clip",
        mend="compute the norm over all gradients before the first update",
        page="global-clip",
        applies=clips,
        builds=does(NotClipped),
        apart=False,
    ),
    WhatIf(
        id="clip-per-parameter",
        sentence="clips each parameter by its own norm",
        mend="compute the norm over all gradients before the first update",
        page="global-clip",
        applies=clips,
        builds=clipped_apart(by_group=False),
        apart=False,
    ),
    WhatIf(
        id="clip-per-group",
        sentence="clips each group by its own norm",
        mend="compute the norm over the gradients of all groups",
        page="global-clip",
        applies=lambda evidence: clips(evidence) and several_groups(evidence),
        builds=clipped_apart(by_group=True),
        apart=False,
    ),
    WhatIf(
        id="frozen-trained",
        sentence="trains what is frozen",
        mend="leave requires_grad as it is, or put it back",
        page="frozen",
        applies=lambda evidence: bool(evidence.scenario.frozen) or has_event(Freeze)(evidence),
        builds=does(Intervention),
        on=_nothing_frozen,
        when="event",
    ),
    WhatIf(
        id="hooks-not-seen",
        sentence="steps on the gradient as it was before the user's hooks changed it",
        mend="take the gradient in a post-accumulate hook, when the user's tensor hooks have run",
        page="gradient-hooks",
        applies=lambda evidence: any(hook.kind != "watch" for hook in evidence.scenario.hooks),
        builds=does(Intervention),
        on=lambda scenario: scenario.with_(hooks=()),
        when="event",
    ),
    WhatIf(
        id="non-finite-replaced",
        sentence="puts numbers in the place of NaN or infinity",
        mend="let them through: the plain optimizer does",
        page="non-finite",
        applies=lambda evidence: has_event(NonFinite)(evidence) or evidence.scenario.dtype == "float16",
        builds=does(*(partial(NonFiniteReplaced, g, i) for g in (True, False) for i in (True, False))),
    ),
    WhatIf(
        id="non-finite-skipped",
        sentence="makes no update where a gradient is not finite",
        mend="skip steps under a GradScaler only",
        page="non-finite",
        applies=lambda evidence: has_event(NonFinite)(evidence) or evidence.scenario.dtype == "float16",
        builds=does(partial(NonFiniteSkipped, False), partial(NonFiniteSkipped, True)),
    ),
    WhatIf(
        id="loss-scale-kept",
        sentence="does not take the loss scale out of the gradient",
        mend="divide the gradient by the scaler's factor before the update",
        page="grad-scaler",
        applies=lambda evidence: evidence.scenario.scaler is not None,
        builds=does(partial(ScaleKept, False), partial(ScaleKept, True)),
    ),
    WhatIf(
        id="gradient-not-reduced",
        sentence="steps on the gradient of each rank's own data",
        mend="step when the gradient has been reduced over ranks",
        page="ddp",
        applies=lambda evidence: evidence.scenario.strategy == "ddp",
        builds=does(OwnGradient),
        when="event",
        apart=False,
    ),
    WhatIf(
        id="gradient-summed",
        sentence="steps on the sum over ranks, and not on their mean",
        mend="divide by the number of ranks once",
        page="gradient-scale",
        applies=lambda evidence: evidence.scenario.parallel.ranks > 1,
        builds=does(SummedGradient),
    ),
    WhatIf(
        id="gradient-late",
        sentence="steps on the gradient of the iteration before",
        mend="step when the gradient is there, not at the next call",
        page="plain",
        builds=does(partial(LateGradient, True), partial(LateGradient, False)),
    ),
    WhatIf(
        id="sign-flipped",
        sentence="steps on the gradient with the other sign",
        mend="subtract the update, or see whether maximize is set",
        page="plain",
        builds=does(partial(ScaledGradient, -1.0)),
    ),
)
