"""Moments, spans and counts in words, as commands say them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from labctl.model.outcome import Outcome, RunState

_ORDER = (*Outcome, RunState.ACTIVE, RunState.PENDING)
_WAITING = {RunState.ACTIVE.value: "in progress", RunState.PENDING.value: "waiting"}


def moment(instant: float, zone: ZoneInfo | None = None) -> str:
    """An instant by the clock of a zone, or of this machine: `Mon 2026-11-30 22:00 GMT`."""
    return f"{datetime.fromtimestamp(instant, zone).astimezone(zone):%a %Y-%m-%d %H:%M %Z}"


def between(first: float, last: float) -> str:
    """Two instants by the clock of this machine: `Mon 2026-11-30 22:00 to 23:10 GMT`; once when they are the same."""
    start, end = (datetime.fromtimestamp(instant).astimezone() for instant in (first, last))
    if moment(first) == moment(last):
        return moment(first)
    if (start.date(), start.tzname()) == (end.date(), end.tzname()):
        return f"{start:%a %Y-%m-%d %H:%M} to {end:%H:%M %Z}"
    return f"{moment(first)} to {moment(last)}"


def stamp(instant: float) -> str:
    """An instant for programs: ISO 8601 in UTC."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds")


def duration(seconds: float) -> str:
    """A span: `40 s`, `12 min`, `7 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def durations(low: float, high: float) -> str:
    """A range of spans: `12 to 19 min`."""
    first, last = duration(low), duration(high)
    if first == last:
        return first
    unit = last.rpartition(" ")[2]
    return (
        f"{first.removesuffix(f' {unit}')} to {last}"
        if first.count(" ") == last.count(" ") == 1
        else f"{first} to {last}"
    )


def size(count: float) -> str:
    """Bytes with a binary prefix: `22 B`, `160 KiB`, `1.5 GiB`."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return (
                f"{count / 1024**power:.3g} {unit}"
                if count < 1000 * 1024**power
                else f"{count / 1024**power:.0f} {unit}"
            )
    return f"{count:.0f} B"


def counts(runs: Mapping[str, int]) -> str:
    """How many runs stand where: `10 ok, 2 failed, 1 in progress, 26 waiting`."""
    known = [name.value for name in _ORDER]
    names = [*known, *sorted(set(runs) - set(known))]
    found = [f"{runs[name]:,} {_WAITING.get(name, name)}" for name in names if runs.get(name)]
    return ", ".join(found) or "no runs"


def many(number: int, word: str) -> str:
    """A number of things: `1 run`, `1,200 runs`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def listed(words: Iterable[str], last_word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} {last_word} {last}" if first else last


def span(seconds: float) -> str:
    """Seconds as a clock shows them: `4:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
