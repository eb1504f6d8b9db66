"""Processes that begin as a fork of one that has imported everything: seconds of imports are saved, all else is real.

A fork server is a process with no threads, no store and no connection. Whoever wants a process (a night its services, a
service its Celery worker) asks it by a socket, and gets one with the arguments, environment, directory and outputs that
it would have given to `subprocess.Popen`. All processes of a night descend from its fork server, which is told of the
death of everyone (PR_SET_CHILD_SUBREAPER), so none can hide.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

SOCKET, EXITS, PROGRAMS = "forks", "exits", "programs"
_PR_SET_CHILD_SUBREAPER = 36
_LINE = 1_000_000

Program = Callable[[Sequence[str]], None]
"""What a process does with its arguments. It ends with the code of its `SystemExit`, or 1 after another error."""


class ForkServer:
    """The server, in the process that is to be forked. `directory` is its own, and empty."""

    def __init__(self, directory: Path, programs: Mapping[str, Program]) -> None:
        self._directory = directory
        self._programs = programs
        for name in (EXITS, PROGRAMS):
            (directory / name).mkdir()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(directory / SOCKET))
        self._listener.listen(64)
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        self._waker = waker
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve_until_exit_of(self, first: int) -> None:
        """Fork whoever is asked for, and reap whoever dies, until this child has ended."""
        while self._reap(first):
            ready, _, _ = select.select([self._listener.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
            if self._listener.fileno() in ready:
                connection, _ = self._listener.accept()
                with connection:
                    self._answer(connection)

    def fork(self, program: str, arguments: Sequence[str], *, environment: Mapping[str, str], directory: str,
             outputs: tuple[int, int]) -> int:  # fmt: skip
        """Start a process, the leader of a session of its own. Returns its id."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become(program, arguments, environment, directory, outputs)
        (self._directory / PROGRAMS / str(pid)).write_text(program)
        return pid

    def _answer(self, connection: socket.socket) -> None:
        text, files, _, _ = socket.recv_fds(connection, _LINE, 2)
        while not text.endswith(b"\n"):
            text += connection.recv(_LINE)
        asked = json.loads(text)
        try:
            pid = self.fork(asked["program"], asked["arguments"], environment=asked["environment"],
                            directory=asked["directory"], outputs=(files[0], files[1]))  # fmt: skip
        finally:
            for file in files:
                os.close(file)
        with suppress(OSError):
            connection.sendall(f"{pid}\n".encode())

    def _become(self, program: str, arguments: Sequence[str], environment: Mapping[str, str], directory: str,
                outputs: tuple[int, int]) -> NoReturn:  # fmt: skip
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(outputs[0], 1)
            os.dup2(outputs[1], 2)
            os.closerange(3, 256)
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(directory)
            tempfile.tempdir = None
            self._programs[program](arguments)
            code = 0
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            # What the parent wants to be done at its own end is none of this process's business.
            os._exit(code)

    def _reap(self, first: int) -> bool:
        """Note the exit codes of all children that have ended. False when the first is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            path = self._directory / EXITS / str(pid)
            path.with_suffix(".part").write_text(str(os.waitstatus_to_exitcode(status)))
            path.with_suffix(".part").rename(path)
            if pid == first:
                return False


class ForkedProcess:
    """A process of a fork server, with what `subprocess.Popen` offers of it."""

    def __init__(self, server: Path, program: str, arguments: Sequence[str], *, environment: Mapping[str, str],
                 directory: Path, stdout: int, stderr: int) -> None:  # fmt: skip
        self.args = arguments
        self.returncode: int | None = None
        self._exits = server / EXITS
        asked = {"program": program, "arguments": list(arguments), "environment": dict(environment),
                 "directory": str(directory)}  # fmt: skip
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(server / SOCKET))
            text = json.dumps(asked).encode() + b"\n"
            sent = socket.send_fds(connection, [text], [stdout, stderr])
            connection.sendall(text[sent:])
            answer = connection.makefile().readline()
        self.pid = int(answer)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            with suppress(FileNotFoundError):
                self.returncode = int((self._exits / str(self.pid)).read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def descendants(ancestor: int) -> dict[int, str]:
    """All processes that descend from one, with their states as proc(5) has them; those that are dead are left out."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - asked for many times a second
        if entry.isdigit():
            with suppress(OSError):
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
                parents[int(entry)] = int(parent), state
    found: dict[int, str] = {}
    for pid, (_, state) in parents.items():
        above, seen = pid, 0
        while above in parents and above != ancestor and seen < len(parents):
            above, seen = parents[above][0], seen + 1
        if above == ancestor and pid != ancestor and state not in "ZX":
            found[pid] = state
    return found


def kill_descendants(ancestor: int) -> None:
    """End all processes that descend from one, until there are none."""
    while found := descendants(ancestor):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise
        time.sleep(0.01)
