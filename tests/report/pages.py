"""A page that holds every kind of row and much that is hostile, made once without any training."""

from dataclasses import replace

from test_report_rows import ROWS

from inbackward.curves import Curve, Curves
from inbackward.measure import Times
from inbackward.report import Showcase, unreached
from inbackward.report.html import render_html
from inbackward.requirements import CATALOGUE, Item

LOSSES = tuple(5.0 - 0.03 * i for i in range(100))
CURVES = Curves(
    iterations=100,
    plain=Curve(losses=LOSSES),
    in_backward=Curve(losses=tuple(loss + 1e-4 * i for i, loss in enumerate(LOSSES))),
    noise=tuple(tuple(loss + seed * 1e-6 for loss in LOSSES) for seed in range(1, 5)),
)
SHOWCASE = Showcase(
    curves=CURVES,
    gradients={"plain": ((0.0, 0), (1.0, 1024), (1.5, 4096), (2.0, 4096)), "in-backward": ((0.0, 0), (1.0, 1024))},
    times=Times(plain=(1.0,) * 8, in_backward=(1.1,) * 8),
    optimizer="AdamW",
)
NO_CURVES = Showcase(why_not="no time")
STRATEGIES = ("single", "ddp", "fsdp2", "hsdp", "tensor-parallel", "fsdp2-tensor-parallel", "cpu-offload")

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> \"quotes\" & 'quotes' "
    "{{ 7 * 7 }} \x1b[31mred\x1b[0m \x00 \ud800 \u202edrawkcab \u2028 \N{PILE OF POO} " + "x" * 3000
)


def _hostile(row):
    entry = {**row.entry, "message": HOSTILE, "replay": HOSTILE, "diagnosis": [{"what_if": "x", "sentence": HOSTILE}]}
    entry["divergence"] = {**entry["divergence"], "name": HOSTILE, "scenario": HOSTILE}
    return replace(
        row, entry=entry, traceback=HOSTILE, evidence=[HOSTILE], mend=HOSTILE, shrunk=HOSTILE, replay_shrunk=HOSTILE
    )


def everything():
    """The rows of ``ROWS``, one of them hostile, and every other requirement under all strategies."""
    rows = [_hostile(row) if kind == "broken" else row for kind, row in ROWS.items()]
    known = {row.entry["id"] for row in rows}
    return rows + [unreached(Item(id, STRATEGIES), "never reached") for id in CATALOGUE if id not in known]


def page(rows=None, showcase=NO_CURVES):
    return render_html("mine:Mine", 7, everything() if rows is None else rows, showcase)
