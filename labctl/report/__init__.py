"""What a report shows, as data; then as HTML, JSON and for the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from labctl.model.result import CampaignRecord
from labctl.report import html, json, terminal
from labctl.report.data import report_of

__all__ = ["print_terminal", "to_json", "write_html"]


def write_html(record: CampaignRecord, path: Path) -> None:
    """Write the report as one self-contained HTML file. Raises `OSError` when the path can't be written."""
    html.write_html(report_of(record), path)


def print_terminal(record: CampaignRecord, console: Console) -> None:
    """Print the report as tables."""
    terminal.print_report(report_of(record), console)


def to_json(record: CampaignRecord) -> str:
    """The report as JSON text for programs; `schema` names its form and version."""
    return json.render_json(report_of(record))
