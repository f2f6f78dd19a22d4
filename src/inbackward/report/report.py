"""The report of a run: plain data that a worker can send, a file can hold, and every door prints from."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import inbackward
from inbackward.judging import SEVERITY, Finding, Outcome, Verdict
from inbackward.requirements import CATALOGUE, Item
from inbackward.verification import Result

SCHEMA = "inbackward.report/1"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One requirement's result, as plain data.

    Attributes:
        entry: its object in the report's ``requirements`` (contract §5).
        counts: scenarios and those that fail, tensors compared and existing, and unobserved quantities.
        failed: it makes the run fail.
        stale: it was declared unsupported or failing, and everything holds: strictness fails the run.
        expected: the declared reason of a known defect, or ``""``.
        traceback: of the exception that broke it, or ``""``.
        scenario: the decisive scenario's JSON, for the replay file, or ``""``.
        evidence: what a divergence shows by itself, a line each.
        known: how many mistakes were tried on it; 0 where none was.
        mend, page: what most likely has to be done, and the requirement whose page says more; ``""`` where unknown.
        shrunk, replay_shrunk: a simpler scenario that fails likewise, in short, and the command that runs it; ``""``
            where none was looked for. Only people are told: the failure that comes first depends on the tests' order.
    """

    entry: dict[str, Any]
    counts: dict[str, int] = field(default_factory=dict)
    failed: bool = False
    stale: bool = False
    expected: str = ""
    traceback: str = ""
    scenario: str = ""
    evidence: list[str] = field(default_factory=list)
    known: int = 0
    mend: str = ""
    page: str = ""
    shrunk: str = ""
    replay_shrunk: str = ""

    @property
    def label(self) -> str:
        """The id, and the strategy where it is a repetition under one."""
        strategies = list(self.entry["by_strategy"])
        again = CATALOGUE[self.entry["id"]].family != "ranks" and strategies not in ([], ["single"])
        return f"{self.entry['id']}@{','.join(strategies)}" if again else str(self.entry["id"])

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.entry["verdict"])


def row(result: Result, replay: str = "") -> Row:
    """The plain data of a result.

    Args:
        replay: the command that runs the decisive scenario again, where there is one.
    """
    decisive = result.worst
    numbers = result.numbers if result.verdict.fails else None
    diagnosis = numbers.diagnosis if numbers else None
    elsewhere = [f"this is said of {numbers.scenario.label}"] if numbers and numbers is not decisive else []
    entry: dict[str, Any] = {
        "id": result.requirement.id,
        "verdict": result.verdict.value,
        "by_strategy": {strategy: verdict.value for strategy, verdict in result.by_strategy.items()},
        "scenarios": len(result.outcomes),
        "scenarios_not_run": _reasons(result.not_run),
        **({"scenarios_unsupported": _reasons(result.unsupported)} if result.unsupported else {}),
        "seconds": round(result.seconds, 3),
        "message": result.message,
    }
    if decisive is not None and result.divergence is not None:
        entry["divergence"] = _divergence(decisive)
        if diagnosis is not None and diagnosis.findings:
            entry["diagnosis"] = [_finding(finding) for finding in diagnosis.findings]
        if replay:
            entry["replay"] = replay
    first = diagnosis.findings[0] if diagnosis is not None and diagnosis.findings else None
    return Row(
        entry=entry,
        counts={
            "scenarios": len(result.outcomes),
            "scenarios_failing": sum(o.verdict.fails for o in result.outcomes),
            "tensors_compared": sum(o.compared for o in result.outcomes),
            "tensors_existing": sum(o.existing for o in result.outcomes),
            "unobserved": sum(o.unobserved for o in result.outcomes),
        },
        failed=result.failed,
        stale=result.holds_after_all,
        expected=result.expected if result.verdict.fails else "",
        traceback=decisive.traceback if decisive and result.verdict.fails else "",
        scenario=decisive.scenario.to_json() if decisive and result.verdict.fails else "",
        evidence=[*elsewhere, *diagnosis.evidence] if diagnosis else [],
        known=diagnosis.known if diagnosis else 0,
        mend=first.mend if first else "",
        page=first.page if first else "",
    )


def unreached(item: Item, reason: str) -> Row:
    """The row of a selected requirement that the run ended before: not run, and counted so."""
    never = row(Result(requirement=CATALOGUE[item.id], outcomes=(), strategies=item.strategies))
    return replace(never, entry={**never.entry, "message": reason})


def died(item: Item, reason: str, declared: str = "") -> Row:
    """The row of a requirement whose worker died: broken, or ``unsupported`` where that was declared."""
    verdict = Verdict.UNSUPPORTED if declared else Verdict.BROKEN
    never = unreached(item, declared or reason)
    entry = {**never.entry, "verdict": verdict.value, "by_strategy": dict.fromkeys(item.strategies, verdict.value)}
    return replace(never, entry=entry, failed=not declared)


def together(rows: Sequence[Row]) -> list[Row]:
    """One row a requirement: what was judged under several strategies has the worst verdict, and all the counts."""
    by_id: dict[str, list[Row]] = {}
    for each in rows:
        by_id.setdefault(each.entry["id"], []).append(each)
    return [_merged(of_one) if len(of_one) > 1 else of_one[0] for of_one in by_id.values()]


def _merged(rows: Sequence[Row]) -> Row:
    decisive = min(rows, key=lambda r: (not r.failed, SEVERITY.index(r.verdict)))
    entries = [r.entry for r in rows]
    return replace(
        decisive,
        entry={
            **decisive.entry,
            "by_strategy": {s: verdict for entry in entries for s, verdict in entry["by_strategy"].items()},
            "scenarios": sum(entry["scenarios"] for entry in entries),
            **{
                key: [left for entry in entries for left in entry.get(key, [])]
                for key in ("scenarios_not_run", "scenarios_unsupported")
                if any(key in entry for entry in entries)
            },
            "seconds": round(sum(entry["seconds"] for entry in entries), 3),
        },
        counts={key: sum(r.counts[key] for r in rows) for key in decisive.counts},
        stale=any(r.stale for r in rows),
    )


def report(target: str, seed: int, rows: Sequence[Row]) -> dict[str, Any]:
    """The whole report, of schema ``inbackward.report/1``, one entry a requirement.

    Identical runs differ in ``seconds`` and ``environment`` only.
    """
    return {
        "schema": SCHEMA,
        "target": target,
        "environment": environment(),
        "seed": seed,
        "summary": summary(rows),
        "requirements": [r.entry for r in sorted(together(rows), key=lambda r: list(CATALOGUE).index(r.entry["id"]))],
    }


def summary(rows: Iterable[Row]) -> dict[str, int]:
    """The denominator: requirements that exist, those not selected, the count of each verdict, and of tensors."""
    rows = together(list(rows))
    counts = {"requirements": len(CATALOGUE), "not-selected": len(CATALOGUE) - len(rows)}
    for verdict in (Verdict.EQUIVALENT, Verdict.WITHIN_NOISE, Verdict.REFUSED, Verdict.UNSUPPORTED):
        counts[verdict.value] = sum(r.verdict is verdict for r in rows)
    counts["expected-failures"] = sum(bool(r.expected) for r in rows)
    for verdict in (Verdict.NOT_EQUIVALENT, Verdict.BROKEN, Verdict.NOT_RUN):
        counts[verdict.value] = sum(r.verdict is verdict and not r.expected for r in rows)
    for key in ("scenarios", "tensors_compared", "tensors_existing", "unobserved"):
        counts[key] = sum(r.counts[key] for r in rows)
    return counts


def environment() -> dict[str, str]:
    """What the numbers depend on beside the scenario."""
    return {
        "inbackward": inbackward.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def _reasons(outcomes: Iterable[Outcome]) -> list[dict[str, str]]:
    return [{"scenario": o.scenario.label, "reason": o.message} for o in outcomes]


def _divergence(outcome: Outcome) -> dict[str, Any]:
    divergence = outcome.divergence
    assert divergence is not None
    return {
        "scenario": outcome.scenario.label,
        "strategy": outcome.scenario.strategy,
        "rank": divergence.rank,
        "iteration": divergence.iteration,
        "quantity": divergence.quantity,
        "name": divergence.name,
        "noise_ratio": _finite(divergence.noise_ratio),
        "max_abs": _finite(divergence.max_abs),
        "max_ulp": divergence.max_ulp,
        "needed_rtol": _finite(divergence.needed_rtol),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    ratio = _finite(finding.noise_ratio)
    return {"what_if": finding.what_if, "noise_ratio": ratio, "sentence": finding.sentence}


def _finite(value: float | None) -> float | str | None:
    """JSON has no infinity: a deviation over nothing at all is written ``"inf"``."""
    return "inf" if value is not None and not math.isfinite(value) else value
