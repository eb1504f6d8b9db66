"""The guard of an attempt: every wait goes through it, so that nothing waits for ever and a cancel is seen at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from labctl import clock
from labctl.errors import AttemptCancelled
from workers.fence import Fence


class Guard:
    """Says whether the attempt may go on. Thread-safe; one per attempt, shared by everything that it calls.

    Work that is no attempt's (cleaning, checks of a lab) has a guard without a fence.
    """

    def __init__(self, fence: Fence | None = None) -> None:
        self.fence = fence
        self._stopped = threading.Event()
        self._reason = ""

    def stop(self, reason: str) -> None:
        """Ask the attempt to end at its next step. The first reason is kept."""
        if not self._stopped.is_set():
            self._reason = reason
            self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether somebody asked the attempt to end."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise `AttemptCancelled` when the attempt was asked to end."""
        if self._stopped.is_set():
            raise AttemptCancelled("The attempt was asked to end.", why=self._reason)

    def confirm(self) -> None:
        """Raise `AttemptCancelled` when the attempt was asked to end or is no longer this worker's. To be asked before
        anything of the lab is changed; raises `LabError` when nobody knows."""
        self.check()
        if self.fence is not None:
            self.fence.confirm()

    def sleep(self, seconds: float) -> None:
        """Wait, or raise `AttemptCancelled` as soon as the attempt is asked to end."""
        if seconds > 0 and clock.wait(self._stopped, seconds):
            self.check()
        self.check()


@dataclass(frozen=True)
class Deadline:
    """A point in monotonic time."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline that many seconds from now."""
        return cls(clock.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at - clock.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return clock.monotonic() >= self.at
