"""The heartbeat of an attempt: says in the store that it lives, and hears there that it must end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labctl.errors import LabError
from labctl.model.patience import patience
from labctl.store import AttemptHandle, Store
from workers.fence import real_seconds
from workers.guard import Guard
from workers.owner import owner_lives, owner_wants_an_end
from workers.together import beside

log = logging.getLogger(__name__)


@contextmanager
def heartbeat(store: Store, handle: AttemptHandle, guard: Guard, phase: Callable[[], str]) -> Iterator[None]:
    """Beat in a thread for as long as the block runs. The guard stops when the store, or the owner's death, says so.

    The claim was the first beat.
    """
    ended, seconds = threading.Event(), patience().beat

    def heed(reason: str) -> None:
        if reason and not guard.stopped:
            log.warning("attempt %s must end: %s", handle.id, reason)
            guard.stop(reason)

    def beat() -> None:
        while not ended.wait(seconds):
            heed(_owner_says() or _store_says(store, handle, guard, phase()))

    heed(_owner_says())
    beating = beside(beat)
    try:
        yield
    finally:
        ended.set()
        beating.result()


def _owner_says() -> str:
    """Why the owner of this worker wants the attempt to end; an empty text when it doesn't."""
    if not owner_lives():
        return "the command that started this worker is gone"
    if owner_wants_an_end():
        return "the command that started this worker is ending"
    return ""


def _store_says(store: Store, handle: AttemptHandle, guard: Guard, phase: str) -> str:
    asked = real_seconds()
    try:
        reason = store.heartbeat(handle, phase=phase)
    except LabError as error:
        log.warning("heartbeat of attempt %s failed: %s", handle.id, error)
        return ""
    except Exception:
        # Whatever it is, the next beat may get through; an attempt whose heart stops is given up.
        log.exception("heartbeat of attempt %s failed", handle.id)
        return ""
    if guard.fence is not None and reason:
        # Its token may be void, or somebody only wants it to end: the fence finds out before anything is changed.
        guard.fence.doubt()
    elif guard.fence is not None:
        guard.fence.heard(asked)
    return reason
