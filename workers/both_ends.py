"""Both processes of a transfer: started, waited for, and ended on every path; with an event in the middle if asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from labctl import clock
from labctl.errors import LabError
from workers.channels.base import ChannelError, CommandResult, Process
from workers.guard import Guard
from workers.surroundings import Pair
from workers.together import together

T = TypeVar("T")

_SERVER_SECONDS = 5.0
"""How long a server may take to end by itself after its client has."""
_LAST_WORDS_SECONDS = 0.5
"""How long a server that serves on has for its last report, before it is ended."""


@dataclass(frozen=True, kw_only=True)
class Commands:
    """What is run at both ends. `server` is empty where the endpoint's system serves already.

    Seconds: the client is waited for in silence for `quiet`, and ended by force after `limit`; both processes live for
    `lifetime` at the most, whatever becomes of the worker.
    """

    tool: str
    server: tuple[str, ...]
    client: tuple[str, ...]
    port: int
    server_ends: bool
    quiet: float
    limit: float
    lifetime: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How both sides of a transfer ended. `hung` means that the client had to be ended by force."""

    client: CommandResult
    server: tuple[bytes, bytes]
    started: float
    elapsed: float
    hung: bool
    server_survived: bool | None
    """None when its endpoint didn't answer any more."""


def both_ends(commands: Commands, pair: Pair, guard: Guard, event: Callable[[float], None] | None = None) -> Ended:
    """Start the server, then the client, and wait for the client's end and then the server's.

    `event` is called with the monotonic time at which the client was started, as soon as it runs. Raises `LabError`
    (`server-failed`), `ChannelError`, and whatever the event raises; both processes are ended then too.
    """
    guard.confirm()
    server = _start_server(commands, pair) if commands.server else None
    try:
        guard.confirm()
        started, began = clock.now(), clock.monotonic()
        client = pair.client.channel.start(commands.client, lifetime=commands.lifetime)
        try:
            wait = partial(_wait, client, commands, began, guard)
            ended, hung, elapsed = wait() if event is None else _beside(partial(event, began), client, wait)
        except BaseException:
            _end(client)
            raise
        survived, output = _server_end(server, commands, forced=hung or not ended.stdout)
        return Ended(client=ended, server=output, started=started, elapsed=elapsed, hung=hung, server_survived=survived)
    except BaseException:
        if server is not None:
            _end(server)
        raise


def _start_server(commands: Commands, pair: Pair) -> Process:
    try:
        return pair.server.channel.start(commands.server, lifetime=commands.lifetime, ready_port=commands.port)
    except ChannelError as error:
        raise LabError(
            f"The {commands.tool} server did not come up in {pair.server.channel.endpoint}.",
            kind="server-failed",
            why=error.why or error.what,
            todo="It is tried again with fresh VMs.",
        ) from error


def _beside(event: Callable[[], None], client: Process, wait: Callable[[], T]) -> T:
    """What `wait` says of the client's end, awaited beside the event: a migration may outlast the transfer."""

    def happen() -> None:
        try:
            event()
        except BaseException:
            _end(client)
            raise

    found: list[T] = []
    both: list[Callable[[], None]] = [happen, lambda: found.append(wait())]
    together(both, lambda one: one())
    return found[0]


def _wait(client: Process, commands: Commands, began: float, guard: Guard) -> tuple[CommandResult, bool, float]:
    """Wait for the client. Returns its result, whether it had to be ended by force, and its seconds.

    Past its time it is ended, and what it printed is taken all the same.
    """
    passed = clock.monotonic() - began
    try:
        result = client.wait(timeout=max(1.0, commands.limit - passed), quiet=max(0.0, commands.quiet - passed))
    except ChannelError as error:
        if error.kind != "channel-timeout":
            raise
        guard.check()
        client.kill()
        with suppress(ChannelError):
            return replace(client.wait(timeout=_SERVER_SECONDS), argv=commands.client), True, clock.monotonic() - began
        stdout, stderr = client.output()
        seconds = clock.monotonic() - began
        ended = CommandResult(argv=commands.client, exit_code=137, stdout=stdout, stderr=stderr, seconds=seconds)
        return ended, True, seconds
    return result, False, clock.monotonic() - began


def _server_end(server: Process | None, commands: Commands, *, forced: bool) -> tuple[bool | None, tuple[bytes, bytes]]:
    """Whether the server was alive until its client ended (None: its endpoint is silent), and what it printed.

    It is ended in any case, with force at once or after some patience.
    """
    if server is None:
        return True, (b"", b"")
    patience = _SERVER_SECONDS if commands.server_ends or forced else _LAST_WORDS_SECONDS
    survived: bool | None = None
    try:
        if forced:
            survived = not server.finished()
            server.kill()
        ended = server.wait(timeout=patience)
    except ChannelError as error:
        if error.kind == "channel-timeout" and survived is None:
            survived = True
        _end(server)
        with suppress(LabError):
            return survived, server.output()
        return survived, (b"", b"")
    else:
        if not forced:
            survived = ended.exit_code == 0
        return survived, (ended.stdout, ended.stderr)


def _end(process: Process) -> None:
    """End a process on the way out of an error; its endpoint ends it anyway when its lifetime is over."""
    with suppress(LabError):
        process.kill()
