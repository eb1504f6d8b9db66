"""One transfer: a server on a port of its own, a client, and what both printed; with an event in the middle if asked.

The client always runs on the endpoint that stays, because the clock of a migrating guest may jump. Which way the data
flows is then a matter of the tool's reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from labctl.errors import LabctlError, LabError, SystemUnderTestError
from labctl.model.order import RunOrder, TransferOrder
from labctl.model.reading import Capture, Direction, ErrorKind, Reading
from labctl.model.result import ClockOffset, TransferResult
from labctl.model.scenario import Side
from workers.both_ends import Commands, Ended, both_ends
from workers.guard import Guard
from workers.journal import Journal
from workers.placing import Endpoint, Placed
from workers.surroundings import (
    Pair,
    check,
    costs,
    end_janitors,
    end_probe,
    place,
    read_counters,
    run_all,
    run_steps,
    server_address,
    start_janitors,
    start_probe,
    stop_probe,
)
from workers.transfers.base import TransferTool
from workers.transfers.registry import tool as find_tool

_FIRST_PORT = 20_000
_PORTS = 12_000
"""Ports up to 31,999, below the range from which Linux takes ephemeral ones (32,768 and up)."""
_PORTS_OF_ATTEMPT = 100
_SPARE_SECONDS = 60.0
"""How long processes of a transfer may outlive its asked time at the most, beside its migrations."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Who runs the client and who the server, and whether the server is the one that sends."""

    client: Endpoint
    server: Endpoint
    reverse: bool


def roles(order: RunOrder, placed: Placed) -> Roles:
    """The client runs on the side that stays; without a migration it sends, unless `reverse` was asked for. Of a transfer
    both ways at once the client may be either side: neither is the one that sends."""
    if order.migration is not None:
        client_side = Side.RECEIVER if order.migration.mover is Side.SENDER else Side.SENDER
    else:
        client_side = Side.RECEIVER if order.transfer.reverse else Side.SENDER
    server_side = Side.SENDER if client_side is Side.RECEIVER else Side.RECEIVER
    reverse = client_side is Side.RECEIVER and not order.transfer.both
    return Roles(client=placed.side(client_side), server=placed.side(server_side), reverse=reverse)


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
    pair = Pair(client=who.client, server=who.server)
    timeout = order.timeouts.command
    versions = {one.side: _version(journal, one) for one in (who.client, who.server)}
    _require_able(tool, asked, pair, versions)
    before = read_counters(asked, pair, timeout=timeout)
    address = server_address(asked, pair, before)
    port = port_of(attempt, index)
    server_command = tool.server_command(asked, port=port, server=address, version=versions[who.server.side])
    client_command = tool.client_command(asked, server=address, port=port, version=versions[who.client.side])
    commands = Commands(
        tool=asked.tool,
        server=server_command,
        client=client_command,
        port=port,
        server_ends=tool.server_ends,
        quiet=asked.seconds + asked.omit if tool.timed else 0.0,
        limit=asked.seconds + asked.omit + order.timeouts.transfer_grace,
        lifetime=job_seconds(order, asked),
    )
    around = tool.surroundings(asked, server=address, port=port)
    offset = _offset(who.client, order) if event else None
    janitors = start_janitors(around.cleanup, asked, pair, lifetime=commands.lifetime)
    try:
        place(around.placings, pair, timeout=timeout)
        ahead = run_steps(around.before, pair)
        probe = start_probe(asked, pair, address, lifetime=commands.lifetime)
        try:
            ended = both_ends(commands, pair, guard, event)
        except BaseException:
            stop_probe(probe)
            raise
        latency = end_probe(asked, probe, journal, index)
        behind = run_all(around.after, pair)
    finally:
        try:
            run_all(around.cleanup, pair)
        finally:
            end_janitors(janitors)
    after = {} if ended.hung or not ended.server_survived else read_counters(asked, pair, timeout=timeout)
    capture = Capture(
        stdout=ahead + ended.client.stdout + behind,
        stderr=ended.client.stderr,
        server=ended.server[0],
        exit_code=ended.client.exit_code,
        requested_seconds=asked.seconds if tool.timed else None,
        role="client",
        command=" ".join(client_command),
        elapsed=ended.elapsed,
    )
    reading = towards_receiver(tool.parse(capture), asked, who)
    zero, uncertainty = time_zero(ended, reading)
    found = costs(pair, before, after, reading)
    peer = None if asked.both or not server_command else tool.parse(_of_server(capture))
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
        costs=found,
        latency=latency,
        disagreements=check(asked, reading, peer, elapsed=ended.elapsed, found=found, pair=pair, before=before),
    )
    journal.transfers.append(result)
    for name, content in (
        ("client.stdout", capture.stdout),
        ("client.stderr", ended.client.stderr),
        ("server.stdout", ended.server[0]),
        ("server.stderr", ended.server[1]),
    ):
        journal.keep(f"transfer-{index}/{name}", content)
    return fault(result, ended, who, migrated=event is not None)


def _require_able(tool: TransferTool, asked: TransferOrder, pair: Pair, versions: Mapping[Side, str]) -> None:
    """Raise `LabError` (`tool-lacks`) for an order that the tool, as it is installed at both ends, can't do."""
    for end in (pair.client, pair.server):
        why = tool.unsupported(asked, versions[end.side])
        if why:
            raise LabError(
                f"{tool.name} in {end.channel.endpoint} can't do what is asked for.",
                kind="tool-lacks",
                why=why,
                todo="Install another release there, or leave out that level.",
            )


def _version(journal: Journal, endpoint: Endpoint) -> str:
    """What the tool said of its version when the endpoint was verified; empty when that isn't known."""
    told = [
        str(one.facts["tool"]) for one in journal.facts if one.subject == endpoint.subject and one.facts.get("tool")
    ]
    return told[-1] if told else ""


def towards_receiver(reading: Reading, asked: TransferOrder, who: Roles) -> Reading:
    """Of a transfer both ways the reading's own figures are those of sender to receiver, wherever its client ran."""
    other = reading.reverse
    if not asked.both:
        return reading
    if other is None or other.bits_per_second is None:
        missing = replace(reading, ok=False, partial=reading.bits_per_second is not None)
        kind = reading.error_kind or ErrorKind.TRUNCATED_OUTPUT
        return replace(missing, error_kind=kind, error=reading.error or "it tells of one direction only")
    if who.client.side is Side.SENDER:
        return reading
    return replace(
        reading,
        bits_per_second=other.bits_per_second,
        side=None,
        bytes=other.bytes,
        seconds=other.seconds,
        retransmits=other.retransmits,
        intervals=other.intervals,
        reverse=Direction(
            bits_per_second=reading.bits_per_second,
            bytes=reading.bytes,
            seconds=reading.seconds,
            retransmits=reading.retransmits,
            intervals=reading.intervals or (),
        ),
    )


def _of_server(capture: Capture) -> Capture:
    """What the server printed, to be read by itself."""
    return replace(
        capture, stdout=capture.server or b"", stderr=b"", server=None, role="server", exit_code=None, elapsed=None
    )


def job_seconds(order: RunOrder, asked: TransferOrder) -> float:
    """How long the processes of a transfer live at the most, whatever becomes of the worker that started them."""
    migrations = 2 * order.timeouts.migration if order.migration else 0.0
    return asked.seconds + asked.omit + order.timeouts.transfer_grace + migrations + _SPARE_SECONDS


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
    if reading.error_kind is ErrorKind.CORRUPT_DATA:
        return SystemUnderTestError("What arrived is not what was sent.", kind="corrupt-data", why=said)
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
