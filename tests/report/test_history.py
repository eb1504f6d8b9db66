"""The history of a nightly campaign: the night on which it changed, and the driver that changed with it."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from labctl.model.result import CampaignRecord
from labctl.report import history_to_json, print_history
from labctl.report.history import history_of
from tests.report.test_pair import DRIVERS, measured


@pytest.fixture(scope="module")
def nights() -> list[CampaignRecord]:
    """Four nights before an update that makes all cells half as fast again, and four after it."""
    before = [measured(night, driver=DRIVERS[0]) for night in range(1, 5)]
    return before + [measured(night, driver=DRIVERS[1], faster=1.5) for night in range(5, 9)]


def test_the_night_of_the_update_is_found_with_the_driver_that_changed(nights: list[CampaignRecord]) -> None:
    history = history_of(nights)
    assert history.campaigns == tuple(range(1, 9))
    changed = [cell for cell in history.cells if cell.changes]
    assert len(changed) == len(history.cells)
    for cell in changed:
        (told,) = cell.changes
        assert told.change.campaign == 5
        assert told.change.ratio.ratio == pytest.approx(1.5, rel=0.05)
        assert [(fact.name, fact.second) for fact in told.facts] == [("nic.driver.version", DRIVERS[1])]


def test_it_is_told_in_the_terminal_and_as_json(nights: list[CampaignRecord]) -> None:
    out = io.StringIO()
    print_history(nights, Console(file=out, width=200))
    assert "from campaign 5 on" in out.getvalue()
    assert f"host:a nic.driver.version: {DRIVERS[0]} to {DRIVERS[1]}" in out.getvalue()
    document = json.loads(history_to_json(nights))
    assert document["schema"] == "labctl.history/1"
    assert {change["change"]["campaign"] for cell in document["cells"] for change in cell["changes"]} == {5}


def test_few_campaigns_tell_of_no_change_and_say_so(nights: list[CampaignRecord]) -> None:
    out = io.StringIO()
    print_history(nights[3:5], Console(file=out, width=200))
    assert "6 campaigns or more" in out.getvalue()
    assert all(not cell.changes for cell in history_of(nights[3:5]).cells)
