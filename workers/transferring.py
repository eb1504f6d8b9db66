"""One transfer: a server on a port of its own, a client, and what both printed; with an event in the middle if asked.

The client always runs on the endpoint that stays, because the clock of a migrating guest may jump. Which way the data
flows is then a matter of the tool's reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from labctl import clock
from labctl.errors import LabctlError, LabError, SystemUnderTestError
from labctl.model.order import RunOrder, TransferOrder
from labctl.model.reading import Capture, ErrorKind, Reading
from labctl.model.result import ClockOffset, TransferResult
from labctl.model.scenario import Side
from workers.channels.base import ChannelError, CommandResult, Process
from workers.guard import Guard
from workers.journal import Journal
from workers.placing import Endpoint, Placed
from workers.together import together
from workers.transfers.registry import tool as find_tool

T = TypeVar("T")

_FIRST_PORT = 20_000
_PORTS = 12_000
"""Ports up to 31,999, below the range from which Linux takes ephemeral ones (32,768 and up)."""
_PORTS_OF_ATTEMPT = 100
_SPARE_SECONDS = 60.0
"""How long processes of a transfer may outlive its asked time at the most, beside its migrations."""
_SERVER_SECONDS = 5.0
"""How long a server may take to end by itself after its client has."""
_LAST_WORDS_SECONDS = 0.5
"""How long a server that serves on has for its last report, before it is ended."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Who runs the client and who the server, and whether the server is the one that sends."""

    client: Endpoint
    server: Endpoint
    reverse: bool


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


def roles(order: RunOrder, placed: Placed) -> Roles:
    """The client runs on the side that stays; without a migration it sends, unless `reverse` was asked for."""
    if order.migration is not None:
        client_side = Side.RECEIVER if order.migration.mover is Side.SENDER else Side.SENDER
    else:
        client_side = Side.RECEIVER if order.transfer.reverse else Side.SENDER
    server_side = Side.SENDER if client_side is Side.RECEIVER else Side.RECEIVER
    return Roles(client=placed.side(client_side), server=placed.side(server_side), reverse=client_side is Side.RECEIVER)


def port_of(attempt: int, index: int) -> int:
    """The port of a transfer: another one than those of the transfers and attempts just before it."""
    return _FIRST_PORT + (attempt * _PORTS_OF_ATTEMPT + index) % _PORTS


def transfer(
    order: RunOrder,
    asked: TransferOrder,
    who: Roles,
    journal: Journal,
    guard: Guard,
    *,
    attempt: int,
    index: int,
    counted: bool,
    noisy: str = "",
    event: Callable[[float], None] | None = None,
) -> LabctlError | None:
    """Make one transfer and keep it in the journal. Returns whose fault it is when it holds no whole figure, else None.

    `noisy` says what else its hosts are doing. `event` is called with the monotonic time at which the client was started,
    as soon as it runs; it takes its time.
    """
    tool = find_tool(asked.tool)
    asked = replace(asked, reverse=who.reverse)
    port = port_of(attempt, index)
    server_command = tool.server_command(asked, port=port)
    client_command = tool.client_command(asked, server=str(who.server.address), port=port)
    offset = _offset(who.client, order) if event else None
    ended = _both_sides(order, asked, who, server_command, client_command, port, guard, event)
    reading = tool.parse(
        Capture(
            stdout=ended.client.stdout,
            stderr=ended.client.stderr,
            server=ended.server[0],
            exit_code=ended.client.exit_code,
            requested_seconds=asked.seconds,
            role="client",
            command=" ".join(client_command),
            elapsed=ended.elapsed,
        )
    )
    zero, uncertainty = time_zero(ended, reading)
    result = TransferResult(
        index=index,
        counted=counted,
        tool=asked.tool,
        reading=reading,
        measured_on=who.client.side,
        client_command=client_command,
        server_command=server_command,
        port=port,
        started=ended.started,
        elapsed=ended.elapsed,
        zero=zero,
        zero_uncertainty=uncertainty,
        clock_offset=offset,
        noisy=noisy,
    )
    journal.transfers.append(result)
    for name, content in (
        ("client.stdout", ended.client.stdout),
        ("client.stderr", ended.client.stderr),
        ("server.stdout", ended.server[0]),
        ("server.stderr", ended.server[1]),
    ):
        journal.keep(f"transfer-{index}/{name}", content)
    return fault(result, ended, who, migrated=event is not None)


def job_seconds(order: RunOrder, asked: TransferOrder) -> float:
    """How long the processes of a transfer live at the most, whatever becomes of the worker that started them."""
    migrations = 2 * order.timeouts.migration if order.migration else 0.0
    return asked.seconds + order.timeouts.transfer_grace + migrations + _SPARE_SECONDS


def _both_sides(
    order: RunOrder,
    asked: TransferOrder,
    who: Roles,
    server_command: tuple[str, ...],
    client_command: tuple[str, ...],
    port: int,
    guard: Guard,
    event: Callable[[float], None] | None,
) -> Ended:
    grace = order.timeouts.transfer_grace
    lifetime = job_seconds(order, asked)
    patience = _SERVER_SECONDS if find_tool(asked.tool).server_ends else _LAST_WORDS_SECONDS
    guard.confirm()
    try:
        server = who.server.channel.start(server_command, lifetime=lifetime, ready_port=port)
    except ChannelError as error:
        raise LabError(
            f"The {asked.tool} server did not come up in {who.server.channel.endpoint}.",
            kind="server-failed",
            why=error.why or error.what,
            todo="It is tried again with fresh VMs.",
        ) from error
    try:
        guard.confirm()
        started, began = clock.now(), clock.monotonic()
        client = who.client.channel.start(client_command, lifetime=lifetime)
        try:
            wait = partial(_wait, client, client_command, began, asked.seconds, grace, guard)
            ended, hung, elapsed = wait() if event is None else _beside(partial(event, began), client, wait)
        except BaseException:
            _end(client)
            raise
        survived, output = _server_end(server, forced=hung or not ended.stdout, patience=patience)
        return Ended(client=ended, server=output, started=started, elapsed=elapsed, hung=hung, server_survived=survived)
    except BaseException:
        _end(server)
        raise


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


def _wait(
    client: Process, command: tuple[str, ...], began: float, seconds: float, grace: float, guard: Guard
) -> tuple[CommandResult, bool, float]:
    """Wait for the client. Returns its result, whether it had to be ended by force, and its seconds.

    Past its time it is ended and what it printed is taken all the same.
    """
    passed = clock.monotonic() - began
    try:
        result = client.wait(timeout=max(1.0, seconds + grace - passed), quiet=max(0.0, seconds - passed))
    except ChannelError as error:
        if error.kind != "channel-timeout":
            raise
        guard.check()
        client.kill()
        with suppress(ChannelError):
            return replace(client.wait(timeout=_SERVER_SECONDS), argv=command), True, clock.monotonic() - began
        stdout, stderr = client.output()
        ended = CommandResult(
            argv=command, exit_code=137, stdout=stdout, stderr=stderr, seconds=clock.monotonic() - began
        )
        return ended, True, clock.monotonic() - began
    return result, False, clock.monotonic() - began


def _server_end(server: Process, *, forced: bool, patience: float) -> tuple[bool | None, tuple[bytes, bytes]]:
    """Whether the server was alive until its client ended (None: its endpoint is silent), and what it printed.

    It is ended in any case, with force at once or after `patience` seconds.
    """
    survived: bool | None = None
    try:
        if forced:
            survived = not server.finished()
            server.kill()
        ended = server.wait(timeout=_SERVER_SECONDS if forced else patience)
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


def _offset(endpoint: Endpoint, order: RunOrder) -> ClockOffset:
    return endpoint.channel.clock(timeout=order.timeouts.command)


def time_zero(ended: Ended, reading: Reading) -> tuple[float | None, float | None]:
    """When the tool's clock showed 0, by the worker's clock: between the start of the client and the latest start that
    leaves room for the whole transfer before the client's end was seen. The middle, and half the width."""
    last = reading.intervals[-1].end if reading.intervals else reading.seconds
    if last is None or ended.hung:
        return None, None
    slack = max(0.0, ended.elapsed - last)
    return ended.started + slack / 2, slack / 2


def fault(result: TransferResult, ended: Ended, who: Roles, *, migrated: bool) -> LabctlError | None:
    """Whose fault it is that the transfer holds no whole figure, as an error to be raised; None when it holds one."""
    reading = result.reading
    if reading.ok and not reading.partial:
        return None
    said = reading.error or f"its output reads as {reading.error_kind or 'invalid'}"
    if ended.hung:
        text = f"The {result.tool} client never ended and was stopped after {result.elapsed:.0f} s."
        if migrated:
            return SystemUnderTestError(text, kind="transfer-hung", why=f"A VM was migrated during it; {said}")
        return LabError(text, kind="client-hung", why=said, todo="It is tried again with fresh VMs.")
    if reading.error_kind in (ErrorKind.SERVER_BUSY, ErrorKind.CONNECT_REFUSED):
        return LabError(
            f"The {result.tool} server at {who.server.address} took no connection.",
            kind=str(reading.error_kind).replace("_", "-"),
            why=said,
            todo="It is tried again.",
        )
    if reading.error_kind is ErrorKind.CONNECTION_LOST:
        if not ended.server_survived and not migrated:
            silent = ended.server_survived is None
            return LabError(
                f"{who.server.channel.endpoint} fell silent in mid-transfer."
                if silent
                else f"The {result.tool} server died in mid-transfer.",
                kind="endpoint-silent" if silent else "server-died",
                why=said,
                todo="It is tried again with fresh VMs.",
            )
        return SystemUnderTestError(
            "The connection was lost in mid-transfer.",
            kind="connection-lost",
            why=f"{'A VM was migrated during it; ' if migrated else ''}{said}",
        )
    if reading.error_kind is None:
        return LabError(
            "A clock stepped during the transfer, so that its figures are not valid.", kind="clock-step", why=said
        )
    return LabError(
        f"The {result.tool} client left no whole result.",
        kind=str(reading.error_kind).replace("_", "-"),
        why=said,
        todo="See the raw output of the attempt.",
    )
