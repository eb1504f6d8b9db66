"""Time, asked for in one place, so that a rehearsal can have a clock of its own.

What measures or schedules the work of a campaign asks here. What watches over processes (heartbeats, patience with a
broker, deadlines of calls) asks the system itself: a process that is silent is silent in real seconds.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Wall time: seconds since the Unix epoch. May be stepped."""

    def monotonic(self) -> float:
        """Seconds that only ever grow, for durations."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set (True) or so many seconds have passed (False)."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event, at most so many seconds."""
        return event.wait(seconds)


_clock: Clock = SystemClock()


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
