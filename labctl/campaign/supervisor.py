"""Keeping a process alive: it is started again whenever it has ended or is ill, ever more slowly when that doesn't help."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from labctl.errors import LabError

STARTS = 5
"""When so many starts in a row have come to nothing, it is given up, or tried again at long intervals."""
_ILL_LOOK_SECONDS = 1.0
_STEADY_SECONDS = 30.0
"""A process that has lived so long is started again at once when it ends."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
_DOUBLINGS = 10
"""More would make no difference, and after a night of them be no number any more."""


class Kept(Protocol):
    """A process that is to be kept alive: how it is started, and how it is told that it is well."""

    name: str
    """As people are told: `The worker`."""
    kind: str
    """The kind of the `LabError` when it can't be started."""
    start_seconds: float
    """It is up within so long, or never."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, as the leader of a process group. Raises `LabError` when its program is missing."""

    def ready(self) -> bool:
        """Whether it is up by now. Asked often."""

    def ill(self) -> str:
        """Why it must be started again though it runs; empty while it is well. Asked once a second."""

    def put_down(self, process: subprocess.Popen[bytes]) -> None:
        """End it at once, because it is ill."""

    def last_words(self) -> str:
        """What it said last. Raises `LabError` when starting it again would make no sense."""


class Supervisor:
    """Keeps one process alive. Nothing here waits: `look` is called every now and then and does what is due.

    With `for_ever` it is not given up any more once it has been up: nobody is there to start it again.
    """

    def __init__(self, kept: Kept, *, say: Callable[[str], None], for_ever: bool = False) -> None:
        self._kept = kept
        self._say = say
        self._for_ever = for_ever
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._due = self._asked = 0.0
        self._up = False
        self._in_vain = 0
        self._short_lives = 0
        self.generation = 0
        """How often it has come up."""

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process as it runs now; None while it is to be started again."""
        return self._process

    @property
    def up(self) -> bool:
        """Whether it is up, as far as is known."""
        return self._up

    def look(self) -> None:
        """Do what is due. Raises `LabError` when it could not be started `STARTS` times in a row and is given up."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._due:
                self._start(now)
            return
        code = self._process.poll()
        if code is not None:
            self._gone(f"{self._kept.name} {_ending(code)}.", said=code >= 0)
        elif not self._up:
            self._come_up(now)
        elif now - self._asked >= _ILL_LOOK_SECONDS:
            self._asked = now
            why = self._kept.ill()
            if why:
                self._kept.put_down(self._process)
                self._gone(f"{self._kept.name} {why}.")

    def begin(self, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start it and wait until it is up, or until `stopped` says that nobody wants it any more."""
        while not self._up and not stopped():
            self.look()
            if not self._up:
                time.sleep(0.02)

    def _start(self, now: float) -> None:
        self._began = now
        try:
            self._process = self._kept.start()
        except (OSError, subprocess.SubprocessError) as error:
            # No memory, too many processes or open files, a full disk: likely over in a while.
            self._gone(f"{self._kept.name} could not be started: {error}.", said=False)

    def _come_up(self, now: float) -> None:
        assert self._process is not None
        if self._kept.ready():
            if self._in_vain >= STARTS:
                self._say(f"{self._kept.name} is up again.")
            self._up, self._in_vain, self._asked = True, 0, now
            self.generation += 1
        elif now - self._began > self._kept.start_seconds:
            kill_group(self._process.pid)
            self._process.wait()
            self._gone(f"{self._kept.name} did not come up within {self._kept.start_seconds:.0f} s.")

    def _gone(self, what: str, *, said: bool = True) -> None:
        words = self._kept.last_words()
        why = words if said else ""
        was_up, self._up, self._process = self._up, False, None
        self._in_vain = 0 if was_up else self._in_vain + 1
        steady = was_up and time.monotonic() - self._began > _STEADY_SECONDS
        self._short_lives = 0 if steady else self._short_lives + 1
        if self._in_vain >= STARTS and not (self._for_ever and self.generation):
            raise LabError(
                f"{self._kept.name} could not be started, {STARTS} times in a row.",
                kind=self._kept.kind,
                why=f"{what} {why}".strip(),
                todo="Mend what it says. Nothing is lost: the campaigns go on when labctl is started again.",
            )
        pause = min(_FIRST_PAUSE * 2 ** min(max(0, self._short_lives - 1), _DOUBLINGS), _LONGEST_PAUSE)
        self._due = time.monotonic() + pause
        if self._in_vain < STARTS:
            self._say(f"{what} It is started again. {why}".strip())
        elif self._in_vain == STARTS:
            self._say(
                f"{what} It is tried again until it comes up, at most {_LONGEST_PAUSE:.0f} s apart. {why}".strip()
            )


def _ending(code: int) -> str:
    """How a process ended, in words."""
    return f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def end(process: subprocess.Popen[bytes], *, seconds: float) -> None:
    """End a process and its group: ask it, wait so many seconds, then force."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    kill_group(process.pid)
    process.wait()


def kill_group(leader: int) -> None:
    """End a process group that we started, at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def group_lives(leader: int) -> bool:
    """Whether a process group that we started has any process left."""
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def tail(log: Path, *, lines: int = 5) -> str:
    """The last lines of a log, in one."""
    with contextlib.suppress(OSError):
        return " | ".join(log.read_text(errors="replace").strip().splitlines()[-lines:])
    return ""
