"""What a report shows, as data; then as HTML, Markdown, JSON, CSV, Parquet and for the terminal.

Statistics and charts are imported when a report is made: commands that only print something don't wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from labctl.model.published import Published
from labctl.model.result import CampaignRecord

__all__ = [
    "beside_to_json",
    "history_to_json",
    "pair_to_json",
    "print_beside",
    "print_history",
    "print_pair",
    "print_published",
    "print_terminal",
    "published_to_json",
    "to_csv",
    "to_json",
    "to_markdown",
    "write_html",
    "write_parquet",
]


def write_html(record: CampaignRecord, path: Path) -> None:
    """Write the report as one self-contained HTML file. Raises `OSError` when the path can't be written."""
    from labctl.report import data, html

    html.write_html(data.report_of(record), path)


def print_terminal(record: CampaignRecord, console: Console) -> None:
    """Print the report as tables."""
    from labctl.report import data, terminal

    terminal.print_report(data.report_of(record), console)


def to_json(record: CampaignRecord) -> str:
    """The report as JSON text for programs; `schema` names its form and version."""
    from labctl.report import data, json

    return json.render_json(data.report_of(record))


def to_markdown(record: CampaignRecord) -> str:
    """The report as Markdown text."""
    from labctl.report import data, markdown

    return markdown.render_markdown(data.report_of(record))


def to_csv(record: CampaignRecord, *, rows: str) -> str:
    """The `runs` or the `cells` of the report as CSV text."""
    from labctl.report import data, tables

    return tables.render_csv(tables.table_of(data.report_of(record), tables.Rows(rows)))


def write_parquet(record: CampaignRecord, path: Path, *, rows: str) -> None:
    """Write the `runs` or the `cells` of the report as a Parquet file. Raises `SpecError` without pyarrow, and `OSError`
    when the path can't be written."""
    from labctl.report import data, parquet, tables

    parquet.write_parquet(tables.table_of(data.report_of(record), tables.Rows(rows)), path)


def print_pair(first: CampaignRecord, second: CampaignRecord, console: Console) -> None:
    """Print two campaigns beside each other; the first is the baseline."""
    from labctl.report import pair, pair_terminal

    pair_terminal.print_pair(pair.pair_of(first, second), console)


def pair_to_json(first: CampaignRecord, second: CampaignRecord) -> str:
    """Two campaigns beside each other as JSON text for programs; `schema` names its form and version."""
    from labctl.report import json, pair

    return json.render_pair(pair.pair_of(first, second))


def print_beside(record: CampaignRecord, published: Published, console: Console) -> None:
    """Print a campaign's figures beside the published ones."""
    from labctl.report import beside

    beside.print_beside(beside.beside_of(record, published), console)


def beside_to_json(record: CampaignRecord, published: Published) -> str:
    """A campaign's figures beside the published ones as JSON text."""
    from labctl.report import beside, json

    return json.render("labctl.beside/1", beside.beside_of(record, published))


def print_published(published: Published, console: Console) -> None:
    """Print a published experiment, its arithmetic done again."""
    from labctl.report import beside

    beside.print_published(published, console)


def published_to_json(published: Published) -> str:
    """A published experiment as JSON text, with its changes computed from its figures."""
    from labctl.analysis.published import published_changes
    from labctl.report import json

    return json.render("labctl.published/1", {"published": published, "changes": published_changes(published)})


def print_history(records: Iterable[CampaignRecord], console: Console) -> None:
    """Print the history of campaigns of one name, oldest first."""
    from labctl.report import history

    history.print_history(history.history_of(records), console)


def history_to_json(records: Iterable[CampaignRecord]) -> str:
    """The history of campaigns of one name, oldest first, as JSON text."""
    from labctl.report import history, json

    return json.render("labctl.history/1", history.history_of(records))
