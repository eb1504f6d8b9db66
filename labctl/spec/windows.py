"""The windows of a campaign file: what its keys mean together, and what can't be meant."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.errors import Problem
from labctl.model.window import DAY, Day, Windows, WindowTime, clock_time
from labctl.spec.campaign_file import CampaignFile
from labctl.spec.source import Document, KeyPath
from labctl.spec.window_fields import WindowField

_WEEK = DAY * len(Day)


def windows_of(spec: CampaignFile) -> Windows | None:
    """The windows that the keys stand for; None when the campaign may run at any time.

    `window` is one window of every day. With neither `window` nor `windows`, a campaign that has a `blackout` or an `until`
    is open all day on all other dates.
    """
    if spec.zone is None:
        return None
    times = [_window_time(window) for window in spec.windows]
    return Windows(
        zone=spec.zone,
        times=tuple(times) or (spec.window or WindowTime(start=0, end=DAY),),
        blackout=frozenset(spec.blackout),
        until=spec.until,
    )


def window_problems(spec: CampaignFile, document: Document) -> Iterator[Problem]:
    """Windows that overlap, twice said, or without a zone; a zone without anything that needs it."""
    given = [key for key in ("window", "windows", "blackout", "until") if key in document.root.entries]
    if given and spec.zone is None:
        message = "needs the time zone that it is meant in: add `zone`"
        yield document.problem((given[0],), message, at_key=True, allowed="such as zone: Europe/Dublin")
    if spec.zone is not None and not given:
        yield document.problem(
            ("zone",), "says nothing without a `window`, `windows`, `blackout` or `until`", at_key=True
        )
    if spec.window is not None and "windows" in given:
        line = document.key_place(("window",)).line
        yield document.problem(("windows",), f"is another way to write `window` (line {line}); keep one", at_key=True)
    if "windows" in given and not spec.windows:
        yield document.problem(("windows",), "the list is empty")
    yield from _overlaps(spec.windows, document)


def _window_time(window: WindowField) -> WindowTime:
    return WindowTime(start=window.time.start, end=window.time.end, days=frozenset(window.days))


def _overlaps(windows: list[WindowField], document: Document) -> Iterator[Problem]:
    """Windows that are open at the same time as an earlier one, also over the end of the week."""
    for index, window in enumerate(windows):
        for earlier in range(index):
            common = _first_common(_window_time(windows[earlier]), _window_time(window))
            if common is not None:
                path: KeyPath = ("windows", index)
                line = document.place(("windows", earlier)).line
                when = f"{list(Day)[common // DAY]} {clock_time(common % DAY)}"
                yield document.problem(path, f"overlaps with the window at line {line}: both are open on {when}")
                break


def _first_common(one: WindowTime, other: WindowTime) -> int | None:
    """The first minute of the week at which both are open; None when there is none."""
    common = [
        max(first, second + shift)
        for first, last in _in_the_week(one)
        for second, end in _in_the_week(other)
        for shift in (-_WEEK, 0, _WEEK)
        if max(first, second + shift) < min(last, end + shift)
    ]
    return min(common) % _WEEK if common else None


def _in_the_week(time: WindowTime) -> Iterator[tuple[int, int]]:
    """Minutes of the week from and to which a window is open; the last may reach into the next week."""
    for number, day in enumerate(Day):
        if day in time.days:
            yield number * DAY + time.start, number * DAY + time.start + time.minutes
