"""A clock for tests of the engine that stands still unless it is told, and steps back if it is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from labctl import clock


@contextmanager
def machine_in(zone: str) -> Iterator[None]:
    """The clock of this machine is in a time zone."""
    before = os.environ.get("TZ")
    try:
        os.environ["TZ"] = zone
        time.tzset()
        yield
    finally:
        del os.environ["TZ"]
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


class Wall:
    """Wall time and the monotonic one, which goes on with it and never back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: float = 1_800_000_000.0) -> None:
        self.at = at
        """Unless said otherwise Friday, 15 January 2027, 08:00 UTC."""
        self.passed = 0.0
        monkeypatch.setattr(clock, "now", lambda: self.at)
        monkeypatch.setattr(clock, "monotonic", lambda: self.passed)

    def pass_by(self, seconds: float) -> None:
        self.at += seconds
        self.passed += seconds

    def step(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.at += seconds

    def go_to(self, text: str, zone: str = "UTC") -> None:
        """On to this wall time of the zone: `2026-10-24 21:00`."""
        moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()
        self.passed += max(0.0, moment - self.at)
        self.at = moment
