"""Runs -> one self-contained HTML page."""

from manyviews.report.page import write_report

__all__ = ["write_report"]
