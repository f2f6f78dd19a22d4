"""Reports: plain data, JSON, text for terminals, and a page."""

from inbackward.report.annotations import render_annotations
from inbackward.report.failure import render_failure
from inbackward.report.files import require_folder, require_writable, save_replay, save_scenario, write_json, write_text
from inbackward.report.html import write_html
from inbackward.report.report import Row, died, report, row, summary, unreached
from inbackward.report.screen import Screen
from inbackward.report.showcase import Showcase
from inbackward.report.sinks import Log, Sink
from inbackward.report.terminal import (
    render_details,
    render_header,
    render_outcome,
    render_remarks,
    render_summary,
    render_unsupported,
)

__all__ = [
    "Log",
    "Row",
    "Screen",
    "Showcase",
    "Sink",
    "died",
    "render_annotations",
    "render_details",
    "render_failure",
    "render_header",
    "render_outcome",
    "render_remarks",
    "render_summary",
    "render_unsupported",
    "report",
    "require_folder",
    "require_writable",
    "row",
    "save_replay",
    "save_scenario",
    "summary",
    "unreached",
    "write_html",
    "write_json",
    "write_text",
]
