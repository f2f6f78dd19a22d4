"""Reports: plain data, JSON, and text for terminals."""

from inbackward.report.files import require_writable, save_replay, write_json
from inbackward.report.report import Row, report, row, summary
from inbackward.report.terminal import render_failure, render_remarks, render_summary

__all__ = [
    "Row",
    "render_failure",
    "render_remarks",
    "render_summary",
    "report",
    "require_writable",
    "row",
    "save_replay",
    "summary",
    "write_json",
]
