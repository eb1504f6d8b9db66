"""Times of day, dates and zones as both a file and an option write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from labctl.model.window import DAY, Day, WindowTime
from labctl.spec.fields import Strict, as_list, complaint
from labctl.spec.values import BadValue, nearest, text_of

_HOURS = "two times of day such as 22:00-06:00, or 00:00-24:00 for a whole day"
_TIME = r"(?P<{0}hour>[01]?[0-9]|2[0-4]):(?P<{0}minute>[0-5][0-9])"
_WINDOW = re.compile(rf"{_TIME.format('start_')}\s*[-–]\s*{_TIME.format('end_')}")


def parse_hours(value: object) -> WindowTime:
    """The window of every day of a text such as `22:00-06:00`. Raises `BadValue`."""
    match = _WINDOW.fullmatch(text_of(value).strip()) if not isinstance(value, (list, dict)) else None
    if match is None:
        raise BadValue("must be the times of day at which the window opens and closes", allowed=_HOURS)
    start = int(match["start_hour"]) * 60 + int(match["start_minute"])
    end = int(match["end_hour"]) * 60 + int(match["end_minute"])
    if start >= DAY or end > DAY:
        raise BadValue("a day has the times 00:00 to 23:59, and 24:00 as an end only", allowed=_HOURS)
    if start == end:
        raise BadValue("opens and closes at the same time, so it has no length", allowed=_HOURS, nearest="00:00-24:00")
    return WindowTime(start=start, end=end or DAY)


def parse_zone(value: object) -> str:
    """The name of a time zone. Raises `BadValue` with the nearest name when the database has no such zone."""
    word = text_of(value)
    try:
        ZoneInfo(word)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = False
    else:
        known = word not in _NO_ZONES
    if not known:
        allowed = "a name of the IANA time zone database, such as Europe/Dublin, America/New_York or UTC"
        raise BadValue("is no time zone", allowed=allowed, nearest=_nearest_zone(word))
    return word


_NO_ZONES = ("Factory", "localtime", "posixrules")
"""Files of the database that are no places; what they mean depends on the machine."""


def _nearest_zone(word: str) -> str:
    """The zone of this city, or else the one whose whole name is the most like the word."""
    names = sorted(available_timezones().difference(_NO_ZONES))
    city = word.rpartition("/")[2].strip().lower().replace(" ", "_")
    cities = [name for name in names if name.rpartition("/")[2].lower() == city]
    return cities[0] if len(cities) == 1 else nearest(word.replace(" ", "_"), names)


def parse_date(value: object) -> date:
    """The date of a text such as `2026-12-24`. Raises `BadValue`."""
    allowed = "a date as year-month-day, such as 2026-12-24"
    word = text_of(value)
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", word):
        raise BadValue("is no date", allowed=allowed)
    try:
        return date.fromisoformat(word)
    except ValueError as error:
        raise BadValue("there is no such date", allowed=allowed) from error


T = TypeVar("T")


def _reads(parse: Callable[[object], T]) -> BeforeValidator:
    def validate(value: object) -> T:
        try:
            return parse(value)
        except BadValue as bad:
            raise complaint(bad.message, allowed=bad.allowed, nearest=bad.nearest) from bad

    return BeforeValidator(validate)


def _no_day_twice(days: list[Day]) -> list[Day]:
    for day in days:
        if days.count(day) > 1:
            raise complaint(f"names {day} twice")
    return days


_CLOCK = r"([01]?[0-9]|2[0-3]):[0-5][0-9]"
_HOURS_SCHEMA: dict[str, Any] = {"type": "string", "pattern": rf"^{_CLOCK}\s*-\s*({_CLOCK}|24:00)$"}
Hours = Annotated[WindowTime, _reads(parse_hours), WithJsonSchema(_HOURS_SCHEMA | {"description": _HOURS})]
"""Two times of day; the second is on the next day when it isn't later."""
Zone = Annotated[str, _reads(parse_zone), WithJsonSchema({"type": "string"})]
"""The name of a time zone."""
Date = Annotated[date, _reads(parse_date), WithJsonSchema({"type": "string", "format": "date"})]
"""A date."""
Days = Annotated[
    list[Annotated[Day, Field(strict=False)]],
    BeforeValidator(as_list),
    Field(min_length=1),
    AfterValidator(_no_day_twice),
]
"""Days of the week."""


class WindowField(Strict):
    """One window of the week."""

    days: Days = Field(default=list(Day), description="days on which the window opens; default: every day")
    time: Hours = Field(description="when it opens and closes, in the campaign's zone")


def _with_days(value: object) -> object:
    """A text such as `22:00-06:00` as the window of every day; a mapping as it is."""
    if isinstance(value, dict):
        return value
    try:
        parse_hours(value)
    except BadValue as bad:
        allowed = f"{_HOURS}; or {{days: [fri], time: 20:00-24:00}}"
        raise complaint(bad.message, allowed=allowed, nearest=bad.nearest) from bad
    return {"time": value}


WindowEntry = Annotated[WindowField, BeforeValidator(_with_days, json_schema_input_type=Hours | WindowField)]
"""A window as an entry of a list: with its days, or as its times alone."""
