"""Reports: plain data, JSON, and text for terminals."""

from inbackward.report.report import Row, report, row, save_replay, summary, write_json

__all__ = ["Row", "report", "row", "save_replay", "summary", "write_json"]
