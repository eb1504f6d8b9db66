"""Incidents of a rehearsal: what happens to the engine itself in the course of a night.

What happens to hosts and VMs is the simulated hypervisor's business. An incident happens at a moment of the rehearsal's clock,
and only to processes that the rehearsal itself has started.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import redis

from labctl.conductor import Conductor


class IncidentKind(StrEnum):
    """What happens."""

    BROKER_KILLED = "broker-killed"
    """The private Redis is killed; its messages are lost."""
    BROKER_FLUSHED = "broker-flushed"
    """Every byte in Redis is lost."""
    WORKER_KILLED = "worker-killed"
    """The main process of the worker is killed; its attempts go on."""
    CLOCK_STEPPED = "clock-stepped"
    """Somebody sets the clock of the machine."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One incident. `at` is in seconds since the beginning of the rehearsal, `step` those by which a clock is stepped."""

    kind: IncidentKind
    at: float
    step: float = 0.0


class Incidents:
    """The incidents of one rehearsal, which happen one after the other."""

    def __init__(self, planned: Iterable[Incident] = ()) -> None:
        self._waiting = sorted(planned, key=lambda one: one.at)
        self.happened: list[Incident] = []

    def moments(self) -> Iterator[float]:
        """When the next one happens."""
        yield from (one.at for one in self._waiting[:1])

    def happen(self, conductor: Conductor) -> None:
        """Let everything happen whose moment has come."""
        while self._waiting and self._waiting[0].at <= conductor.moment:
            incident = self._waiting.pop(0)
            _happen(incident, conductor)
            self.happened.append(incident)


def _happen(incident: Incident, conductor: Conductor) -> None:
    if incident.kind is IncidentKind.CLOCK_STEPPED:
        conductor.step_wall(incident.step)
    elif incident.kind is IncidentKind.BROKER_FLUSHED:
        for pid in _children("redis-server"):
            _flush(Path(f"/proc/{pid}/cwd").readlink() / "redis.sock")
    else:
        name = "redis-server" if incident.kind is IncidentKind.BROKER_KILLED else "celery"
        for pid in _children(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _flush(socket: Path) -> None:
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=5.0)
    with suppress(redis.RedisError):
        client.flushall()
    client.close()


def _children(word: str) -> Iterator[int]:
    """The processes that this one has started and whose command line has this word in it."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and word.encode() in (entry / "cmdline").read_bytes():
                yield int(entry.name)
