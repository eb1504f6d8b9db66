"""Windows: when the runs of a campaign may run, in local wall time with a zone name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

DAY = 24 * 60
"""Minutes of a day on the wall clock."""


class Day(StrEnum):
    """Days of the week."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


@dataclass(frozen=True, kw_only=True)
class WindowTime:
    """One window of the week: it opens at `start` on each of `days` and closes at `end`, on the next day when `end` is
    not later than `start`. Minutes since local midnight, `end` up to 1440."""

    start: int
    end: int
    days: frozenset[Day] = frozenset(Day)

    @property
    def minutes(self) -> int:
        """From its start to its end by the wall clock; what it really lasts depends on the day."""
        return (self.end - self.start) % DAY or DAY

    def __str__(self) -> str:
        days = ", ".join(day for day in Day if day in self.days)
        return (
            f"{clock_time(self.start)}-{clock_time(self.end)} on {days if len(self.days) < len(Day) else 'every day'}"
        )


@dataclass(frozen=True, kw_only=True)
class Windows:
    """All windows of a campaign. They don't overlap. Nothing runs on a `blackout` date, from local midnight to midnight,
    nor after the end of the date `until`."""

    zone: str
    """A name of the IANA time zone database, `Europe/Dublin`."""
    times: tuple[WindowTime, ...]
    blackout: frozenset[date] = frozenset()
    until: date | None = None


def clock_time(minute: int) -> str:
    """Minutes since midnight as the clock shows them: `06:30`."""
    return f"{minute // 60:02}:{minute % 60:02}"
