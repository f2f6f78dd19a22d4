"""The block about a failure: what must hold, where it does not, what that behaves like, and how to go on.

It fits on a screen of ``LINES`` by ``WIDTH``, but for the replay commands, which are never cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from inbackward.judging import Diagnosis
from inbackward.report.report import Row
from inbackward.report.text import HOW_TO_READ, clip, wrap
from inbackward.requirements import CATALOGUE

LINES = 24
NAMED = 3  # of the mistakes that cannot be told apart
TRACEBACK_LINES = 5
MOST_SHRUNK = 12


def render_failure(row: Row) -> list[str]:
    """What to know about a row that failed, is a known defect, or carries a declaration that no longer holds.

    None for a row that needs none.
    """
    if row.stale:
        return _stale(row)
    if not row.verdict.fails:
        return []
    id, label, entry = row.entry["id"], row.label, row.entry
    head = f"{label}: {row.verdict}" + (f", as expected ({row.expected})" if row.expected else "")
    lines = [clip(head), *wrap(CATALOGUE[id].sentence, "  ", lines=2)]
    divergence = entry.get("divergence", {})
    failing = row.counts.get("scenarios_failing", 0)
    of = f" ({failing} of {entry['scenarios']} scenarios fail)" if failing else ""
    when = f", iteration {divergence['iteration']}" if divergence.get("quantity") == "exception" else ""
    lines.append(clip(f"  in {divergence.get('scenario', id)}{when}{of}"))
    lines += wrap(entry["message"], "  ")
    lines += [f"  {line}" for line in _numbers(divergence)]
    lines += [clip(f"  {line}") for line in _last_lines(row.traceback)]
    if not row.traceback and not entry.get("diagnosis") and divergence.get("quantity") in HOW_TO_READ:
        lines += wrap(HOW_TO_READ[divergence["quantity"]], "  ", lines=2)
    sentences = [finding["sentence"] for finding in entry.get("diagnosis", [])]
    lines += _behaviour(sentences, row.known)
    mend = _mend(row.mend, row.page or id)
    replay, again = entry.get("replay"), row.replay_shrunk
    room = LINES - len(lines) - len(mend) - bool(replay) - bool(again) - 2 * bool(row.shrunk)
    lines += [*_evidence(row.evidence)[: max(room, 1)], *mend]
    lines += [f"  replay: {replay}"] if replay else []
    room = LINES - len(lines) - bool(again)
    lines += wrap(f"shrunk: {row.shrunk}", "  ", lines=min(max(room, 2), MOST_SHRUNK)) if row.shrunk else []
    return lines + ([f"  replay: {again}"] if again else [])


def render_explanation(diagnosis: Diagnosis, page: str) -> list[str]:
    """A diagnosis that stands alone; ``page`` is the requirement to read where no mistake is named."""
    sentences = [finding.sentence for finding in diagnosis.findings]
    mend, page = (diagnosis.findings[0].mend, diagnosis.findings[0].page) if diagnosis.findings else ("", page)
    return [*_behaviour(sentences, diagnosis.known), *_evidence(diagnosis.evidence), *_mend(mend, page)]


def _behaviour(sentences: Sequence[str], known: int) -> list[str]:
    said = behaviour(sentences, known)
    return [line for i, one in enumerate(said) for line in wrap(f"  {one}" if i else one, "  ", lines=2)]


def behaviour(sentences: Sequence[str], known: int) -> list[str]:
    """What it behaves like, by the mistakes that cannot be told apart; nothing where no what-if was run."""
    if known and not sentences:
        return [f"None of the {known} known mistakes explains this."]
    said = [f"It {sentence}" for sentence in sentences[:1]]
    for sentence in sentences[1:NAMED]:
        said.append(sentence.replace("behaves exactly like", "or like").replace("is consistent with", "or with"))
    if len(sentences) > 1:
        more = f"and {len(sentences) - NAMED} more; " if len(sentences) > NAMED else ""
        said.append(f"({more}these cannot be told apart in this scenario)")
    return said


def _evidence(evidence: Sequence[str]) -> list[str]:
    label, indent = "  evidence: ", " " * 12
    lines = [line for one in evidence for line in wrap(one, indent, lines=2)]
    return [label + line[len(label) :] if i == 0 else line for i, line in enumerate(lines)]


def _mend(mend: str, page: str) -> list[str]:
    """The likely mend, and where to read on."""
    see = f"inbackward requirements {page}; docs/requirements/{page}.md"
    return [*wrap(f"mend: {mend}", "  ", lines=2), f"        ({see})"] if mend else [f"  see: {see}"]


def _stale(row: Row) -> list[str]:
    field = "unsupported" if row.verdict.value == "unsupported" else "expected_failures"
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
