"""The report as one page: what a person needs of a run, in one file that loads nothing from anywhere.

The page's own policy forbids it to: no address is fetched, and no script runs but the one that ships, by its hash.
Whatever a message or a name holds is text.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inbackward.judging import SEVERITY, Verdict
from inbackward.report.failure import behaviour
from inbackward.report.files import write_text
from inbackward.report.report import Row, report, together
from inbackward.report.text import HOW_TO_READ
from inbackward.requirements import CATALOGUE, FAMILIES
from inbackward.wording import printable

if TYPE_CHECKING:
    from inbackward.report.showcase import Showcase

# Told apart without colour, too.
SIGN = {
    Verdict.EQUIVALENT: "✓",
    Verdict.WITHIN_NOISE: "≈",
    Verdict.REFUSED: "⊘",
    Verdict.UNSUPPORTED: "○",
    Verdict.NOT_EQUIVALENT: "✗",
    Verdict.BROKEN: "‼",
    Verdict.NOT_RUN: "\u2013",
}


def write_html(path: str | Path, target: str, seed: int, rows: Sequence[Row], showcase: Showcase) -> None:
    """Write the page; the file appears whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, render_html(target, seed, rows, showcase))


def render_html(target: str, seed: int, rows: Sequence[Row], showcase: Showcase) -> str:
    """The page. Identical runs give identical pages, what has the class ``seconds`` or ``environment`` aside."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from inbackward.report.pictures import pictures

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else printable(str(value))

    folder = Path(__file__).with_name("page")
    page = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html.jinja")
    script = (folder / "report.js").read_text(encoding="utf-8")
    document = report(target, seed, rows)
    merged = sorted(together(rows), key=lambda row: list(CATALOGUE).index(row.entry["id"]))
    blocks = [_block(row) for row in rows if row.verdict.fails or row.stale]
    selected = {row.entry["id"] for row in rows}
    return page.render(
        css=Markup((folder / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        target=target,
        seed=seed,
        environment=document["environment"],
        summary=document["summary"],
        not_run=sum(len(row.entry["scenarios_not_run"]) for row in rows),
        answer=answer(rows),
        sign=SIGN,
        counts=[(verdict.value, sum(row.verdict is verdict for row in merged)) for verdict in SIGN],
        families=[family for family in FAMILIES if any(CATALOGUE[id].family == family for id in selected)],
        rows=[_line(row, blocks) for row in merged],
        not_selected=[id for id in CATALOGUE if id not in selected],
        blocks=blocks,
        replays=[(block["label"], block["replay"]) for block in blocks if block["replay"]],
        showcase=pictures(showcase),
    )


def answer(rows: Sequence[Row]) -> Mapping[str, str]:
    """The run in one sentence, whether that is good, and a sign for it."""
    merged = together(rows)
    count = {verdict: sum(row.verdict is verdict and not row.expected for row in merged) for verdict in Verdict}
    failed, stale = sum(row.failed for row in merged), sum(row.stale for row in merged)
    beside = [
        _several(sum(bool(row.expected) for row in merged), "known defect", "known defects"),
        _several(count[Verdict.UNSUPPORTED], "is declared unsupported", "are declared unsupported"),
        _several(count[Verdict.NOT_RUN], "could not run", "could not run"),
        _several(stale, "declaration is no longer true", "declarations are no longer true"),
    ]
    rest = "".join(f"; {part}" for part in beside if part)
    if failed:
        of = _several(len(merged), "requirement", "requirements")
        fails = "fails" if failed == 1 else "fail"
        return {
            "tone": "bad",
            "sign": "✗",
            "sentence": f"Not the usual loop's numbers: {failed} of {of} {fails}{rest}.",
        }
    if not any(row.counts["tensors_compared"] for row in rows):
        return {
            "tone": "none",
            "sign": "\u2013",
            "sentence": f"Nothing was compared, so this run proves nothing{rest}.",
        }
    held = [
        f"{count[Verdict.EQUIVALENT]} bit for bit",
        count[Verdict.WITHIN_NOISE] and f"{count[Verdict.WITHIN_NOISE]} within noise",
        count[Verdict.REFUSED] and f"{count[Verdict.REFUSED]} refused with a reason",
    ]
    total = sum(count[verdict] for verdict in (Verdict.EQUIVALENT, Verdict.WITHIN_NOISE, Verdict.REFUSED))
    hold = f"{_several(total, 'requirement holds', 'requirements hold')} ({', '.join(part for part in held if part)})"
    if stale:
        return {"tone": "bad", "sign": "✗", "sentence": f"{hold}, but a declaration hides nothing any more{rest}."}
    return {"tone": "good", "sign": "✓", "sentence": f"The usual loop's numbers: {hold}{rest}."}


def _several(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}" if count else ""


def _note(row: Row) -> str:
    return ", stale" if row.stale else ", expected" if row.expected else ""


def _line(row: Row, blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of the table."""
    entry, of = row.entry, CATALOGUE[row.entry["id"]]
    under = entry["by_strategy"]
    return {
        "id": entry["id"],
        "block": next((block["anchor"] for block in blocks if block["id"] == entry["id"]), ""),
        "sentence": of.sentence,
        "family": of.family,
        "verdict": row.verdict.value,
        "note": _note(row),
        "severity": SEVERITY.index(row.verdict),
        "strategies": under if list(under) != ["single"] else {},
        "message": entry["message"] or _left_out(entry),
        "scenarios": entry["scenarios"],
        "tensors": row.counts["tensors_compared"],
        "seconds": entry["seconds"],
    }


def _left_out(entry: Mapping[str, Any]) -> str:
    for what, some in (("not run", entry["scenarios_not_run"]), ("unsupported", entry.get("scenarios_unsupported"))):
        if some:
            return f"{len(some)} of {entry['scenarios']} scenarios {what}: {some[0]['reason']}"
    return ""


def _block(row: Row) -> dict[str, Any]:
    """What opens below the table, of a row that failed, is a known defect, or is declared without need."""
    entry = row.entry
    divergence = entry.get("divergence", {})
    failing = row.counts.get("scenarios_failing", 0)
    at = f"in {divergence['scenario']} " if divergence else ""
    message = entry["message"]
    if row.stale:
        message = f"Declared ({message}), but every one of its {entry['scenarios']} scenarios holds: remove it."
    return {
        "id": entry["id"],
        "label": row.label,
        "anchor": re.sub(r"[^a-z0-9-]", "-", f"evidence-{row.label}"),
        "verdict": row.verdict.value,
        "note": _note(row),
        "at": f"{at}({failing} of {entry['scenarios']} scenarios fail)" if failing else at,
        "sentence": CATALOGUE[entry["id"]].sentence,
        "message": message + (f" Expected: {row.expected}" if row.expected else ""),
        "numbers": _numbers(divergence),
        "behaviour": behaviour([finding["sentence"] for finding in entry.get("diagnosis", [])], row.known),
        "evidence": row.evidence,
        "mend": row.mend,
        "page": row.page or entry["id"],
        "how_to_read": "" if row.traceback else HOW_TO_READ.get(divergence.get("quantity", ""), ""),
        "traceback": row.traceback.rstrip(),
        "replay": entry.get("replay", ""),
        "shrunk": row.shrunk,
        "replay_shrunk": row.replay_shrunk,
    }


def _numbers(divergence: Mapping[str, Any]) -> dict[str, str]:
    """The place and the size of a deviation, by the names that ``docs/reports.md`` explains."""
    if not divergence:
        return {}
    several = {"strategy": divergence["strategy"], "rank": divergence["rank"]}
    sizes = {
        "times the noise floor": divergence["noise_ratio"],
        "off by up to": divergence["max_abs"],
        "units in the last place": divergence["max_ulp"],
        "relative tolerance needed": divergence["needed_rtol"],
    }
    where = {
        "iteration": "before the first" if divergence["iteration"] < 0 else divergence["iteration"],
        "quantity": divergence["quantity"],
        "name": divergence["name"],
        **(several if divergence["strategy"] != "single" else {}),
    }
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in sizes.items()}
    return {name: str(value) for name, value in {**where, **shown}.items() if value not in (None, "")}
