"""Runs -> one self-contained HTML page."""

from manyviews.report.page import write_report as write_report
