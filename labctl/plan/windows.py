"""When the windows of a campaign are open: local wall times to instants, right on nights with a clock change.

An instant is seconds since the Unix epoch, as `labctl.clock.now()` gives it. All arithmetic is done in instants, so a night
from 22:00 to 06:00 has 9 hours when the clock goes back in it and 7 when it goes forward.

A window opens at the first instant at which the wall clock shows its start, and closes at the first at which it shows its
end. A time that a clock going forward leaps over (02:30 on a spring day) is taken as the moment of the leap. A time that
a clock going back shows twice is taken as the first; the repeated hour belongs to the window that is open then. Seen so,
the wall clock stands still instead of going back, which is why windows that don't overlap never do so as instants either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from math import inf
from zoneinfo import ZoneInfo

from labctl import clock
from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.window import DAY, Day, Windows, WindowTime
from labctl.plan.estimate import longest_run
from labctl.plan.matrix import Matrix

YEAR = 366 * 86_400.0
"""Seconds that are looked ahead for an opening. An opening that lasts longer is cut there."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A stretch of time in which runs may run, from `start` up to but not including `end` (instants).

    Windows that touch (`20:00-24:00`, then `00:00-06:00`) are one opening, because a run may last from one into the other.
    """

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its real length."""
        return self.end - self.start

    def __contains__(self, instant: float) -> bool:
        return self.start <= instant < self.end


ALWAYS = Opening(start=-inf, end=inf)
"""The only opening of a campaign without windows."""


def openings(windows: Windows | None, start: float, end: float) -> Iterator[Opening]:
    """All openings between two instants, in order and cut there. Lazy."""
    if windows is None:
        yield Opening(start=start, end=end)
        return
    current: Opening | None = None
    for piece in _pieces(windows, start, end):
        if current is not None and piece.start <= current.end:
            current = Opening(start=current.start, end=max(current.end, piece.end))
            continue
        if current is not None:
            yield current
        current = piece
    if current is not None:
        yield current


def opening_at(windows: Windows | None, instant: float) -> Opening | None:
    """The whole opening that an instant lies in; None when nothing is open then."""
    if windows is None:
        return ALWAYS
    day = _local(instant, ZoneInfo(windows.zone)).date()
    return next((opening for opening in _around(windows, day) if instant in opening), None)


def next_opening(windows: Windows | None, instant: float) -> Opening | None:
    """The first opening that starts after an instant; None when there is none within a year of it."""
    if windows is None:
        return None
    whole = (opening_at(windows, opening.start) for opening in openings(windows, instant, instant + YEAR))
    return next((opening for opening in whole if opening is not None and opening.start > instant), None)


def seconds_left(windows: Windows | None, instant: float) -> float:
    """How long the opening lasts that an instant lies in; 0 when nothing is open, infinite without windows."""
    opening = opening_at(windows, instant)
    return opening.end - instant if opening is not None else 0.0


def fits(windows: Windows | None, instant: float, seconds: float) -> bool:
    """Whether work of so many seconds that starts at this instant ends before the opening does."""
    opening = opening_at(windows, instant)
    return opening is not None and instant + seconds <= opening.end


def longest_opening(windows: Windows | None, instant: float) -> Opening | None:
    """The longest opening of the year from an instant on; None when there is none."""
    return max(openings(windows, instant, instant + YEAR), key=lambda opening: opening.seconds, default=None)


def refuse_ended_windows(campaign: Campaign, now: float) -> None:
    """Raise `SpecError` when nothing of the campaign could ever run: its `until` has passed, or all that is left of its
    windows is blacked out."""
    windows = campaign.windows
    if windows is None or next(openings(windows, now, now + YEAR), None) is not None:
        return
    if windows.until is not None and first_instant(windows.until, DAY, ZoneInfo(windows.zone)) <= now:
        raise SpecError(
            f"The windows of the campaign {campaign.name} have ended: `until` is {windows.until}. Nothing was submitted.",
            why=f"In {windows.zone} it is {_local(now, ZoneInfo(windows.zone)):%Y-%m-%d %H:%M} now.",
            todo="Name a later date under `until`, or leave it out.",
        )
    dates = ", ".join(str(day) for day in sorted(windows.blackout)[:10])
    raise SpecError(
        f"The windows of the campaign {campaign.name} never open. Nothing was submitted.",
        why=f"Every date on which they would is under `blackout` ({dates})"
        + (f" or after `until` ({windows.until})." if windows.until is not None else "."),
        todo="Name fewer dates under `blackout`, or more days or a later `until` for the windows.",
    )


def refuse_too_short(campaign: Campaign, lab: Lab, *, now: float | None = None, matrix: Matrix | None = None) -> None:
    """Raise `SpecError` when a run of the campaign is longer than every opening of the year from `now` on (by the clock,
    unless it is given): such a run would never start."""
    opening = longest_opening(campaign.windows, clock.now() if now is None else now)
    needed = longest_run(campaign, lab, matrix=matrix)
    if opening is None or needed <= opening.seconds:
        return
    zone = campaign.windows.zone if campaign.windows is not None else "UTC"
    first = datetime.fromtimestamp(opening.start, ZoneInfo(zone))
    raise SpecError(
        f"The windows of the campaign {campaign.name} are shorter than one of its runs. Nothing was submitted.",
        why=f"A run takes about {needed / 60:,.1f} min, and the longest opening of the coming year lasts "
        f"{opening.seconds / 60:,.1f} min (from {first:%a %Y-%m-%d %H:%M} {zone}).",
        todo="Ask for shorter or fewer transfers in a run, or for longer windows; windows that touch count as one.",
    )


def first_instant(day: date, minute: int, zone: ZoneInfo) -> float:
    """The first instant at which the wall clock of the zone shows, or has leapt over, so many minutes after midnight of a
    day; 1440 and more belong to the next day."""
    wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minute)
    late = wall.replace(tzinfo=zone, fold=0).timestamp()
    if _local(late, zone) == wall:
        return late
    early = wall.replace(tzinfo=zone, fold=1).timestamp()
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (early, middle) if _local(middle, zone) >= wall else (middle, late)
    return late


def _local(instant: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None)


@lru_cache(maxsize=256)
def _around(windows: Windows, day: date) -> tuple[Opening, ...]:
    """The openings near a local day. They are whole: where the week has a gap, none reaches over a fortnight, not even when
    the gap is in an hour that the clock leaps over."""
    zone, days = ZoneInfo(windows.zone), timedelta(days=366 if _fills_the_week(windows) else 15)
    return tuple(openings(windows, first_instant(day - days, 0, zone), first_instant(day + days, DAY, zone)))


def _fills_the_week(windows: Windows) -> bool:
    return sum(time.minutes * len(time.days) for time in windows.times) >= DAY * len(Day)


def _pieces(windows: Windows, start: float, end: float) -> Iterator[Opening]:
    """What is open of every local day between two instants, window by window, in order and cut there."""
    zone = ZoneInfo(windows.zone)
    day, last = _local(start, zone).date() - timedelta(days=1), _local(end, zone).date()
    if windows.until is not None:
        last = min(last, windows.until)
    times = sorted(windows.times, key=lambda time: time.start)
    week = list(Day)
    while day <= last:
        for time in times:
            if week[day.weekday()] in time.days:
                for piece in _of_day(windows, day, time, zone):
                    cut = Opening(start=max(piece.start, start), end=min(piece.end, end))
                    if cut.seconds > 0:
                        yield cut
        day += timedelta(days=1)


def _of_day(windows: Windows, day: date, time: WindowTime, zone: ZoneInfo) -> Iterator[Opening]:
    """A window that opens on a day: what lies on the day itself and what on the next, unless that day is closed."""
    end = time.start + time.minutes
    for number, (first, last) in enumerate(((time.start, min(end, DAY)), (DAY, end))):
        if first < last and not _closed(windows, day + timedelta(days=number)):
            yield Opening(start=first_instant(day, first, zone), end=first_instant(day, last, zone))


def _closed(windows: Windows, day: date) -> bool:
    return day in windows.blackout or (windows.until is not None and day > windows.until)
