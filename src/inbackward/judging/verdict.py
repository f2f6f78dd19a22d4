"""The verdict of one scenario, and what it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from inbackward.scenario import Scenario
from inbackward.training import PATIENCE
from inbackward.wording import one_line, said

QUOTED = 400  # characters of an exception: a KeyError may hold a tensor


class Verdict(str, Enum):
    """What was found; the value is what reports print (contract §3)."""

    EQUIVALENT = "equivalent"
    WITHIN_NOISE = "equivalent-within-noise"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"
    NOT_EQUIVALENT = "not-equivalent"
    BROKEN = "broken"
    NOT_RUN = "not-run"

    def __str__(self) -> str:
        return self.value

    @property
    def holds(self) -> bool:
        """Whether the requirement is met."""
        return self in (Verdict.EQUIVALENT, Verdict.WITHIN_NOISE, Verdict.REFUSED)

    @property
    def fails(self) -> bool:
        """Whether the requirement is violated."""
        return self in (Verdict.NOT_EQUIVALENT, Verdict.BROKEN)


# From the worst to the best: a requirement's verdict is the worst of its scenarios'.
SEVERITY = (
    Verdict.BROKEN,
    Verdict.NOT_EQUIVALENT,
    Verdict.NOT_RUN,
    Verdict.UNSUPPORTED,
    Verdict.REFUSED,
    Verdict.WITHIN_NOISE,
    Verdict.EQUIVALENT,
)


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where the candidate first left the reference.

    Attributes:
        iteration: counted from 0; -1 is before the first.
        quantity: one of ``compare.QUANTITIES``, or the expectation that did not hold.
        noise_ratio: deviation over noise floor (design §4.2); ``None`` for what is compared exactly.
        max_abs, max_ulp, needed_rtol: the deviation itself; ``needed_rtol`` is the relative tolerance that would have
            let it pass. ``None`` where there are no two tensors to subtract.
        rank: the rank on which it is so.
        detail: for people, where numbers do not say it.
    """

    iteration: int
    quantity: str
    name: str
    noise_ratio: float | None = None
    max_abs: float | None = None
    max_ulp: int | None = None
    needed_rtol: float | None = None
    detail: str = ""
    rank: int = 0

    def __str__(self) -> str:
        where = "before the first iteration" if self.iteration < 0 else f"iteration {self.iteration}"
        what = f"{where}, {self.quantity} {self.name}".rstrip()
        if self.noise_ratio is None:
            return f"{what}: {self.detail}" if self.detail else what
        return f"{what}: off by up to {self.max_abs:.3g}, {self.noise_ratio:.3g} times the noise floor"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A mistake, or two together, that explains a divergence.

    Attributes:
        what_if: its id; of two, both with a ``+`` between.
        noise_ratio: how far the loop with that mistake is from the candidate, in units of what rounding alone does to
            the reference; 0 where every bit agrees.
        sentence: for people.
        mend: what most likely has to be done, in a line.
        page: the requirement whose page says more.
    """

    what_if: str
    noise_ratio: float
    sentence: str
    mend: str
    page: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a divergence behaves like.

    Attributes:
        findings: the mistakes that explain it, the likeliest first; none where no known mistake does.
        evidence: what the divergence shows by itself, a line each.
        known: how many mistakes were tried; 0 where no number is wrong.
    """

    findings: tuple[Finding, ...]
    evidence: tuple[str, ...]
    known: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One scenario, judged.

    Attributes:
        message: the reason in one line, quoting the user's own exception where there is one.
        noise_ratio: the worst ratio of all that was compared within noise; 0 where everything is bitwise equal.
        compared, existing, unobserved: see ``Comparison``.
        uninformative: tensors that rounding alone moves by more than 1 % of their update.
        flavour: the kernel flavour of the reference that matched, ``""`` for the one asked for.
        traceback: of an exception that broke the run, for the failure report.
        diagnosis: what the divergence behaves like, where that was asked for.
    """

    scenario: Scenario
    verdict: Verdict
    message: str = ""
    divergence: Divergence | None = None
    noise_ratio: float = 0.0
    compared: int = 0
    existing: int = 0
    unobserved: int = 0
    uninformative: int = 0
    flavour: str = ""
    traceback: str = ""
    seconds: float = 0.0
    diagnosis: Diagnosis | None = None

    @property
    def hung(self) -> bool:
        """It broke after so long that ranks must have waited for each other: another scenario would cost as much."""
        return self.verdict is Verdict.BROKEN and self.scenario.strategy != "single" and self.seconds >= PATIENCE

    def timed(self, seconds: float) -> Outcome:
        return replace(self, seconds=seconds)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them, by ``SEVERITY``."""
    return min(verdicts, key=SEVERITY.index)


def quote(error: BaseException | None) -> str:
    """The exception as a user would meet it, on one line, without addresses that change from run to run."""
    if error is None:
        return ""
    text = re.sub(r" at 0x[0-9a-f]+", "", one_line(said(error)))
    return f"{type(error).__name__}: {text if len(text) <= QUOTED else text[:QUOTED] + ' ...'}"
