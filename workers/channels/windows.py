"""Commands and files inside a Windows endpoint, by scripts that any `PowerShell` carries there (WinRM, PowerShell Direct,
VMware Tools).

A command runs under a supervisor, which is a job of its own: it outlives the call, the connection and the worker, writes what
the command prints to files as it is, and ends the command when its lifetime is over. Both are in a job object of the kernel
that ends everything in it as soon as the supervisor has ended: so nothing that the command has started outlives it. Asking
for an end is not known to Windows programs without a window; they are ended at once.

What commands have left in the endpoint (a folder for each) is removed when the channel is closed: each removal would cost a
call of its own, which takes a second or so.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from labctl.errors import LabError
from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError, CommandResult
from workers.channels.command_line import command_line
from workers.channels.windows_calls import (
    BEGIN,
    CALL_SECONDS,
    CLOCK_SAMPLES,
    END,
    OUTLIVE_SECONDS,
    READ_CLOCK,
    READY_SECONDS,
    RETRY_SECONDS,
    STARTING_SECONDS,
    WRITE_CHUNK,
    WRITE_FILE,
    Calls,
    Seen,
)
from workers.channels.windows_process import WindowsProcess
from workers.guard import Deadline, Guard
from workers.powershell.base import Job, Json, PowerShell


class WindowsChannel:
    """A `Channel` into a Windows endpoint. Safe to use from several threads. Closing it closes its `PowerShell`."""

    def __init__(self, *, endpoint: str, powershell: PowerShell, guard: Guard) -> None:
        self._calls = Calls(endpoint=endpoint, powershell=powershell, guard=guard)
        self._guard = guard
        self._commands: dict[str, Job] = {}
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """Whose inside this is, for messages."""
        return self._calls.endpoint

    @property
    def powershell(self) -> PowerShell:
        """Where the scripts of the endpoint run, for those who have scripts of their own."""
        return self._calls.powershell

    def wait_ready(self, *, timeout: float) -> float:
        """See `Channel.wait_ready`. A wrong password is told at once: trying it again might lock the user out."""
        began, deadline = time.monotonic(), Deadline.after(timeout)
        while True:
            self._guard.check()
            try:
                self._calls.call(READ_CLOCK, {}, timeout=min(CALL_SECONDS, max(1.0, deadline.left)))
            except ChannelError as error:
                if error.kind == "channel-refused":
                    raise
                if deadline.passed:
                    raise ChannelError(
                        f"{self.endpoint} did not answer within {timeout:g} s.",
                        kind="channel-unreachable",
                        why=f"{error.what} {error.why}".strip(),
                        todo=error.todo,
                        host=error.host,
                    ) from error
            else:
                return time.monotonic() - began
            self._guard.sleep(min(RETRY_SECONDS, deadline.left))

    def run(self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", quiet: float = 0.0) -> CommandResult:
        """See `Channel.run`. A program that is not there ends with 9009, as `cmd.exe` says it, one that Windows can't start
        with the code of its error."""
        began, deadline = time.monotonic(), Deadline.after(timeout)
        process = self._begin(argv, lifetime=timeout + OUTLIVE_SECONDS, stdin=stdin, port=None, began=began)
        try:
            return process.wait(timeout=deadline.left, quiet=quiet)
        except ChannelError as error:
            if error.kind == "channel-timeout":
                self._raise_overdue(process, argv, timeout, error)
            raise
        except BaseException:
            self._end([process.folder])
            raise

    def start(self, argv: Sequence[str], *, lifetime: float, ready_port: int | None = None) -> WindowsProcess:
        """See `Channel.start`."""
        process = self._begin(argv, lifetime=lifetime, stdin=b"", port=ready_port, began=time.monotonic())
        try:
            seen = self._calls.started(process.folder, process.job, seconds=STARTING_SECONDS)
            if ready_port is None:
                if seen.pid is None:
                    raise self._not_started(argv, seen, ready_port)
            else:
                seen = self._calls.look(process.folder, until="port", seconds=READY_SECONDS, port=ready_port)
                if seen.state != "listening":
                    raise self._not_started(argv, seen, ready_port)
        except BaseException:
            self._end([process.folder])
            raise
        assert seen.pid is not None
        process.pid = seen.pid
        return process

    def read_file(self, path: str, *, timeout: float) -> bytes:
        """See `Channel.read_file`. Content whose digest is not the file's was written meanwhile, and is read once more."""
        deadline = Deadline.after(timeout)
        for _ in range(2):
            content, digest = self._calls.read(path, deadline=deadline)
            if hashlib.sha256(content).hexdigest() == digest:
                return content
        raise ChannelError(
            f"The file {path} could not be read in {self.endpoint}.",
            kind="command-failed",
            why="It changed while it was read, twice.",
        )

    def write_file(self, path: str, content: bytes, *, timeout: float, mode: int = 0o644) -> None:  # noqa: ARG002
        """See `Channel.write_file`. A reader sees the old content or the new. `mode` means nothing to Windows: the file gets
        the rights that its folder hands down."""
        deadline = Deadline.after(timeout)
        beside, digest = f"{path}.labctl-{secrets.token_hex(4)}", hashlib.sha256(content).hexdigest()
        offsets = range(0, max(1, len(content)), WRITE_CHUNK)
        for offset in offsets:
            self._calls.require_time(deadline, f"Writing {path}")
            part, is_last = content[offset : offset + WRITE_CHUNK], offset == offsets[-1]
            document: dict[str, Json] = {
                "path": path,
                "beside": beside,
                "offset": offset,
                "content": base64.b64encode(part).decode(),
                "sha256": digest if is_last else None,
            }
            self._calls.call(WRITE_FILE, document, what=f"The file {path} could not be written")

    def clock(self, *, timeout: float) -> ClockOffset:
        """See `Channel.clock`. Each sample is a call in which a PowerShell starts: its uncertainty is large and told."""
        deadline = Deadline.after(timeout)
        samples = [self._clock_sample()]
        while len(samples) < CLOCK_SAMPLES and not deadline.passed:
            samples.append(self._clock_sample())
        return min(samples, key=lambda sample: sample.uncertainty)

    def close(self) -> None:
        """See `Channel.close`. Ends every command of this channel that still runs, and removes what they have left; never
        raises for a dead endpoint."""
        with self._lock:
            commands = dict(self._commands)
        if commands and self._end(list(commands), remove=True):
            for job in commands.values():
                with suppress(LabError):
                    job.cancel(timeout=CALL_SECONDS)
        with suppress(LabError):
            self.powershell.close()

    # Commands

    def _begin(
        self, argv: Sequence[str], *, lifetime: float, stdin: bytes, port: int | None, began: float
    ) -> WindowsProcess:
        """Have a command started; whether it was is seen by looking."""
        _require_argv(argv)
        line = command_line(argv[1:])
        self._guard.check()
        token = secrets.token_hex(8)
        made = self._calls.call(BEGIN, {"token": token, "port": port})
        if made["busy"]:
            raise ChannelError(
                f"{argv[0]} was not started in {self.endpoint}.",
                kind="command-failed",
                why=f"Another program listens on port {port} already.",
                todo="End that program, or use another port.",
            )
        folder = str(made["folder"])
        if stdin:
            self.write_file(f"{folder}\\in", stdin, timeout=CALL_SECONDS + len(stdin) / WRITE_CHUNK * CALL_SECONDS)
        document: dict[str, Json] = {"folder": folder, "program": argv[0], "line": line or None, "seconds": lifetime}
        job = self._calls.job(document, name=f"command-{token}")
        with self._lock:
            self._commands[folder] = job
        return WindowsProcess(self._calls, folder, job, tuple(argv), began)

    def _end(self, folders: list[str], *, remove: bool = False) -> bool:
        """End commands, cancelled or not; whether that worked. Their supervisors do it else."""
        try:
            self.powershell.call(END, {"folders": list(folders), "remove": remove}, timeout=CALL_SECONDS)
        except LabError:
            return False
        if remove:
            with self._lock:
                for folder in folders:
                    self._commands.pop(folder, None)
        return True

    def _raise_overdue(
        self, process: WindowsProcess, argv: Sequence[str], timeout: float, error: ChannelError
    ) -> NoReturn:
        ended = self._end([process.folder])
        fate = "was killed" if ended else "could not be killed; its endpoint ends it in some seconds"
        raise ChannelError(
            f"{argv[0]} did not end within {timeout:g} s in {self.endpoint}.",
            kind="channel-timeout",
            why=f"{' '.join(argv)} was still running and {fate}.",
            todo="Allow more time, or find out why it hangs.",
        ) from error

    def _not_started(self, argv: Sequence[str], seen: Seen, port: int | None) -> ChannelError:
        said = "; ".join(filter(None, map(_text, (seen.stderr or b"", seen.stdout or b"")))) or "nothing"
        if seen.code is not None:
            before = f" before it listened on port {port}" if port is not None else ""
            why = f"It ended with exit code {seen.code}{before}; it said: {said}"
        else:
            why = f"It did not listen on port {port} within {READY_SECONDS:g} s and was killed; it said: {said}"
        return ChannelError(f"{argv[0]} did not start in {self.endpoint}.", kind="command-failed", why=why)

    def _clock_sample(self) -> ClockOffset:
        self._guard.check()
        before, began = time.time(), time.monotonic()
        said = self._calls.call(READ_CLOCK, {})
        trip = time.monotonic() - began
        return ClockOffset(seconds=said["microseconds"] / 1e6 - (before + trip / 2), uncertainty=trip / 2)


def _require_argv(argv: Sequence[str]) -> None:
    if not argv or not argv[0] or argv[0].startswith("-"):
        raise ValueError(f"not a command: {argv!r}")
    if '"' in argv[0] or any("\0" in argument for argument in argv):
        raise ValueError(f"an argument can't hold a NUL character, and a program's path no quote: {argv!r}")


def _text(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-400:]
