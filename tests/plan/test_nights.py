"""How many nights a campaign needs, and windows in which it can't run."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.scenario import Scenario
from labctl.model.window import Day, Windows, WindowTime
from labctl.plan.estimate import Needs, run_seconds
from labctl.plan.matrix import planned_cells
from labctl.plan.nights import HORIZON, nights
from labctl.plan.overview import overview
from labctl.plan.windows import openings, refuse_ended_windows, refuse_too_short
from labctl.spec.lab import parse_lab

HOUR = 3600.0
ZONE = ZoneInfo("Europe/Berlin")
NIGHTS = Windows(zone=ZONE.key, times=(WindowTime(start=22 * 60, end=6 * 60),))
LAB = parse_lab("lab: rack\nsimulated: {hosts: 4}\n")
CAMPAIGN = Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, windows=NIGHTS)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZONE).timestamp()


def runs(hours: float, number: int, **more: int) -> dict[Needs, int]:
    return {Needs(seconds=hours * HOUR, **more): number}


@pytest.mark.parametrize(
    ("needs", "machines", "count", "end"),
    [
        (runs(1, 1), 1, 1, "2026-06-01 23:00"),
        (runs(1, 8), 1, 1, "2026-06-02 06:00"),
        (runs(1, 9), 1, 2, "2026-06-02 23:00"),
        (runs(3, 4), 1, 2, "2026-06-03 04:00"),  # two of three hours each, and two hours too few for a third
        (runs(5, 3), 1, 3, "2026-06-04 03:00"),
        (runs(1, 16, at_once=2), 2, 1, "2026-06-02 06:00"),
        (runs(1, 16, at_once=1), 2, 2, "2026-06-03 06:00"),  # a plain machine takes part in one of them at a time
        (runs(1, 8, machines=2), 2, 1, "2026-06-02 06:00"),
        (runs(1, 9, machines=2), 2, 2, "2026-06-02 23:00"),
        (runs(5, 2) | runs(1, 6), 1, 2, "2026-06-03 06:00"),  # the short runs fill what the long ones leave
        (runs(1, 2, at_once=4) | runs(7, 1, at_once=4), 4, 1, "2026-06-02 05:00"),
    ],
)
def test_no_run_is_cut(needs: dict[Needs, int], machines: int, count: int, end: str) -> None:
    found = nights(needs, NIGHTS, at("2026-06-01 12:00"), machines=machines)
    assert (found.count, found.left, found.end) == (count, 0, at(end))
    assert found.openings == tuple(islice(openings(NIGHTS, at("2026-06-01 12:00"), at("2026-07-01 12:00")), count))


@pytest.mark.parametrize(("start", "runs_of_an_hour"), [("2026-10-24 12:00", 9), ("2026-03-28 12:00", 7)])
def test_m21_a_night_with_a_clock_change_has_room_for_what_it_really_lasts(start: str, runs_of_an_hour: int) -> None:
    assert nights(runs(1, runs_of_an_hour), NIGHTS, at(start), machines=1).count == 1
    assert nights(runs(1, runs_of_an_hour + 1), NIGHTS, at(start), machines=1).count == 2


def test_a_campaign_starts_at_once_when_it_is_open() -> None:
    found = nights(runs(1, 3), NIGHTS, at("2026-06-01 23:00"), machines=1)
    assert (found.count, found.end) == (1, at("2026-06-02 02:00"))


def test_without_windows_it_goes_on_without_a_pause() -> None:
    found = nights(runs(5, 10), None, at("2026-06-01 23:00"), machines=1)
    assert (found.count, found.end) == (1, at("2026-06-01 23:00") + 50 * HOUR)
    for_centuries = nights(runs(10, 1_000_000), None, at("2026-06-01 23:00"), machines=1)
    assert (for_centuries.count, for_centuries.left) == (1, 0)


def test_openings_that_are_too_short_for_anything_are_no_nights() -> None:
    short = replace(NIGHTS, times=(WindowTime(start=60, end=90), WindowTime(start=600, end=720)))
    found = nights(runs(1, 3), short, at("2026-06-01 00:00"), machines=1)
    assert [opening.start for opening in found.openings] == [at("2026-06-01 10:00"), at("2026-06-02 10:00")]


def test_runs_that_the_windows_have_no_room_for_are_counted() -> None:
    ending = replace(NIGHTS, until=date(2026, 6, 2))
    found = nights(runs(3, 9, machines=2), ending, at("2026-06-01 12:00"), machines=2)
    assert (found.end, found.count, found.left) == (None, 1, 7), "the night of June 2 ends at midnight"
    never = nights(runs(10, 1), NIGHTS, at("2026-06-01 12:00"), machines=1)
    assert (never.end, never.count, never.left) == (None, 0, 1)


def test_nothing_to_do_takes_no_night() -> None:
    assert nights({}, NIGHTS, 5.0, machines=1).count == 0


@given(
    st.dictionaries(
        st.builds(Needs, seconds=st.floats(60, 7 * HOUR), at_once=st.integers(1, 4)),
        st.integers(1, 40),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 4),
    st.integers(0, 364),
)
@settings(max_examples=100, deadline=None)
def test_the_nights_have_room_for_all_runs_and_fewer_would_not(
    needs: dict[Needs, int], machines: int, day: int
) -> None:
    start = at("2026-01-01 12:00") + day * 86_400
    found = nights(needs, NIGHTS, start, machines=machines)
    assert found.left == 0
    assert found.end is not None
    work = sum(each.seconds * number for each, number in needs.items())
    assert work <= machines * sum(opening.seconds for opening in found.openings) + 1e-3
    last = found.openings[-1]
    assert last.start < found.end <= last.end
    for each, number in needs.items():
        per_night = sum(int(opening.seconds // each.seconds) for opening in found.openings)
        assert number <= per_night * min(machines, each.at_once), "each of them fits whole"
    alone = nights(needs, NIGHTS, start, machines=1)
    assert alone.count >= found.count


def test_an_end_that_has_passed_is_refused() -> None:
    ended = replace(CAMPAIGN, windows=replace(NIGHTS, until=date(2026, 6, 1)))
    refuse_ended_windows(ended, at("2026-06-01 23:59"))
    with pytest.raises(SpecError) as caught:
        refuse_ended_windows(ended, at("2026-06-02 00:00"))
    assert "`until` is 2026-06-01" in caught.value.what
    assert "2026-06-02 00:00" in caught.value.why
    refuse_ended_windows(CAMPAIGN, at("2026-06-02 00:00"))
    refuse_ended_windows(replace(CAMPAIGN, windows=None), at("2026-06-02 00:00"))


def test_a_blackout_that_leaves_nothing_is_refused() -> None:
    sundays = replace(
        NIGHTS,
        times=(WindowTime(start=0, end=1440, days=frozenset({Day.SUN})),),
        blackout=frozenset({date(2026, 6, 7), date(2026, 6, 14)}),
        until=date(2026, 6, 20),
    )
    with pytest.raises(SpecError) as caught:
        refuse_ended_windows(replace(CAMPAIGN, windows=sundays), at("2026-06-01 12:00"))
    assert "never open" in caught.value.what
    assert "2026-06-07, 2026-06-14" in caught.value.why
    assert "2026-06-20" in caught.value.why
    later = replace(sundays, until=date(2026, 6, 21))
    refuse_ended_windows(replace(CAMPAIGN, windows=later), at("2026-06-01 12:00"))


def test_a_window_shorter_than_one_run_is_refused() -> None:
    (cell,) = (planned.cell for planned in planned_cells(CAMPAIGN, LAB))
    long = replace(CAMPAIGN, settings={"seconds": 3 * HOUR})
    short = replace(NIGHTS, times=(WindowTime(start=60, end=120), WindowTime(start=600, end=690)))
    with pytest.raises(SpecError) as caught:
        refuse_too_short(replace(long, windows=short), LAB, now=at("2026-06-01 12:00"))
    assert f"{run_seconds(long, cell) / 60:,.1f} min" in caught.value.why
    assert "lasts 90.0 min" in caught.value.why
    assert caught.value.why.endswith(f" 10:00 {NIGHTS.zone}).")
    refuse_too_short(replace(long, windows=NIGHTS), LAB)
    refuse_too_short(replace(long, windows=None), LAB)


def test_a_run_that_only_the_longest_night_of_the_year_has_room_for_is_let_through() -> None:
    long = replace(CAMPAIGN, settings={"seconds": 8.5 * HOUR})
    refuse_too_short(long, LAB, now=at("2026-06-01 12:00"))
    with pytest.raises(SpecError, match="shorter than one of its runs"):
        refuse_too_short(replace(long, settings={"seconds": 9 * HOUR}), LAB, now=at("2026-06-01 12:00"))


def test_an_overview_refuses_what_could_never_run() -> None:
    now = at("2026-06-01 12:00")
    found = overview(CAMPAIGN, LAB, now=now, cells=1)
    assert (found.least, found.least.nights.count, len(found.cells), found.machines) == (found.most, 1, 1, 4)
    with pytest.raises(SpecError, match="have ended"):
        overview(replace(CAMPAIGN, windows=replace(NIGHTS, until=date(2026, 5, 1))), LAB, now=now, cells=1)
    with pytest.raises(SpecError, match="shorter than one of its runs"):
        overview(replace(CAMPAIGN, settings={"seconds": 10 * HOUR}), LAB, now=now, cells=1)


def test_very_many_runs_are_planned_at_once() -> None:
    found = nights(runs(0.01, 10_000_000, at_once=4), NIGHTS, at("2026-06-01 12:00"), machines=4)
    assert found.left == 0 or found.count > 1000
    assert found.count <= HORIZON / 86_400 + 1
