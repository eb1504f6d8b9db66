"""The fence: an attempt that was given up while its worker was paused finds its token void, and touches no host any more."""

from __future__ import annotations

import time
from collections.abc import Callable

from labctl.errors import AttemptCancelled
from labctl.model.patience import patience
from labctl.store import AttemptHandle, Store


class Fence:
    """Confirms that an attempt is still its worker's, before anything of the lab is changed. Thread-safe.

    It costs nothing as long as a heartbeat got through a moment ago, because an attempt is only given up after a much longer
    silence. The moment is told by a clock that goes on while the process is stopped and while the machine sleeps: a worker
    that was paused anywhere, even between two lines of this file, asks the store.
    """

    def __init__(self, holds_token: Callable[[], bool], *, fresh: float) -> None:
        """`fresh` is for how many seconds a heartbeat counts."""
        self._holds_token = holds_token
        self._fresh = fresh
        self._heard = float("-inf")
        self._void = False

    @classmethod
    def of(cls, store: Store, handle: AttemptHandle, *, claimed: float) -> Fence:
        """The fence of an attempt, whose claim the store was asked for at the moment `claimed` of `real_seconds`."""
        fence = cls(lambda: store.holds_token(handle), fresh=patience().fresh)
        fence.heard(claimed)
        return fence

    def heard(self, asked: float) -> None:
        """The store has said that the token is good, when it was asked at this moment of `real_seconds`."""
        self._heard = asked

    def doubt(self) -> None:
        """Ask the store next time, whatever was heard before."""
        self._heard = float("-inf")

    def confirm(self) -> None:
        """Raise `AttemptCancelled` when the token is void, and `LabError` when the store can't be asked."""
        asked = real_seconds()
        if not self._void and asked - self._heard < self._fresh:
            return
        if self._void or not self._holds_token():
            self._void = True
            raise AttemptCancelled(
                "The attempt is no longer this worker's.",
                why="Its worker was silent for too long: the attempt was given up, and others may use its hosts.",
            )
        self._heard = asked


def real_seconds() -> float:
    """Seconds of a clock that never stops: neither while this process is stopped nor while the machine sleeps (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
