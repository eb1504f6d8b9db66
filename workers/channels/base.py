"""What every channel offers: run a command, start one that outlives the call, move files, tell the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from labctl.errors import LabError
from labctl.model.result import ClockOffset


class ChannelError(LabError):
    """A channel could not do its work.

    `kind` is one of `channel-unreachable` (nobody answers yet or any more), `channel-timeout` (a command or a call
    passed its deadline and was ended), `channel-refused` (the other side refuses: authentication, host key, agent
    forbids commands), `command-failed` (a command that had to succeed did not).
    """


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What became of one command. Output is complete and binary safe."""

    argv: tuple[str, ...]
    exit_code: int
    """As a POSIX shell says it: 128 + n for an end by signal n."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """By the worker's monotonic clock, from the call until the end was seen."""

    def require(self, what: str) -> CommandResult:
        """This result, or a `ChannelError` of kind `command-failed` saying that `what` did not work."""
        if self.exit_code != 0:
            said = (self.stderr or self.stdout).decode(errors="replace").strip()[-400:]
            raise ChannelError(
                f"{what} failed with exit code {self.exit_code}.",
                kind="command-failed",
                why=f"{' '.join(self.argv)} said: {said or 'nothing'}",
            )
        return self


class Process(Protocol):
    """A command started in an endpoint that outlives the call which started it."""

    @property
    def pid(self) -> int:
        """Process id inside the endpoint."""

    def finished(self) -> bool:
        """Whether it has ended; one quick call."""

    def wait(self, *, timeout: float, quiet: float = 0.0) -> CommandResult:
        """Its result. Nothing is asked of the endpoint for the first `quiet` seconds, so that waiting disturbs nothing.

        Raises `ChannelError` (`channel-timeout`) when it has not ended after `timeout` seconds; it then still runs.
        """

    def output(self) -> tuple[bytes, bytes]:
        """What it has printed so far on stdout and stderr."""

    def kill(self) -> None:
        """End it and all its children: SIGTERM, then SIGKILL after a second. No error when it has ended already."""


class Channel(Protocol):
    """Commands and files inside one endpoint. Programs get argument lists, never shell text."""

    @property
    def endpoint(self) -> str:
        """Whose inside this is, for messages: `vm labctl-...`, `host a`."""

    def wait_ready(self, *, timeout: float) -> float:
        """Wait until it answers and return the seconds that took; else `ChannelError` (`channel-unreachable`)."""

    def run(self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", quiet: float = 0.0) -> CommandResult:
        """Run a command to its end; output of any size. At the deadline it is killed and `ChannelError` raised.

        Nothing is asked of the endpoint for the first `quiet` seconds.
        """

    def start(self, argv: Sequence[str], *, lifetime: float, ready_port: int | None = None) -> Process:
        """Start a command and return at once, or when it listens on TCP or UDP port `ready_port`.

        It is ended by its endpoint after `lifetime` seconds whatever becomes of the worker. `ChannelError`
        (`command-failed`, with its output as the reason) when it ends before it listens, or doesn't listen in 10 s.
        """

    def read_file(self, path: str, *, timeout: float) -> bytes:
        """The content of a file, of any size."""

    def write_file(self, path: str, content: bytes, *, timeout: float, mode: int = 0o644) -> None:
        """Create or replace a file."""

    def clock(self, *, timeout: float) -> ClockOffset:
        """The endpoint's clock (CLOCK_REALTIME) against the worker's: the best of a few samples."""

    def close(self) -> None:
        """Let go of connections and of everything that this channel left in the endpoint."""
