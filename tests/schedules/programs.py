"""What the processes of a night are: services and Celery workers as they are in the field, with short times, a wall
clock that can be stepped, and lines before which they may be killed."""

from __future__ import annotations

import faulthandler
import mmap
import os
import pkgutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery.__main__
from celery.signals import task_prerun

from labctl import clock
from labctl.campaign import session
from labctl.cli import pages
from labctl.cli.main import main as labctl
from tests.schedules.forks import ForkedProcess
from tests.schedules.lines import ENGINE, WORKER, Lines, watch_lab, watch_store
from tests.schedules.shortened import CALL_SECONDS, TASK_TIMES, reconnect_quickly, shorten

TELL = signal.SIGUSR2
"""A process that is sent this signal says in its log what all of its threads do."""
NIGHT = "LABCTL_TEST_NIGHT"
"""Environment variable: the directory of the night that a process belongs to."""
CLOCK_FILE = "clock"
_AHEAD = struct.Struct("=dd")


_PER_PROCESS = ("workers.app", "workers.tasks")
"""Modules that a process may only import when it knows its broker."""


def import_all() -> None:
    """Import what services and workers need, so that nobody who is forked from this process has to."""
    for room in ("labctl.campaign", "labctl.report", "labctl.store", "workers"):
        package = import_module(room)
        for found in pkgutil.walk_packages(package.__path__, f"{room}."):
            elsewhere = ("migrations", ".kvm", ".locallab", ".cli", "rehearsal")
            if found.name not in _PER_PROCESS and not any(word in found.name for word in elsewhere):
                import_module(found.name)


def service(arguments: Sequence[str]) -> None:
    """`labctl ...`, as a service. Its Celery worker is a fork, too. Reports are made, but not drawn: drawing takes longer than
    all else of a night."""
    lines = _begin(ENGINE)
    setattr(pages, "write_html", lambda _report, path: path.touch())  # noqa: B010 - for mypy
    setattr(session, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": _popen}))  # noqa: B010 - for mypy
    lines.trace()
    labctl(list(arguments), prog_name="labctl")


def worker(arguments: Sequence[str]) -> None:
    """`python -m celery ...`."""
    lines = _begin(WORKER)
    watch_lab(lines, call_seconds=CALL_SECONDS)
    task_prerun.connect(lambda **_: lines.trace(), weak=False)
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import_module("workers.tasks")
    shorten(TASK_TIMES)
    reconnect_quickly()
    celery.__main__.main()


def _begin(role: str) -> Lines:
    faulthandler.register(TELL, all_threads=True)
    directory = Path(os.environ[NIGHT])
    shorten()
    clock._clock = SteppedClock(directory, role)
    lines = Lines(directory, role)
    watch_store(lines)
    return lines


def _popen(
    arguments: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, **named: Any
) -> Any:
    """`subprocess.Popen`, but Celery is forked."""
    if list(arguments[:3]) != [sys.executable, "-m", "celery"]:
        return subprocess.Popen(arguments, env=env, cwd=cwd, **named)
    stdout = named["stdout"].fileno()
    return ForkedProcess(
        Path(os.environ[NIGHT]), "worker", arguments[2:], environment=env or os.environ, directory=cwd or Path.cwd(),
        stdout=stdout, stderr=stdout,
    )  # fmt: skip


class SteppedClock(clock.SystemClock):
    """The machine's clock, but the wall time of all processes of a role can be stepped."""

    def __init__(self, directory: Path, role: str) -> None:
        with (directory / CLOCK_FILE).open("rb") as file:
            self._ahead = mmap.mmap(file.fileno(), _AHEAD.size, access=mmap.ACCESS_READ)
        self._position = (ENGINE, WORKER).index(role)

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time() + float(_AHEAD.unpack_from(self._ahead)[self._position])


def step_clocks(directory: Path, *, engines: float, workers: float) -> None:
    """By how many seconds the wall clocks of a night are ahead."""
    path = directory / CLOCK_FILE
    if not path.exists():
        path.write_bytes(_AHEAD.pack(0.0, 0.0))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _AHEAD.size) as times:
        _AHEAD.pack_into(times, 0, engines, workers)
