"""The heartbeat of an attempt: says in the store that it lives, and hears there that it must end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from labctl.errors import LabError
from labctl.store import AttemptHandle, Store
from workers.guard import Guard

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0


@contextmanager
def heartbeat(store: Store, handle: AttemptHandle, guard: Guard, phase: Callable[[], str]) -> Iterator[None]:
    """Beat in a thread for as long as the block runs. The guard stops when the store, or the owner's death, says so."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            reason = _reason_to_end(store, handle, phase())
            if reason:
                log.warning("attempt %s must end: %s", handle.id, reason)
                guard.stop(reason)

    thread = threading.Thread(target=beat, name=f"heartbeat-{handle.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _reason_to_end(store: Store, handle: AttemptHandle, phase: str) -> str:
    if not owner_lives():
        return "the command that started this worker is gone"
    try:
        return store.heartbeat(handle, phase=phase)
    except LabError as error:
        log.warning("heartbeat of attempt %s failed: %s", handle.id, error)
        return ""


def owner_lives() -> bool:
    """Whether the process that started this worker for itself still runs; true for workers that nobody owns."""
    owner = os.environ.get("LABCTL_OWNER")
    return not owner or Path(f"/proc/{owner}").exists()
