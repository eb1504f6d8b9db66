"""The clock of a rehearsal, as the processes see it that work under it.

Time is two numbers in a file that all processes have mapped. It is moved on by a conductor (`labctl.conductor`), to the
earliest moment that anybody waits for, as soon as everybody waits. So a process tells the conductor, by a connection of
its own, when the last of its threads has begun to wait, and until when; the conductor answers when that moment has come.
A process that dies closes its connection and holds nobody up.

| line to the conductor | meaning |
|---|---|
| `work NAME` | the process has begun to work on this |
| `wait MOMENT` | all its threads wait, the first of them until this moment |
| `busy` | one of them goes on before its moment, because what it waited for has happened |
| `rest` | it has done with what it worked on |

The conductor's only line is `go`: a moment has come that this process waits for.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labctl.errors import LabError

TIME_FILE = "time"
SOCKET = "conductor"
TIMES = struct.Struct("=dd")
"""Monotonic seconds, and by how much wall time is ahead of them."""

_GLANCE = 0.05
"""Real seconds between two looks at the event that a thread waits for beside the time."""
_GONE_SECONDS = 10.0
"""How long a thread waits on when the conductor is gone: its process is about to be ended, or else something is wrong."""


class VirtualClock:
    """Time as a conductor says it. Safe to use from several threads; a forked child makes its own connection."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with (directory / TIME_FILE).open("rb") as file:
            self._times = mmap.mmap(file.fileno(), TIMES.size, access=mmap.ACCESS_READ)
        self._link: _Link | None = None
        self._making = threading.Lock()

    def now(self) -> float:
        """Seconds since the Unix epoch. May be stepped."""
        monotonic, ahead = TIMES.unpack_from(self._times)
        return float(monotonic + ahead)

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return float(TIMES.unpack_from(self._times)[0])

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event, at most so many seconds. Raises `LabError` (`clock`) when the conductor is gone."""
        if event.is_set():
            return True
        if seconds <= 0:
            return False
        link = self._own_link()
        if not link.works:
            with link.working("waiting"):
                return link.wait(event, self.monotonic() + seconds)
        return link.wait(event, self.monotonic() + seconds)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """For as long as the block runs, this thread works: the clock stands still except while it waits."""
        with self._own_link().working(what):
            yield

    def count(self, threads: int) -> None:
        """So many more threads of this process work (fewer, when negative)."""
        self._own_link().count(threads)

    def _own_link(self) -> _Link:
        with self._making:
            if self._link is None or self._link.pid != os.getpid():
                self._link = _Link(self._directory / SOCKET, self.monotonic)
            return self._link


class _Waiter:
    """A thread that waits until a moment."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.come = False


class _Link:
    """The connection of one process to the conductor, and which of its threads work and wait."""

    def __init__(self, path: Path, monotonic: Callable[[], float]) -> None:
        self.pid = os.getpid()
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._names: list[str] = []
        self._working = 0
        self._waiters: set[_Waiter] = set()
        self._thread = threading.local()
        """In how many blocks of `working` the thread is: it is counted once."""
        self._told = "rest"
        self._gone: float | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            raise _no_conductor() from error
        threading.Thread(target=self._listen, name="virtual-clock", daemon=True).start()

    @property
    def works(self) -> bool:
        """Whether the process has said that it works on something."""
        return bool(self._names)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        depth = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        with self._changed:
            self._names.append(what)
            self._working += not depth
            if len(self._names) == 1:
                self._say(f"work {what}")
                self._told = "busy"
            self._tell()
        try:
            yield
        finally:
            with self._changed:
                self._names.remove(what)
                self._working -= not depth
                self._tell()
            self._thread.depth = depth

    def count(self, threads: int) -> None:
        with self._changed:
            self._working += threads
            self._tell()

    def wait(self, event: threading.Event, until: float) -> bool:
        waiter = _Waiter(until)
        with self._changed:
            self._waiters.add(waiter)
            self._working -= 1
            self._tell()
            while not waiter.come:
                self._changed.wait(_GLANCE)
                if not waiter.come and (event.is_set() or self._gave_up()):
                    self._waiters.remove(waiter)
                    self._working += 1
                    self._tell()
                    break
        if not waiter.come and not event.is_set():
            raise _no_conductor()
        return event.is_set()

    def _gave_up(self) -> bool:
        return self._gone is not None and time.monotonic() - self._gone > _GONE_SECONDS

    def _tell(self) -> None:
        """Tell the conductor how the process stands, if that is news. With nobody at work and nobody waiting, a thread is
        just about to go on."""
        if not self._names:
            stand = "rest"
        elif self._working > 0 or not self._waiters:
            stand = "busy"
        else:
            stand = f"wait {min(waiter.until for waiter in self._waiters)!r}"
        if stand != self._told:
            self._told = stand
            self._say(stand)

    def _say(self, line: str) -> None:
        # When the conductor is gone, the thread that listens hears of it.
        with suppress(OSError):
            self._socket.sendall(f"{line}\n".encode())

    def _listen(self) -> None:
        while self._hear():
            with self._changed:
                now = self._monotonic()
                for waiter in [one for one in self._waiters if one.until <= now]:
                    self._waiters.remove(waiter)
                    self._working += 1
                    waiter.come = True
                self._told = "busy"
                self._tell()
                self._changed.notify_all()
        self._gone = time.monotonic()

    def _hear(self) -> bool:
        """Whether the conductor has said something; False when it is gone."""
        with suppress(OSError):
            return bool(self._socket.recv(1024))
        return False


def _no_conductor() -> LabError:
    return LabError(
        "Nobody keeps the clock of this rehearsal any more.",
        kind="clock",
        why="The command that rehearses is gone.",
        todo="Start processes without LABCTL_CLOCK for work on a real lab.",
    )
