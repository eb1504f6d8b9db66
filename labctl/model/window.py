"""Windows: when the runs of a campaign may run, in local wall time with a zone name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum


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


@dataclass(frozen=True, kw_only=True)
class Windows:
    """All windows of a campaign. They don't overlap. Nothing runs on a `blackout` date, from local midnight to midnight,
    nor after the end of the date `until`."""

    zone: str
    """A name of the IANA time zone database, `Europe/Dublin`."""
    times: tuple[WindowTime, ...]
    blackout: frozenset[date] = frozenset()
    until: date | None = None
