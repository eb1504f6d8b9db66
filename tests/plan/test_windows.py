"""Windows to instants: nights with a clock change, blackouts, ends; compared with a walk along the clock, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import pairwise
from math import inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.model.window import DAY, Day, Windows, WindowTime
from labctl.plan.windows import (
    ALWAYS,
    YEAR,
    Opening,
    first_instant,
    fits,
    longest_opening,
    next_opening,
    opening_at,
    openings,
    seconds_left,
)

HOUR = 3600.0
NIGHT = WindowTime(start=22 * 60, end=6 * 60)
ALL_DAY = WindowTime(start=0, end=DAY)


def at(text: str, zone: str = "UTC") -> float:
    """The instant of a wall time, such as `2026-10-24 22:00`."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def windows(*times: WindowTime, zone: str = "Europe/Berlin", **more: object) -> Windows:
    return Windows(zone=zone, times=times or (NIGHT,), **more)  # type: ignore[arg-type]


def window(text: str, *days: Day) -> WindowTime:
    start, end = (int(part[:2]) * 60 + int(part[3:]) for part in text.split("-"))
    return WindowTime(start=start, end=end, days=frozenset(days or Day))


def spelt(found: Opening, zone: str = "Europe/Berlin") -> tuple[str, str]:
    """An opening as the clock of its zone shows it."""
    first, last = (datetime.fromtimestamp(each, ZoneInfo(zone)) for each in (found.start, found.end))
    return first.strftime("%Y-%m-%d %H:%M"), last.strftime("%Y-%m-%d %H:%M")


def of_days(wanted: Windows, first: str, last: str) -> list[Opening]:
    return list(openings(wanted, at(first, wanted.zone), at(last, wanted.zone)))


@pytest.mark.parametrize(
    ("evening", "hours"), [("2026-10-24", 9), ("2026-03-28", 7), ("2026-06-01", 8), ("2026-10-25", 8)]
)
def test_m21_a_night_with_a_clock_change_has_its_real_length(evening: str, hours: int) -> None:
    opening = opening_at(windows(), at(f"{evening} 23:00", "Europe/Berlin"))
    assert opening is not None
    assert spelt(opening)[0] == f"{evening} 22:00"
    assert spelt(opening)[1].endswith("06:00")
    assert opening.seconds == hours * HOUR


@pytest.mark.parametrize(("day", "hours"), [("2026-10-25", 25), ("2026-03-29", 23)])
def test_m21_a_day_with_a_clock_change_has_its_real_length(day: str, hours: int) -> None:
    sunday = windows(WindowTime(start=0, end=DAY, days=frozenset({Day.SUN})))
    opening = opening_at(sunday, at(f"{day} 12:00", "Europe/Berlin"))
    assert opening is not None
    assert opening.seconds == hours * HOUR


def test_s4_a_missing_start_opens_at_the_first_instant_after_the_gap() -> None:
    spring = windows(window("02:30-05:00"))
    (opening,) = of_days(spring, "2026-03-29 00:00", "2026-03-30 00:00")
    assert spelt(opening) == ("2026-03-29 03:00", "2026-03-29 05:00")
    assert opening.seconds == 2 * HOUR


def test_s4_a_missing_end_closes_at_the_gap() -> None:
    (opening,) = of_days(windows(window("01:00-02:30")), "2026-03-29 00:00", "2026-03-30 00:00")
    assert opening.seconds == 1 * HOUR


def test_s4_a_window_inside_the_missing_hour_does_not_open_that_day() -> None:
    found = of_days(windows(window("02:10-02:50")), "2026-03-28 00:00", "2026-03-31 00:00")
    assert [spelt(opening)[0] for opening in found] == ["2026-03-28 02:10", "2026-03-30 02:10"]


def test_s4_a_start_that_happens_twice_opens_once_at_the_first() -> None:
    (opening,) = of_days(windows(window("02:30-05:00")), "2026-10-25 00:00", "2026-10-26 00:00")
    assert opening.start == at("2026-10-25 00:30")
    assert opening.seconds == 3.5 * HOUR


def test_s4_a_window_inside_the_doubled_hour_opens_once() -> None:
    (opening,) = of_days(windows(window("02:10-02:50")), "2026-10-25 00:00", "2026-10-26 00:00")
    assert opening == Opening(start=at("2026-10-25 00:10"), end=at("2026-10-25 00:50"))


def test_half_an_hour_is_a_clock_change_too() -> None:
    night = windows(zone="Australia/Lord_Howe")
    changed = [opening_at(night, at(f"{day} 23:00", night.zone)) for day in ("2026-04-04", "2026-10-03")]
    assert [opening.seconds / HOUR for opening in changed if opening is not None] == [8.5, 7.5]


def test_a_midnight_that_does_not_exist() -> None:
    """Beirut leaps from 24:00 to 01:00."""
    saturday = windows(WindowTime(start=20 * 60, end=DAY), zone="Asia/Beirut")
    opening = opening_at(saturday, at("2026-03-28 21:00", "Asia/Beirut"))
    assert opening is not None
    assert opening.seconds == 4 * HOUR
    sunday = windows(WindowTime(start=0, end=6 * 60), zone="Asia/Beirut")
    opening = opening_at(sunday, at("2026-03-29 02:00", "Asia/Beirut"))
    assert opening is not None
    assert spelt(opening, "Asia/Beirut") == ("2026-03-29 01:00", "2026-03-29 06:00")


def test_windows_that_touch_are_one_opening() -> None:
    weekend = windows(window("20:00-24:00", Day.FRI), WindowTime(start=0, end=DAY, days=frozenset({Day.SAT, Day.SUN})))
    (opening,) = of_days(weekend, "2026-06-01 00:00", "2026-06-10 00:00")
    assert spelt(opening) == ("2026-06-05 20:00", "2026-06-08 00:00")
    parts = windows(window("22:00-02:30"), window("02:30-06:00"))
    assert of_days(parts, "2026-10-23 12:00", "2026-10-26 12:00") == of_days(
        windows(), "2026-10-23 12:00", "2026-10-26 12:00"
    )


def test_nothing_is_open_on_a_blackout_date_from_midnight_to_midnight() -> None:
    christmas = windows(blackout=frozenset({date(2026, 12, 24), date(2026, 12, 25)}))
    found = of_days(christmas, "2026-12-22 12:00", "2026-12-27 12:00")
    assert [spelt(opening) for opening in found] == [
        ("2026-12-22 22:00", "2026-12-23 06:00"),
        ("2026-12-23 22:00", "2026-12-24 00:00"),
        ("2026-12-26 00:00", "2026-12-26 06:00"),
        ("2026-12-26 22:00", "2026-12-27 06:00"),
    ]


def test_nothing_is_open_after_the_end_of_the_last_date() -> None:
    ending = windows(until=date(2026, 12, 20))
    found = of_days(ending, "2026-12-18 12:00", "2027-12-31 00:00")
    assert [spelt(opening)[1] for opening in found] == ["2026-12-19 06:00", "2026-12-20 06:00", "2026-12-21 00:00"]
    assert next_opening(ending, at("2026-12-20 23:00", "Europe/Berlin")) is None


def test_what_is_left_of_an_opening_and_what_fits() -> None:
    instant = at("2026-06-01 23:30", "Europe/Berlin")
    assert seconds_left(windows(), instant) == 6.5 * HOUR
    assert fits(windows(), instant, 6.5 * HOUR)
    assert not fits(windows(), instant, 6.5 * HOUR + 0.001)
    noon = at("2026-06-01 12:00", "Europe/Berlin")
    assert seconds_left(windows(), noon) == 0
    assert not fits(windows(), noon, 0.0)
    assert opening_at(windows(), noon) is None
    assert not fits(windows(), at("2026-06-01 06:00", "Europe/Berlin"), 0.0), "an opening ends before its end"


def test_the_next_opening_is_never_the_one_that_is_open() -> None:
    for clock in ("2026-06-01 21:59", "2026-06-01 05:00", "2026-06-01 12:00"):
        coming = next_opening(windows(), at(clock, "Europe/Berlin"))
        assert coming is not None
        assert spelt(coming) == ("2026-06-01 22:00", "2026-06-02 06:00")
    coming = next_opening(windows(), at("2026-06-01 22:00", "Europe/Berlin"))
    assert coming is not None
    assert spelt(coming)[0] == "2026-06-02 22:00"


def test_windows_without_a_gap_are_open_for_a_year_or_to_the_next_blackout() -> None:
    instant = at("2026-06-01 12:00", "Europe/Berlin")
    assert seconds_left(windows(ALL_DAY), instant) > YEAR - 2 * 86_400
    assert next_opening(windows(ALL_DAY), instant) is None
    until_july = windows(ALL_DAY, blackout=frozenset({date(2026, 7, 1), date(2026, 5, 2)}))
    opening = opening_at(until_july, instant)
    assert opening is not None
    assert spelt(opening) == ("2026-05-03 00:00", "2026-07-01 00:00")


def test_without_windows_everything_fits() -> None:
    assert opening_at(None, 0.0) == ALWAYS
    assert seconds_left(None, 5.0) == inf
    assert fits(None, 5.0, 1e9)
    assert next_opening(None, 5.0) is None
    assert list(openings(None, 5.0, 7.0)) == [Opening(start=5.0, end=7.0)]


def test_the_longest_night_of_the_coming_year() -> None:
    longest = longest_opening(windows(), at("2026-06-01 12:00"))
    assert longest is not None
    assert (spelt(longest)[0], longest.seconds) == ("2026-10-24 22:00", 9 * HOUR)
    assert longest_opening(windows(until=date(2026, 5, 1)), at("2026-06-01 12:00")) is None


ZONES = (
    "Europe/Dublin",  # its winter is the time that counts as changed
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kolkata",  # never, and half an hour off the others
    "America/Havana",  # at midnight
    "Atlantic/Azores",
    "America/Santiago",  # in the other half of the year
    "Pacific/Apia",  # the first day of all
    "UTC",
)


@st.composite
def nightly(draw: st.DrawFn) -> tuple[WindowTime, ...]:
    """One window on some days of the week."""
    start, minutes = draw(st.integers(0, DAY - 1)), draw(st.integers(1, DAY))
    days = draw(st.sets(st.sampled_from(list(Day)), min_size=1))
    return (WindowTime(start=start, end=(start + minutes) % DAY or DAY, days=frozenset(days)),)


@st.composite
def irregular(draw: st.DrawFn) -> tuple[WindowTime, ...]:
    """The week cut into parts, of which all or every other one is open, in pieces of a day at most."""
    cuts = sorted(draw(st.sets(st.integers(0, 7 * DAY - 1), min_size=1, max_size=6)))
    parts = list(pairwise([*cuts, cuts[0] + 7 * DAY]))
    longest = draw(st.sampled_from([DAY, DAY // 2, 7 * 60]))
    times = []
    for first, last in parts[:: draw(st.sampled_from([1, 2]))]:
        for begin in range(first, last, longest):
            end = min(last, begin + longest)
            day = list(Day)[begin // DAY % 7]
            times.append(WindowTime(start=begin % DAY, end=end % DAY or DAY, days=frozenset({day})))
    return tuple(times)


@st.composite
def any_windows(draw: st.DrawFn) -> Windows:
    near = st.dates(date(2026, 3, 1), date(2026, 11, 30))
    return Windows(
        zone=draw(st.sampled_from(ZONES)),
        times=draw(nightly() | irregular()),
        blackout=frozenset(draw(st.sets(near, max_size=3))),
        until=draw(st.none() | near),
    )


def changes(zone: str) -> list[date]:
    """The days of 2026 on which the clock of the zone changes; some day where it doesn't."""
    found, tz = [], ZoneInfo(zone)
    day = date(2026, 1, 1)
    while day.year == 2026:
        first, last = (datetime(d.year, d.month, d.day, tzinfo=tz) for d in (day, day + timedelta(days=1)))
        if first.utcoffset() != last.utcoffset():
            found.append(day)
        day += timedelta(days=1)
    return found or [date(2026, 7, 1)]


CHANGES = {zone: changes(zone) for zone in ZONES}


@st.composite
def spans(draw: st.DrawFn, wanted: Windows) -> tuple[int, int]:
    """A few days, mostly with a clock change in them; whole minutes as epoch minutes."""
    day = draw(st.sampled_from(CHANGES[wanted.zone]) | st.dates(date(2026, 3, 1), date(2026, 11, 30)))
    first = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("UTC")).timestamp() // 60
    start = int(first) - draw(st.integers(0, 3 * DAY))
    return start, start + draw(st.integers(1, 6 * DAY))


def walked(wanted: Windows, start: int, end: int) -> Iterator[bool]:
    """Whether it is open, minute by minute, by a wall clock that stands still where the real one goes back."""
    zone = ZoneInfo(wanted.zone)
    shown = datetime.min
    for minute in range(start - 2 * DAY, end):
        shown = max(shown, datetime.fromtimestamp(minute * 60, zone).replace(tzinfo=None))
        if minute >= start:
            yield is_open(wanted, shown)


def is_open(wanted: Windows, shown: datetime) -> bool:
    """What the file says of a wall time."""
    today = shown.date()
    if today in wanted.blackout or (wanted.until is not None and today > wanted.until):
        return False
    minute = shown.hour * 60 + shown.minute
    day, before = list(Day)[today.weekday()], list(Day)[today.weekday() - 1]
    for time in wanted.times:
        end = time.end if time.end > time.start else time.end + DAY
        if (day in time.days and time.start <= minute < end) or (before in time.days and minute + DAY < end):
            return True
    return False


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_openings_are_what_a_walk_along_the_clock_finds(data: st.DataObject) -> None:
    wanted = data.draw(any_windows())
    start, end = data.draw(spans(wanted))
    found = list(openings(wanted, start * 60.0, end * 60.0))
    assert all(one.end < other.start for one, other in pairwise(found)), "disjoint, in order, merged where they touch"
    assert all(opening.seconds > 0 for opening in found)
    steps = list(walked(wanted, start, end))
    minutes = {minute for opening in found for minute in range(int(opening.start) // 60, int(opening.end) // 60)}
    assert minutes == {minute for minute, opened in enumerate(steps, start=start) if opened}
    assert sum(opening.seconds for opening in found) == 60 * sum(steps)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_questions_about_an_instant_agree_with_the_openings(data: st.DataObject) -> None:
    wanted = data.draw(any_windows())
    start, end = data.draw(spans(wanted))
    instant = data.draw(st.floats(start * 60.0, end * 60.0))
    whole = opening_at(wanted, instant)
    near = [opening for opening in openings(wanted, instant - 20 * 86_400, instant + 20 * 86_400) if instant in opening]
    assert bool(near) == (whole is not None)
    if whole is not None:
        assert near == list(
            openings(wanted, max(whole.start, instant - 20 * 86_400), min(whole.end, instant + 20 * 86_400))
        )
        assert fits(wanted, instant, whole.end - instant)
        assert not fits(wanted, instant, whole.end - instant + 1)
    coming = next_opening(wanted, instant)
    if coming is not None:
        assert coming.start > instant
        between = list(openings(wanted, whole.end if whole is not None else instant, coming.start))
        assert between == []
        assert opening_at(wanted, coming.start) == coming


@given(st.sampled_from(ZONES), st.dates(date(2026, 1, 1), date(2026, 12, 31)), st.integers(0, 2 * DAY))
@settings(deadline=None)
def test_a_wall_time_begins_once(zone: str, day: date, minute: int) -> None:
    """At the instant the clock shows the time or has leapt over it; a moment before it does not."""
    info = ZoneInfo(zone)
    instant = first_instant(day, minute, info)
    wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minute)
    assert datetime.fromtimestamp(instant, info).replace(tzinfo=None) >= wall
    assert datetime.fromtimestamp(instant - 1, info).replace(tzinfo=None) < wall
    assert first_instant(day, minute + 1, info) >= instant
