"""Where the page of a campaign's report is, and what people are told of it when the campaign has ended."""

from __future__ import annotations

import os
from pathlib import Path

from labctl.report.data import report_of
from labctl.report.html import write_html
from labctl.store import Store, open_store

REPORTS_URL = "LABCTL_REPORTS_URL"
"""The environment variable with the URL under which `STATE/reports` is served, for links in news."""


def page_of(state: Path, campaign_id: int) -> Path:
    """The page of a campaign in a state directory."""
    return state / "reports" / f"campaign-{campaign_id}.html"


def write_page(store: Store, state: Path, campaign_id: int) -> str:
    """Write the page of a campaign, and return the answer in a sentence and where the page is, a line each."""
    report = report_of(store.record(campaign_id))
    path = page_of(state, campaign_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_html(report, path)
        where = f"Report: {address_of(path)}"
    except OSError as error:
        where = f"The report can't be written to {path.absolute()}: {error.strerror or error}. The results are stored."
    return f"{report.headline}\n{where}"


def write_page_apart(state: Path, url: str | None, campaign_id: int) -> str:
    """The same, with a store of its own: for a thread beside others that use theirs."""
    store = open_store(state, url=url)
    try:
        return write_page(store, state, campaign_id)
    finally:
        store.close()


def address_of(page: Path) -> str:
    """Where people find a page: a link, when the reports are served anywhere, else its path."""
    served = os.environ.get(REPORTS_URL, "").rstrip("/")
    return f"{served}/{page.name}" if served else str(page.absolute())
