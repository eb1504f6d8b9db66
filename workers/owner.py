"""The owner of a worker: the service (`labctl worker`, `labctl run`) that has started it, and its wishes for the end.

A worker whose owner has died ends.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from labctl.campaign.worker_files import OWNER_VARIABLE, files_of_this_worker


def owner_lives() -> bool:
    """Whether the service that started this worker still runs; true for workers that nobody owns."""
    owner = os.environ.get(OWNER_VARIABLE)
    return not owner or _state(owner) not in ("", "Z", "X")


def owner_wants_an_end() -> bool:
    """Whether the owner asks for all attempts to be ended now. It says so by a file, because it also does when neither
    the store nor the broker can be used any more."""
    files = files_of_this_worker()
    return files is not None and files.end_is_wanted


def owner_wants_parking() -> bool:
    """Whether VMs may be left for the next attempt: not when nobody may come to make one."""
    files = files_of_this_worker()
    return owner_lives() and (files is None or not files.parks_no_more)


def refuse_to_work(why: str) -> None:
    """End the whole worker, because it can't work here at all, and tell the owner why."""
    files = files_of_this_worker()
    if files is not None:
        files.refuse(why)
        os.kill(os.getppid(), signal.SIGTERM)


def _state(pid: str) -> str:
    """The state of a process as proc(5) has it, `Z` being one that is dead and not yet reaped; empty without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
