"""Processes by names that are no other's: of whom it can be told from here whether they have died.

A name is `MACHINE:PID:START`. MACHINE is a host name, which need not be unique, with a mark of the running kernel and of
the process namespace, which is: so containers, clones of one image and a machine before and after a reboot are told apart.
START is when the process was started, in clock ticks since the kernel's own start, so that a process that was given the id
of a dead one is not taken for it (proc(5): `/proc/PID/stat`, field 22).
"""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_DEAD_STATES = ("Z", "X")


@cache
def this_machine() -> str:
    """The name of this machine, as long as it runs: `HOSTNAME-MARK`."""
    mark = socket.gethostname()
    with suppress(OSError):
        mark = _BOOT.read_text().strip() + str(_NAMESPACE.readlink())
    host = socket.gethostname().replace(":", "-")
    return f"{host}-{hashlib.sha256(mark.encode()).hexdigest()[:8]}"


def this_process() -> str:
    """The name of the process that asks."""
    return process_name(os.getpid())


def process_name(pid: int) -> str:
    """The name of a process of this machine."""
    return f"{this_machine()}:{pid}:{_start(pid) or ''}"


def has_died(name: str) -> bool:
    """Whether a process is known to have died: it was one of this machine, and its id belongs to nobody or to another one.

    False for processes of other machines, of which nothing can be told from here, and for those that can't be looked at.
    """
    machine, _, rest = name.partition(":")
    pid, _, start = rest.partition(":")
    if _mark(machine) != _mark(this_machine()) or not pid.isdigit():
        return False
    now = _start(int(pid))
    return now is None or bool(start and now and now != start)


def pid_of(name: str) -> int | None:
    """The process id in a name; None when it is a name of another kind."""
    parts = name.split(":")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None


def _mark(machine: str) -> str:
    """What tells a machine from all others: its host name may change while it runs."""
    return machine.rpartition("-")[2]


def _start(pid: int) -> str | None:
    """When a process was started, in clock ticks. None when it has died, also when nobody has reaped it yet; empty when that
    can't be told: no file can be opened now, or what /proc shows is restricted."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "" if _is_there(pid) else None
    except OSError:
        return ""
    if len(fields) < 20:
        return ""
    return None if fields[0] in _DEAD_STATES else fields[19]


def _is_there(pid: int) -> bool:
    """Whether a process has this id, as the kernel itself says: /proc can be mounted so that it hides those of others."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
