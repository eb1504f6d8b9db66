"""Time, asked for in one place, so that a rehearsal can have a clock of its own.

What measures or schedules the work of a campaign asks here. What watches over processes (heartbeats, patience with a
broker, deadlines of calls) asks the system itself: a process that is silent is silent in real seconds.

The environment variable `LABCTL_CLOCK` chooses the clock of a process: without it the machine's own, with
`virtual:DIRECTORY` the one that a rehearsal keeps there (`labctl.virtual_clock`). Such a clock goes on only when everybody
waits, so it has to know who works: `working` says so of a process, `count` of the threads that it starts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

VARIABLE = "LABCTL_CLOCK"
VIRTUAL = "virtual:"


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Wall time: seconds since the Unix epoch. May be stepped."""

    def monotonic(self) -> float:
        """Seconds that only ever grow, for durations."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set (True) or so many seconds have passed (False)."""

    def working(self, what: str) -> AbstractContextManager[None]:
        """For as long as the block runs, this thread works on something with this name."""

    def count(self, threads: int) -> None:
        """So many more threads of this process work (fewer, when negative)."""


class SystemClock:
    """The machine's own clock, which goes on whatever anybody does."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event, at most so many seconds."""
        return event.wait(seconds)

    def working(self, what: str) -> AbstractContextManager[None]:  # noqa: ARG002 - who works is nothing to it
        """Nothing to be done."""
        return nullcontext()

    def count(self, threads: int) -> None:
        """Nothing to be done."""


def _chosen() -> Clock:
    given = os.environ.get(VARIABLE, "")
    if not given:
        return SystemClock()
    if not given.startswith(VIRTUAL):
        raise ValueError(f"{VARIABLE} is {given!r}; it can only be `{VIRTUAL}DIRECTORY`")
    from labctl.virtual_clock import VirtualClock

    return VirtualClock(Path(given.removeprefix(VIRTUAL)))


_clock: Clock = _chosen()


def now() -> float:
    """Wall time: seconds since the Unix epoch. May be stepped."""
    return _clock.now()


def monotonic() -> float:
    """Seconds that only ever grow, for durations."""
    return _clock.monotonic()


def sleep(seconds: float) -> None:
    """Let so many seconds pass."""
    _clock.wait(threading.Event(), seconds)


def wait(event: threading.Event, seconds: float) -> bool:
    """Wait until the event is set (True) or so many seconds have passed (False)."""
    return _clock.wait(event, seconds)


def working(what: str) -> AbstractContextManager[None]:
    """For as long as the block runs, this thread works on something with this name: a clock of a rehearsal stands still
    except while it waits."""
    return _clock.working(what)


def count(threads: int) -> None:
    """So many more threads of this process work (fewer, when negative), beside the one that `working` counts.

    A thread is counted before it starts, by the one that starts it, so that the clock can't go on in between. One that
    only waits for others is not counted.
    """
    _clock.count(threads)


@contextmanager
def using(clock: Clock) -> Iterator[None]:
    """For as long as the block runs, this process has this clock."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
