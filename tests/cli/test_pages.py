"""The page of a campaign that has ended, and what news of its end say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.cli.pages import page_of, write_page
from labctl.store import Store, open_store
from tests.campaign.outbox import submitted


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    submitted(store)
    yield store
    store.close()


def test_the_answer_and_the_path_of_the_page(store: Store, tmp_path: Path) -> None:
    answer, where = write_page(store, tmp_path, 1).splitlines()
    assert answer
    assert where == f"Report: {tmp_path / 'reports' / 'campaign-1.html'}"
    assert "small" in page_of(tmp_path, 1).read_text()


@pytest.mark.parametrize("served", ["https://lab.example/reports", "https://lab.example/reports/"])
def test_or_a_link_where_the_reports_are_served(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str
) -> None:
    monkeypatch.setenv("LABCTL_REPORTS_URL", served)
    said = write_page(store, tmp_path, 1)
    assert said.endswith("\nReport: https://lab.example/reports/campaign-1.html")


def test_a_page_that_cannot_be_written_is_said(store: Store, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("no folder")
    said = write_page(store, tmp_path, 1)
    assert "can't be written" in said
    assert "The results are stored" in said
