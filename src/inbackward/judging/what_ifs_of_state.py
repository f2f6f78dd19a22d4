"""Known mistakes in the optimizer's memory."""

from __future__ import annotations

from functools import partial

import torch

from inbackward.judging.evidence import Evidence
from inbackward.judging.mistakes.gradients import RoundedGradient
from inbackward.judging.mistakes.state import (
    CountedUpdates,
    CountersLost,
    Exchanged,
    KeptState,
    Lost,
    OneCounter,
    RoundedParameter,
    RoundedState,
    UnusedForgotten,
)
from inbackward.judging.what_if import WhatIf, at_load, does, has_event, loads, loses_digits, some_frozen
from inbackward.scenario import Recreate


def _rotated(names: list[str]) -> list[str]:
    return names[1:] + names[:1]


def _order(evidence: Evidence) -> tuple[str, ...]:
    """That of the updates, as the candidate's counters have it; where they are not shown, that of a backward."""
    state = evidence.candidate.records[evidence.first].state
    backwards = list(evidence.reference.initial.parameters)[::-1]
    counts = {name: float(state.get(name, {}).get("step", torch.zeros(()))) for name in backwards}
    return tuple(sorted(backwards, key=lambda name: counts[name]))


MISTAKES = (
    WhatIf(
        id="moments-lost-at-load",
        sentence="loses the moments at a load",
        mend="load state as it was saved, for every parameter",
        page="resume",
        applies=loads,
        builds=at_load(lambda at: Lost(at, "moments")),
        when="event",
    ),
    WhatIf(
        id="second-moments-lost-at-load",
        sentence="loses the second moments at a load",
        mend="load every entry of a parameter's state",
        page="resume",
        applies=loads,
        builds=at_load(lambda at: Lost(at, "second-moments")),
        when="event",
    ),
    WhatIf(
        id="first-moments-lost-at-load",
        sentence="loses the first moments at a load",
        mend="load every entry of a parameter's state",
        page="resume",
        applies=loads,
        builds=at_load(lambda at: Lost(at, "first-moments")),
        when="event",
    ),
    WhatIf(
        id="maximum-lost-at-load",
        sentence="loses amsgrad's running maximum at a load",
        mend="load every entry of a parameter's state",
        page="resume",
        applies=loads,
        builds=at_load(lambda at: Lost(at, "maximum")),
        when="event",
    ),
    WhatIf(
        id="step-counter-lost-at-load",
        sentence="loses the step counter at a load",
        mend="save and load the counter with the moments: bias correction depends on it",
        page="resume",
        applies=loads,
        builds=at_load(lambda at: Lost(at, "step")),
        when="event",
    ),
    WhatIf(
        id="group-counters-lost-at-load",
        sentence="loses the counters in its groups at a load",
        mend="save and load all entries of param_groups",
        page="resume",
        applies=loads,
        builds=at_load(CountersLost),
        when="event",
    ),
    WhatIf(
        id="state-lost-at-load",
        sentence="loses all its state at a load",
        mend="load the state into the optimizers that step, under the parameters that they step",
        page="resume",
        applies=loads,
        builds=at_load(lambda at: Lost(at, "everything")),
        when="event",
    ),
    WhatIf(
        id="state-of-another-parameter",
        sentence="gives parameters the state of others of the same shape at a load",
        mend="number parameters in the order of the groups, in saving and in loading",
        page="resume-from-plain",
        applies=loads,
        builds=lambda evidence: tuple(
            partial(Exchanged, evidence.loads(), order) for order in (lambda names: names[::-1], _rotated, sorted)
        ),
        when="event",
    ),
    WhatIf(
        id="state-in-bfloat16-at-load",
        sentence="rounds state to bfloat16 at a load",
        mend="keep the dtype of every tensor in saving and in loading",
        page="resume",
        applies=loads,
        builds=at_load(lambda at: RoundedState(torch.bfloat16, at)),
        when="event",
    ),
    WhatIf(
        id="state-kept",
        sentence="goes on with the old optimizer's state where a new one is built",
        mend="take the old hooks off, and build state anew",
        page="re-created",
        applies=has_event(Recreate),
        builds=does(KeptState),
        when="event",
    ),
    WhatIf(
        id="unused-state-lost",
        sentence="loses the state of what no gradient reached",
        mend="keep state for as long as its parameter is in a group",
        page="unused",
        applies=some_frozen,
        builds=does(UnusedForgotten),
    ),
    WhatIf(
        id="counter-shared",
        sentence="has one step counter for all parameters",
        mend="count the steps of every parameter for itself",
        page="unused",
        builds=lambda evidence: (OneCounter, partial(CountedUpdates, _order(evidence))),
    ),
    *(
        WhatIf(
            id=f"{what}-in-{name}",
            sentence=f"rounds {words} to {name}",
            mend=f"keep {words} in the dtype of the parameter",
            page=page,
            applies=loses_digits(dtype),
            builds=does(partial(to, dtype)),
        )
        for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16), ("float32", torch.float32))
        for what, words, page, to in (
            ("state", "the state", "plain", RoundedState),
            ("gradient", "the gradient", "autocast", RoundedGradient),
            ("parameter", "the parameter", "dtype", RoundedParameter),
        )
    ),
)
