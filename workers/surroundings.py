"""What goes on around a transfer, outside of its time: counters before and after, steps of the tool, the latency probe."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from labctl.errors import LabError
from labctl.model.lab import GuestSystem
from labctl.model.order import TransferOrder
from labctl.model.reading import Latency, Reading
from labctl.model.result import EndpointCost
from labctl.model.scenario import Side
from workers.channels.base import ChannelError, CommandResult, Process
from workers.journal import Journal
from workers.placing import Endpoint
from workers.together import together
from workers.transfers import base, counters, cross_check, latency
from workers.transfers.counters import Counters

_PROBE_SECONDS = 5.0
"""How long the latency probe may take to end after the client has."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The two endpoints of a transfer by what runs in them."""

    client: Endpoint
    server: Endpoint

    def at(self, process: base.Process) -> Endpoint:
        """Where a process runs."""
        return self.client if process is base.Process.CLIENT else self.server


Known = dict[Side, Counters | None]
"""Counters of both ends at one moment; None where they could not be had."""


def read_counters(order: TransferOrder, pair: Pair, *, timeout: float) -> Known:
    """The counters of both endpoints, one round trip each, side by side. An endpoint that tells none stops nothing."""

    def one(endpoint: Endpoint) -> Counters | None:
        system = order.sender_system if endpoint.side is Side.SENDER else order.receiver_system
        with suppress(ChannelError):
            return counters.parse(endpoint.channel.run(counters.command(system), timeout=timeout).stdout)
        return None

    ends = (pair.client, pair.server)
    return {endpoint.side: found for endpoint, found in zip(ends, together(ends, one), strict=True)}


def server_address(order: TransferOrder, pair: Pair, known: Known) -> str:
    """The server's address as the client is to use it.

    Over IPv6 it is the one of the adapter that has the IPv4 address in the lab, link-local if it has no other; then with
    the client's adapter as its zone. Raises `LabError` (`no-ipv6`).
    """
    plain = str(pair.server.address)
    if order.family != "ipv6":
        return plain
    there, here = known[pair.server.side], known[pair.client.side]
    address = there.ipv6(plain) if there is not None else ""
    adapter = here.adapter(str(pair.client.address)) if here is not None else None
    if not address or adapter is None:
        raise LabError(
            f"{pair.server.channel.endpoint} has no IPv6 address on the test network.",
            kind="no-ipv6",
            why=f"The adapter with {plain} has none, not even a link-local one.",
            todo="Switch IPv6 on in the image and on the hosts, or leave out `family: ipv6`.",
        )
    return f"{address}%{adapter.name}" if address.startswith("fe80") else address


def costs(pair: Pair, before: Known, after: Known, reading: Reading) -> tuple[EndpointCost, ...]:
    """What the transfer cost either endpoint, as far as it is known: the sender first."""
    moved = [reading.bytes, reading.reverse.bytes if reading.reverse is not None else None]
    bits = 8.0 * sum(size for size in moved if size is not None) or None
    found = []
    for endpoint in sorted((pair.client, pair.server), key=lambda one: one.side is not Side.SENDER):
        old, new = before.get(endpoint.side), after.get(endpoint.side)
        if old is not None and new is not None:
            found.append(counters.cost(endpoint.side, str(endpoint.address), old, new, bits=bits))
    return tuple(one for one in found if one is not None)


def check(
    order: TransferOrder,
    reading: Reading,
    peer: Reading | None,
    *,
    elapsed: float,
    found: Sequence[EndpointCost],
    pair: Pair,
    before: Known,
) -> tuple[str, ...]:
    """Which two witnesses of the transfer disagree. Adapters of hosts are none: they carry traffic of others too."""
    guests = {one.side for one in (pair.client, pair.server) if one.vm is not None}
    by_side = {cost.side: cost for cost in found if cost.side in guests}
    sender = pair.client if pair.client.side is Side.SENDER else pair.server
    known = before.get(sender.side)
    adapter = known.adapter(str(sender.address)) if known is not None else None
    return cross_check.disagreements(
        order,
        cross_check.Witnesses(
            reading=reading,
            peer=peer,
            elapsed=elapsed,
            sender=by_side.get(Side.SENDER),
            receiver=by_side.get(Side.RECEIVER),
            mtu=adapter.mtu if adapter is not None else None,
        ),
    )


def start_probe(order: TransferOrder, pair: Pair, address: str, *, lifetime: float) -> Process | None:
    """Start the latency probe from the client's endpoint, when one is asked for."""
    if order.latency is None:
        return None
    return pair.client.channel.start(
        latency.command(address, rate=order.latency, seconds=order.seconds + order.omit), lifetime=lifetime
    )


def end_probe(order: TransferOrder, probe: Process | None, journal: Journal, index: int) -> Latency | None:
    """The reading of the probe, whose output is kept. One that doesn't end is ended, and read as far as it came."""
    if probe is None or order.latency is None:
        return None
    try:
        stdout, stderr = _ended(probe)
    except ChannelError as error:
        journal.keep(f"transfer-{index}/ping.stderr", error.what.encode())
        return None
    journal.keep(f"transfer-{index}/ping.stdout", stdout)
    journal.keep(f"transfer-{index}/ping.stderr", stderr)
    return latency.parse(stdout, rate=order.latency)


def stop_probe(probe: Process | None) -> None:
    """End the probe on the way out of an error; it ends by itself when its transfer should have."""
    if probe is not None:
        with suppress(LabError):
            probe.kill()


def _ended(probe: Process) -> tuple[bytes, bytes]:
    try:
        result = probe.wait(timeout=_PROBE_SECONDS)
    except ChannelError as error:
        if error.kind != "channel-timeout":
            raise
        probe.kill()
        return probe.output()
    return result.stdout, result.stderr


def place(placings: Sequence[base.Placing], pair: Pair, *, timeout: float) -> None:
    """Put the files of a transfer where they belong."""
    for one in placings:
        pair.at(one.at).channel.write_file(one.path, one.content, timeout=timeout, mode=one.mode)


def run_steps(steps: Sequence[base.Step], pair: Pair) -> bytes:
    """Run steps one after the other. Returns what they printed. Raises `LabError` (`transfer-setup`) for one that fails."""
    printed = b""
    for step in steps:
        endpoint = pair.at(step.at)
        result = endpoint.channel.run(step.argv, timeout=step.seconds)
        if result.exit_code != 0:
            raise _failed(step, endpoint, result)
        printed += result.stdout
    return printed


def run_all(steps: Sequence[base.Step], pair: Pair) -> bytes:
    """Run steps whatever becomes of any of them, for what comes after a transfer that may have failed."""
    printed = b""
    for step in steps:
        with suppress(ChannelError):
            printed += pair.at(step.at).channel.run(step.argv, timeout=step.seconds).stdout
    return printed


_JANITOR = """
# seconds, then a command that is run when they are over, or when this is ended before
life=$1; shift
trap 'trap "" TERM; "$@"; exit' TERM
sleep "$life" &
wait "$!"
"$@"
"""


def start_janitors(steps: Sequence[base.Step], order: TransferOrder, pair: Pair, *, lifetime: float) -> list[Process]:
    """Processes in the endpoints that clean up there should nobody else do it: the attempt may be cancelled, the worker
    killed. Windows ends processes without asking them, so there are none there."""
    linux = [
        step
        for step in steps
        if (order.client_system if step.at is base.Process.CLIENT else order.server_system) is GuestSystem.LINUX
    ]
    return [
        pair.at(step.at).channel.start(
            ("/bin/sh", "-c", _JANITOR, "labctl", f"{lifetime:.0f}", *step.argv), lifetime=lifetime
        )
        for step in linux
    ]


def end_janitors(janitors: Sequence[Process]) -> None:
    """End them: what is left to be cleaned up is, even when nothing else may be asked of the endpoints any more."""
    for one in janitors:
        with suppress(LabError):
            one.kill()


def _failed(step: base.Step, endpoint: Endpoint, result: CommandResult) -> LabError:
    said = (result.stderr or result.stdout).decode(errors="replace").strip()[-300:]
    return LabError(
        f"{step.what} failed in {endpoint.channel.endpoint}.",
        kind="transfer-setup",
        why=f"exit code {result.exit_code}: {said or 'nothing was printed'}",
        todo="See that the image has what the transfer needs.",
    )
