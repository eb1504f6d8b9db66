"""The channel into a simulated endpoint: the same promises as a real one, with nothing behind it but a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from labctl import clock
from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError, CommandResult
from workers.guard import Deadline, Guard


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a command left: its exit code and its output."""

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""


class Program(Protocol):
    """A program that runs in a simulated endpoint."""

    @property
    def pid(self) -> int:
        """Its process id inside the endpoint."""

    def ends(self) -> float | None:
        """When it ends by itself, in seconds of `labctl.clock.monotonic`; None: not known, or never."""

    def said(self) -> Said:
        """What it has left so far."""

    def kill(self) -> None:
        """End it."""


class Inside(Protocol):
    """The inside of a simulated endpoint. Everything raises `ChannelError` when it can't be reached."""

    @property
    def name(self) -> str:
        """Whose inside it is, for messages."""

    def touch(self, operation: str, *, seconds: float) -> None:
        """The line before an operation: whether the endpoint can be reached at all."""

    def ready(self) -> float | None:
        """When it first answers, in seconds of `labctl.clock.monotonic`; None: never."""

    def execute(self, argv: Sequence[str], stdin: bytes) -> Said:
        """Run a command to its end; the time it takes passes."""

    def start(self, argv: Sequence[str], *, ready_port: int | None, lifetime: float) -> Program:
        """Start a program; a server listens when this returns."""

    def read_file(self, path: str) -> bytes:
        """The content of a file."""

    def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file."""

    def clock(self) -> ClockOffset:
        """Its clock against the worker's."""


class SimulatedProcess:
    """A program in a simulated endpoint, as `Process` has it."""

    def __init__(self, inside: Inside, program: Program, argv: tuple[str, ...], guard: Guard) -> None:
        self._inside = inside
        self._program = program
        self._argv = argv
        self._guard = guard
        self._began = clock.monotonic()

    @property
    def pid(self) -> int:
        """See `Process.pid`."""
        return self._program.pid

    def finished(self) -> bool:
        """See `Process.finished`."""
        self._inside.touch("finished", seconds=_CALL_SECONDS)
        ends = self._program.ends()
        return ends is not None and _past(ends)

    def wait(self, *, timeout: float, quiet: float = 0.0) -> CommandResult:
        """See `Process.wait`. Quiet is all of it: nothing is asked before the end."""
        del quiet
        deadline = Deadline.after(timeout)
        while True:
            ends = self._program.ends()
            until = deadline.at if ends is None else min(ends, deadline.at)
            self._guard.sleep(until - clock.monotonic())
            if ends is not None and _past(ends):
                break
            if deadline.passed:
                raise ChannelError(
                    f"{self._argv[0]} in {self._inside.name} had not ended after {timeout:.1f} s.",
                    kind="channel-timeout",
                )
        self._inside.touch("wait", seconds=deadline.left)
        said = self._program.said()
        return CommandResult(
            argv=self._argv,
            exit_code=said.exit_code,
            stdout=said.stdout,
            stderr=said.stderr,
            seconds=clock.monotonic() - self._began,
        )

    def output(self) -> tuple[bytes, bytes]:
        """See `Process.output`."""
        self._inside.touch("output", seconds=_CALL_SECONDS)
        said = self._program.said()
        return said.stdout, said.stderr

    def kill(self) -> None:
        """See `Process.kill`."""
        self._inside.touch("kill", seconds=_CALL_SECONDS)
        self._program.kill()


class SimulatedChannel:
    """A `Channel` into a simulated endpoint."""

    def __init__(self, *, inside: Inside, guard: Guard) -> None:
        self._inside = inside
        self._guard = guard

    @property
    def endpoint(self) -> str:
        """See `Channel.endpoint`."""
        return self._inside.name

    def wait_ready(self, *, timeout: float) -> float:
        """See `Channel.wait_ready`."""
        began = clock.monotonic()
        deadline = Deadline.after(timeout)
        self._inside.touch("wait_ready", seconds=timeout)
        ready = self._inside.ready()
        self._guard.sleep(min(deadline.at, deadline.at if ready is None else ready) - began)
        self._inside.touch("ready", seconds=deadline.left)
        if ready is None or not _past(ready):
            raise ChannelError(
                f"{self._inside.name} did not answer within {timeout:.1f} s.", kind="channel-unreachable"
            )
        return clock.monotonic() - began

    def run(self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", quiet: float = 0.0) -> CommandResult:
        """See `Channel.run`."""
        del quiet
        began = clock.monotonic()
        self._guard.check()
        self._inside.touch("run", seconds=timeout)
        self._require_ready(timeout)
        said = self._inside.execute(argv, stdin)
        return CommandResult(
            argv=tuple(argv),
            exit_code=said.exit_code,
            stdout=said.stdout,
            stderr=said.stderr,
            seconds=clock.monotonic() - began,
        )

    def start(self, argv: Sequence[str], *, lifetime: float, ready_port: int | None = None) -> SimulatedProcess:
        """See `Channel.start`."""
        self._guard.check()
        self._inside.touch("start", seconds=_CALL_SECONDS)
        self._require_ready(_CALL_SECONDS)
        program = self._inside.start(argv, ready_port=ready_port, lifetime=lifetime)
        return SimulatedProcess(self._inside, program, tuple(argv), self._guard)

    def read_file(self, path: str, *, timeout: float) -> bytes:
        """See `Channel.read_file`."""
        self._inside.touch("read_file", seconds=timeout)
        return self._inside.read_file(path)

    def write_file(self, path: str, content: bytes, *, timeout: float, mode: int = 0o644) -> None:
        """See `Channel.write_file`."""
        del mode
        self._inside.touch("write_file", seconds=timeout)
        self._inside.write_file(path, content)

    def clock(self, *, timeout: float) -> ClockOffset:
        """See `Channel.clock`."""
        self._inside.touch("clock", seconds=timeout)
        return self._inside.clock()

    def close(self) -> None:
        """Nothing is kept open."""

    def _require_ready(self, timeout: float) -> None:
        ready = self._inside.ready()
        if ready is None or not _past(ready):
            self._guard.sleep(timeout)
            raise ChannelError(f"{self._inside.name} did not answer within {timeout:.1f} s.", kind="channel-timeout")


_CALL_SECONDS = 20.0
"""Deadline of a call that is given none."""


def _past(moment: float) -> bool:
    """Whether a moment has come, to the nanosecond: sums of seconds are not exact."""
    return moment - clock.monotonic() < 1e-9
