"""Times in what is said of campaigns that wait."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from labctl.campaign import holds
from labctl.plan.windows import Opening
from tests.campaign.wall import machine_in

DUBLIN = "Europe/Dublin"


def instant(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(DUBLIN)).timestamp()


NOW = instant("2026-10-12 21:00")


@pytest.mark.parametrize(
    ("machine", "start", "said"),
    [
        (DUBLIN, "2026-10-12 22:00", "window opens 22:00 Europe/Dublin"),
        ("Europe/Lisbon", "2026-10-12 22:00", "window opens 22:00 Europe/Dublin"),
        ("UTC", "2026-10-12 22:00", "window opens 22:00 Europe/Dublin (21:00 UTC)"),
        ("UTC", "2026-10-15 22:00", "window opens Thu 22:00 Europe/Dublin (21:00 UTC)"),
        ("UTC", "2026-10-15 00:00", "window opens Thu 00:00 Europe/Dublin (Wed 23:00 UTC)"),
        (
            "Asia/Kolkata",
            "2026-10-22 22:00",
            "window opens Thu 2026-10-22 22:00 Europe/Dublin (Fri 2026-10-23 02:30 IST)",
        ),
    ],
)
def test_a_window_is_told_by_its_own_clock_and_by_that_of_this_machine(machine: str, start: str, said: str) -> None:
    begin = instant(start)
    with machine_in(machine):
        hold = holds.opens(Opening(start=begin, end=begin + 3600.0), DUBLIN, NOW)
    assert hold == said
    assert holds.is_of_window(hold)


def test_whatever_is_no_window_is_told_by_the_clock_of_this_machine() -> None:
    with machine_in("America/New_York"):
        assert "again from 17:00 EDT on" in holds.backing_off(instant("2026-10-12 22:00"), NOW)
        assert "again from Tue 17:00 EDT on" in holds.backing_off(instant("2026-10-13 22:00"), NOW)
