"""Text for terminals: what a person needs of a result, in plain strings; every door prints with these."""

from __future__ import annotations

from collections.abc import Sequence

from inbackward.judging import Outcome, Verdict
from inbackward.judging.noise import LIMIT
from inbackward.report.failure import render_explanation, render_failure
from inbackward.report.report import Row, environment, summary
from inbackward.report.text import HOW_TO_READ, clip, wrap
from inbackward.requirements import CATALOGUE
from inbackward.scenario.configs import TWO_DIMENSIONAL
from inbackward.verification import Suite
from inbackward.wording import one_line, printable


def render_header(target: str, suite: Suite, selected: int, strategies: Sequence[str] = ()) -> list[str]:
    """What is judged, and on what."""
    name, here = suite.implementation.name or "an implementation", environment()
    under = [s for s in strategies if s != "single"]
    spread = [f"strategies {', '.join(strategies)}; {suite.world_size} ranks"] if under else []
    if set(under) & set(TWO_DIMENSIONAL) and suite.world_size < 4:
        spread[-1] += f", 4 for {' and '.join(s for s in under if s in TWO_DIMENSIONAL)}"
    return [
        f"inbackward {here['inbackward']}: {name} ({target})",
        f"torch {here['torch']}, {suite.device}, seed {suite.seed}, profile {suite.profile}; "
        f"{selected} of {len(CATALOGUE)} requirements",
        *spread,
    ]


def render_remarks(rows: Sequence[Row]) -> list[str]:
    """For every row that passes on other grounds than equal numbers: which, in the words of who refused or declared."""
    lines = []
    for row in rows:
        id, missing = row.label, row.entry["scenarios_not_run"]
        if row.stale:
            continue  # it has a block of its own
        if row.verdict in (Verdict.REFUSED, Verdict.UNSUPPORTED, Verdict.NOT_RUN):
            lines += wrap(f"{id}: {row.verdict}: {row.entry['message']}")
        elif row.verdict.holds and not row.counts["tensors_compared"]:
            lines += wrap(f"{id}: {row.verdict}, but nothing was compared: {row.entry['message']}")
        else:
            for what, some in (("not run", missing), ("unsupported", row.entry.get("scenarios_unsupported", []))):
                if some:
                    lines += wrap(
                        f"{id}: {len(some)} of {row.entry['scenarios']} scenarios {what}: {some[0]['reason']}"
                    )
    return lines


def render_summary(rows: Sequence[Row]) -> list[str]:
    """The denominator: requirements that exist, are selected, and each verdict's count; scenarios; tensors; unobserved.

    A last line says so where nothing was compared: such a run fails.
    """
    counts = summary(rows)
    verdicts = [key for key in counts if key not in _NOT_VERDICTS]
    not_run = sum(len(row.entry["scenarios_not_run"]) for row in rows)
    good, bad = verdicts[:5], verdicts[5:]
    lines = [
        f"requirements: {counts['requirements']} exist, {counts['requirements'] - counts['not-selected']} selected",
        "verdicts:     " + ", ".join(f"{counts[key]} {key}" for key in good) + ",",
        "              " + ", ".join(f"{counts[key]} {key}" for key in bad),
        f"scenarios:    {counts['scenarios']}, {not_run} of them not run",
        f"tensors:      {counts['tensors_compared']} compared of {counts['tensors_existing']} that exist; "
        f"{counts['unobserved']} quantities unobserved",
    ]
    if not counts["tensors_compared"]:
        lines.append("Nothing was compared, so this run proves nothing and fails.")
    return lines


def render_details(rows: Sequence[Row]) -> list[str]:
    """Every block of ``render_failure`` and the remarks, with an empty line after each part."""
    parts = [*(render_failure(row) for row in rows), render_remarks(rows)]
    return [line for part in parts if part for line in (*part, "")]


def render_unsupported(rows: Sequence[Row]) -> list[str]:
    """A Python literal for ``Implementation``: what failed, and what is declared rightly already, with reasons."""
    kept = [r for r in rows if r.failed or (r.verdict is Verdict.UNSUPPORTED and not r.stale)]
    return ["unsupported={", *(f"    {r.label!r}: {r.entry['message']!r}," for r in kept), "}"]


def render_outcome(outcome: Outcome, target: str) -> list[str]:
    """One scenario's verdict with all its numbers unrounded, and the traceback of what broke it."""
    scenario, divergence = outcome.scenario, outcome.divergence
    known = CATALOGUE.get(scenario.requirement)
    lines = [clip(f"{scenario.label}, {target}, torch {environment()['torch']}"), f"verdict: {outcome.verdict}"]
    lines += [clip(f"  {known.sentence}")] if known else []
    lines += [f"  {one_line(outcome.message)}"] if outcome.message else []
    numbers: dict[str, object] = {"worst noise ratio": f"{outcome.noise_ratio!r}; {LIMIT:g} is the limit"}
    if divergence is not None:
        numbers["iteration"] = divergence.iteration
        numbers["noise ratio here"] = divergence.noise_ratio
        numbers["largest difference"] = divergence.max_abs
        numbers["units in the last place"] = divergence.max_ulp
        numbers["relative tolerance needed"] = divergence.needed_rtol
    numbers["tensors compared"] = f"{outcome.compared} of {outcome.existing}"
    numbers["quantities unobserved"] = outcome.unobserved
    numbers["uninformative tensors"] = outcome.uninformative
    numbers["kernel flavour that matched"] = outcome.flavour or None
    lines += [f"  {name:<28}{value}" for name, value in numbers.items() if value is not None]
    named = outcome.diagnosis is not None and outcome.diagnosis.findings
    if divergence is not None and divergence.quantity in HOW_TO_READ and not (outcome.traceback or named):
        lines += wrap(HOW_TO_READ[divergence.quantity], "  ", lines=2)
    if outcome.diagnosis is not None:
        lines += render_explanation(outcome.diagnosis, scenario.requirement)
    return lines + printable(outcome.traceback).rstrip().splitlines()


_NOT_VERDICTS = {"requirements", "not-selected", "scenarios", "tensors_compared", "tensors_existing", "unobserved"}
