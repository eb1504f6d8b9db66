"""Whose fault a transfer without a figure is, who runs the client, and how time zero is told."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import cast

import pytest

from labctl.errors import LabError, SystemUnderTestError
from labctl.model.order import MigrationOrder, RunOrder
from labctl.model.reading import Direction, ErrorKind, Interval, Reading
from labctl.model.result import TransferResult
from labctl.model.scenario import Side
from tests.values import an_order
from workers.channels.base import Channel, CommandResult
from workers.placing import Endpoint, Placed
from workers.transferring import Ended, Roles, fault, port_of, roles, time_zero, towards_receiver

CHANNEL = cast(Channel, SimpleNamespace(endpoint="vm labctl-x"))
SENDER = Endpoint(side=Side.SENDER, subject="vm:sender", host="a", channel=CHANNEL, address=IPv4Address("198.18.0.16"))
RECEIVER = Endpoint(
    side=Side.RECEIVER, subject="vm:receiver", host="a", channel=CHANNEL, address=IPv4Address("198.18.0.17")
)
PLACED = Placed(sender=SENDER, receiver=RECEIVER)


def ended(*, hung: bool = False, server_survived: bool | None = True, elapsed: float = 10.4) -> Ended:
    client = CommandResult(argv=("iperf3",), exit_code=0, stdout=b"{}", stderr=b"", seconds=elapsed)
    return Ended(
        client=client, server=(b"", b""), started=1000.0, elapsed=elapsed, hung=hung, server_survived=server_survived
    )


def result(reading: Reading) -> TransferResult:
    return TransferResult(
        index=1, counted=True, tool="iperf3", reading=reading, measured_on=Side.SENDER, client_command=("iperf3",),
        server_command=("iperf3",), port=20010, started=1000.0, elapsed=10.4,
    )  # fmt: skip


def failed(kind: ErrorKind | None, *, partial: bool = False) -> Reading:
    return Reading(tool="iperf3", ok=False, error_kind=kind, partial=partial, error="said so")


WHO = Roles(client=SENDER, server=RECEIVER, reverse=False)


@pytest.mark.parametrize(
    ("reading", "end", "migrated", "error", "kind"),
    [
        (failed(ErrorKind.SERVER_BUSY), ended(), False, LabError, "server-busy"),
        (failed(ErrorKind.CONNECT_REFUSED), ended(), True, LabError, "connect-refused"),
        (failed(ErrorKind.CONNECTION_LOST), ended(server_survived=False), False, LabError, "server-died"),
        (failed(ErrorKind.CONNECTION_LOST), ended(server_survived=None), False, LabError, "endpoint-silent"),
        (failed(ErrorKind.CONNECTION_LOST), ended(), False, SystemUnderTestError, "connection-lost"),
        (
            failed(ErrorKind.CONNECTION_LOST),
            ended(server_survived=False),
            True,
            SystemUnderTestError,
            "connection-lost",
        ),
        (failed(ErrorKind.TRUNCATED_OUTPUT), ended(hung=True), False, LabError, "client-hung"),
        (failed(ErrorKind.TRUNCATED_OUTPUT), ended(hung=True), True, SystemUnderTestError, "transfer-hung"),
        (failed(ErrorKind.NO_DATA), ended(), False, LabError, "no-data"),
        (failed(ErrorKind.UNPARSEABLE), ended(), False, LabError, "unparseable"),
        (failed(None, partial=True), ended(), False, LabError, "clock-step"),
    ],
)
def test_a_transfer_without_a_figure_names_whose_fault_it_was(
    reading: Reading, end: Ended, migrated: bool, error: type[LabError], kind: str
) -> None:
    found = fault(result(reading), end, WHO, migrated=migrated)
    assert isinstance(found, error)
    assert found.kind == kind


def test_a_whole_figure_is_no_fault() -> None:
    whole = Reading(tool="iperf3", ok=True, bits_per_second=1e9)
    assert fault(result(whole), ended(), WHO, migrated=True) is None


def test_a_partial_figure_is_never_taken_for_a_whole_one() -> None:
    cut = Reading(tool="iperf3", ok=True, partial=True, bits_per_second=1e9)
    assert isinstance(fault(result(cut), ended(), WHO, migrated=False), LabError)


def moving(mover: Side) -> RunOrder:
    order = MigrationOrder(
        mover=mover, at=1 / 3, back=False, bandwidth=None, auto_converge=False, post_copy=False, deadline=60
    )
    return replace(an_order(), migration=order)


def test_the_client_sends_unless_asked_otherwise() -> None:
    assert roles(an_order(), PLACED) == WHO
    reverse = replace(an_order(), transfer=replace(an_order().transfer, reverse=True))
    assert roles(reverse, PLACED) == Roles(client=RECEIVER, server=SENDER, reverse=True)


@pytest.mark.parametrize("mover", list(Side))
def test_the_client_is_on_the_side_that_stays_and_data_still_flows_from_sender_to_receiver(mover: Side) -> None:
    who = roles(moving(mover), PLACED)
    assert who.client.side is not mover
    sends = who.server if who.reverse else who.client
    assert sends.side is Side.SENDER


def test_time_zero_lies_between_the_start_and_the_latest_start_that_leaves_room() -> None:
    reading = Reading(tool="iperf3", ok=True, intervals=(Interval(start=0.0, end=10.0, bits_per_second=1e9),))
    zero, uncertainty = time_zero(ended(elapsed=10.4), reading)
    assert zero == pytest.approx(1000.2)
    assert uncertainty == pytest.approx(0.2)


def test_time_zero_is_unknown_for_a_transfer_that_was_ended_by_force() -> None:
    reading = Reading(tool="iperf3", ok=False, intervals=(Interval(start=0.0, end=3.0, bits_per_second=1e9),))
    assert time_zero(ended(hung=True), reading) == (None, None)
    assert time_zero(ended(), Reading(tool="iperf3", ok=False)) == (None, None)


def test_ports_of_neighbouring_transfers_differ_and_are_no_privileged_or_ephemeral_ones() -> None:
    ports = [port_of(attempt, index) for attempt in range(1, 121) for index in range(1, 100)]
    assert len(ports) == len(set(ports))
    assert min(ports) >= 20_000
    assert max(port_of(attempt, 99) for attempt in range(10_000, 10_200)) < 32_768


BOTH = replace(an_order().transfer, both=True)
TWO_WAYS = Reading(
    tool="iperf3",
    ok=True,
    bits_per_second=3e9,
    side="receiver",
    bytes=30,
    seconds=10.0,
    reverse=Direction(bits_per_second=2e9, bytes=20, seconds=10.0, retransmits=4),
)


def test_of_both_ways_the_figure_is_that_from_sender_to_receiver() -> None:
    swapped = Roles(client=RECEIVER, server=SENDER, reverse=False)
    assert towards_receiver(TWO_WAYS, BOTH, WHO) == TWO_WAYS
    seen = towards_receiver(TWO_WAYS, BOTH, swapped)
    assert (seen.bits_per_second, seen.bytes, seen.retransmits) == (2e9, 20, 4)
    assert seen.reverse is not None
    assert (seen.reverse.bits_per_second, seen.reverse.bytes) == (3e9, 30)


def test_one_of_two_ways_is_no_whole_figure() -> None:
    seen = towards_receiver(replace(TWO_WAYS, reverse=None), BOTH, WHO)
    assert (seen.ok, seen.partial, seen.error_kind) == (False, True, ErrorKind.TRUNCATED_OUTPUT)
    assert isinstance(fault(result(seen), ended(), WHO, migrated=False), LabError)


@pytest.mark.parametrize("mover", list(Side))
def test_both_ways_at_once_nobody_reverses(mover: Side) -> None:
    who = roles(replace(moving(mover), transfer=BOTH), PLACED)
    assert who.client.side is not mover
    assert not who.reverse


def test_a_copy_that_was_changed_is_a_result_about_the_system() -> None:
    found = fault(result(failed(ErrorKind.CORRUPT_DATA)), ended(), WHO, migrated=False)
    assert isinstance(found, SystemUnderTestError)
    assert found.kind == "corrupt-data"
