"""Text for terminals: what a person needs of a result, in plain strings; every door prints with these."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from inbackward.judging import Outcome, Verdict
from inbackward.judging.noise import LIMIT
from inbackward.report.report import Row, environment, summary
from inbackward.requirements import CATALOGUE
from inbackward.scenario.configs import TWO_DIMENSIONAL
from inbackward.verification import Suite

WIDTH = 118
TRACEBACK_LINES = 5

# What a divergence in each quantity says about where to look; keys are ``compare.QUANTITIES`` and the expectations'.
HOW_TO_READ = {
    "loss": "A loss is computed before its iteration's update: look at the forward, or the update before it.",
    "buffer": "Buffers change in the forward: it ran another number of times, or on other parameters.",
    "parameter": "This iteration's update used another gradient, hyperparameter or state than the reference's.",
    "state": "The optimizer's memory differs: it was given another gradient, or stepped another number of times.",
    "state-names": "The optimizer keeps state where the reference keeps none, or none where it keeps some.",
    "hyperparameter": "The update read its hyperparameters from elsewhere than the groups that the user changes.",
    "gradient": "A gradient is there where none should be, or gone where one should be left.",
    "early": "A parameter was updated before the last backward of its iteration.",
    "observed": "What the loop or a user's hook was given differs: a norm, a scale, a gradient, a count of calls.",
    "bystander": "Something that the training must not touch has changed: a copy's original, a snapshot.",
    "replica": "Ranks have parted: each stepped with gradients of its own, before they were reduced or instead of it.",
    "ranks": "A rank died, hung or raised outside of training; the others could not go on without it.",
    "leak": "Something stays behind: look for references from hooks, globals and caches.",
    "rng": "Random numbers were drawn at other places than in the reference: dropout will differ from here on.",
    "state-dict": "A user who saves this checkpoint meets the same: keep plain tensors and numbers in the state dict.",
    "exception": "The two loops did not raise alike.",
}


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


def render_failure(row: Row) -> list[str]:
    """What to know about a row that failed, is a known defect, or carries a declaration that no longer holds.

    About a dozen lines, and a few more where a simpler scenario was found; none for a row that needs none.
    """
    if row.stale:
        return _stale(row)
    if not row.verdict.fails:
        return []
    id, label, entry = row.entry["id"], row.label, row.entry
    head = f"{label}: {row.verdict}" + (f", as expected ({row.expected})" if row.expected else "")
    lines = [clip(head), clip(f"  {CATALOGUE[id].sentence}")]
    divergence = entry.get("divergence", {})
    failing = row.counts.get("scenarios_failing", 0)
    of = f" ({failing} of {entry['scenarios']} scenarios fail)" if failing else ""
    when = f", iteration {divergence['iteration']}" if divergence.get("quantity") == "exception" else ""
    lines.append(clip(f"  in {divergence.get('scenario', id)}{when}{of}"))
    lines += wrap(entry["message"], "  ")
    lines += [f"  {line}" for line in _numbers(divergence)]
    lines += [clip(f"  {line}") for line in _last_lines(row.traceback)]
    if not row.traceback and divergence.get("quantity") in HOW_TO_READ:
        lines.append(f"  {HOW_TO_READ[divergence['quantity']]}")
    lines += [clip(f"  {finding['sentence']}") for finding in entry.get("diagnosis", [])]
    if entry.get("replay"):
        lines.append(f"  replay: {entry['replay']}")
    if row.shrunk:
        lines += wrap(f"shrunk: {row.shrunk}", "  ", lines=12)
    if row.replay_shrunk:
        lines.append(f"  replay: {row.replay_shrunk}")
    return lines


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
    lines += [f"  {outcome.message}"] if outcome.message else []
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
    if divergence is not None and divergence.quantity in HOW_TO_READ and not outcome.traceback:
        lines.append(f"  {HOW_TO_READ[divergence.quantity]}")
    return lines + outcome.traceback.rstrip().splitlines()


def wrap(text: str, indent: str = "", lines: int = 3) -> list[str]:
    """``text`` on at most so many lines, the later ones indented; an ellipsis says that there was more."""
    more = indent + "  "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=more,
        max_lines=lines,
        placeholder=" ...",
        break_on_hyphens=False,
    )


def clip(line: str) -> str:
    """``line`` on one line, its indentation kept; an ellipsis says that there was more."""
    indent = line[: len(line) - len(line.lstrip())]
    return (wrap(line.strip(), indent, lines=1) or [""])[0]


_NOT_VERDICTS = {"requirements", "not-selected", "scenarios", "tensors_compared", "tensors_existing", "unobserved"}


def _stale(row: Row) -> list[str]:
    field = "unsupported" if row.verdict is Verdict.UNSUPPORTED else "expected_failures"
    id, scenarios = row.label, row.entry["scenarios"]
    return [
        f"{id}: declared in Implementation.{field}, but every one of its {scenarios} scenarios holds",
        f"  remove {id!r} from {field}: a declaration that is no longer true hides the next real failure",
    ]


def _last_lines(traceback: str) -> list[str]:
    """Where an exception came from, without the lines that only underline."""
    return [line for line in traceback.splitlines() if line.strip(" ^~")][-TRACEBACK_LINES:]


def _numbers(divergence: dict[str, object]) -> list[str]:
    """The deviation in the units that people ask for, where there are two tensors to subtract."""
    if divergence.get("max_abs") is None:
        return []
    ulp, rtol = divergence.get("max_ulp"), divergence.get("needed_rtol")
    parts = [f"{ulp} units in the last place"] if ulp is not None else []
    if rtol == "inf":
        parts.append("no relative tolerance would let it pass")
    elif rtol is not None:
        parts.append(f"a relative tolerance of {rtol:.2g} would let it pass")
    return ["that is " + "; ".join(parts)] if parts else []
