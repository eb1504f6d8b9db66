"""A command in a terminal of its own (a pty), or with its output in a pipe, and what it has shown."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

LABCTL = Path(sys.executable).with_name("labctl")
PATIENCE = 60.0
"""Seconds after which something that a test waits for is taken as never coming."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A `labctl` command that runs, and everything that it has shown so far."""

    def __init__(self, state: Path, *arguments: object, terminal: bool, rows: int = 40, columns: int = 160) -> None:
        read, write = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = os.environ | {"LABCTL_STATE": str(state), "TERM": "xterm", "PYTHONUNBUFFERED": "1"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [str(LABCTL), *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=write, stderr=write, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(write)
        self._read = read
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()

    @property
    def shown(self) -> str:
        """All that was shown, without control sequences."""
        return _CONTROL.sub("", self._shown.decode(errors="replace"))

    @property
    def moved(self) -> bool:
        """Whether it has drawn over what it had shown before."""
        return b"\x1b[1A" in self._shown

    def until(self, what: str, *, after: int = 0) -> int:
        """Wait until this was shown. Returns where it ends, so that what comes later can be waited for."""
        return self.until_true(lambda: self.shown.find(what, after) + 1, what) - 1 + len(what)

    def until_true(self, found: Callable[[], int], what: str) -> int:
        """Wait until something is true."""
        deadline = time.monotonic() + PATIENCE
        while not (value := found()):
            assert time.monotonic() < deadline, f"waited in vain for {what!r}; it shows: {self.shown}"
            time.sleep(0.02)
        return value

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Its exit code, with all that it has shown read."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        """End it, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)

    def _collect(self) -> None:
        try:
            while data := os.read(self._read, 65536):
                self._shown += data
        except OSError:  # a pty whose other side is closed
            pass
        finally:
            os.close(self._read)
