"""The owner of a worker: the `labctl run` that started it for itself, if one did."""

from __future__ import annotations

import os
from pathlib import Path


def owner_lives() -> bool:
    """Whether the process that started this worker for itself still runs; true for workers that nobody owns."""
    owner = os.environ.get("LABCTL_OWNER")
    return not owner or _state(owner) not in ("", "Z", "X")


def owner_wants_an_end() -> bool:
    """Whether the owner asks for all attempts to be ended now. It says so by a file, because it also does when neither
    the store nor the broker can be used any more."""
    stop = os.environ.get("LABCTL_STOP")
    return bool(stop) and Path(str(stop)).exists()


def _state(pid: str) -> str:
    """The state of a process as proc(5) has it, `Z` being one that is dead and not yet reaped; empty without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
