"""Known mistakes in when a step is made, and of what."""

from __future__ import annotations

from inbackward.judging.mistakes.gradients import NotStepped
from inbackward.judging.mistakes.steps import SteppedByForeignBackward, SteppedEachBackward, SteppedTwice
from inbackward.judging.what_if import WhatIf, accumulates, does, has_event
from inbackward.scenario import ForeignBackward

MISTAKES = (
    WhatIf(
        id="parameter-never-stepped",
        sentence="never updates {which}",
        mend="see that every parameter of every group has its hook, and that the hook steps that one",
        page="plain",
        applies=lambda evidence: bool(evidence.still),
        builds=does(NotStepped),
        still=True,
    ),
    WhatIf(
        id="update-skipped",
        sentence="leaves an update out",
        mend="see that the hook steps at every gradient that ends an iteration",
        page="plain",
        builds=does(NotStepped),
        when="sometimes",
    ),
    WhatIf(
        id="stepped-twice",
        sentence="makes two steps on the same gradient",
        mend="step once an iteration: in the hook, or in step(), and one hook a parameter",
        page="extra-step-calls",
        builds=does(SteppedTwice),
    ),
    WhatIf(
        id="stepped-each-micro-batch",
        sentence="makes a step at every backward of an iteration",
        mend="let the gradient add up, and step at the last backward",
        page="accumulation",
        applies=accumulates,
        builds=does(SteppedEachBackward),
        apart=False,
    ),
    WhatIf(
        id="stepped-by-foreign-backward",
        sentence="trains in a backward that is not to train",
        mend="step in the backward of the training loss alone; see Implementation.pause",
        page="foreign-backward",
        applies=has_event(ForeignBackward),
        builds=does(SteppedByForeignBackward),
        when="event",
    ),
)
