"""Whole transfers of real tools between two network namespaces, with all that goes around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from labctl.errors import LabError
from labctl.model.order import TransferOrder
from labctl.model.result import TransferResult
from labctl.model.scenario import Side
from tests.transfers.local import NamespaceChannel, two_namespaces
from tests.values import an_order
from workers.guard import Guard
from workers.journal import Journal
from workers.placing import Placed
from workers.transferring import roles, transfer

pytestmark = pytest.mark.services

ORDER = TransferOrder(tool="iperf3", seconds=1.0, interval=0.5, rate=200_000_000)


@pytest.fixture(scope="module")
def placed() -> Iterator[Placed]:
    with two_namespaces() as found:
        yield found


class _Numbers:
    """Ports that no other transfer of this module used."""

    next = 0


def moved(placed: Placed, asked: TransferOrder) -> tuple[TransferResult, Journal]:
    order = replace(an_order(), transfer=asked)
    journal, _Numbers.next = Journal(), _Numbers.next + 1
    error = transfer(order, asked, roles(order, placed), journal, Guard(), attempt=3, index=_Numbers.next, counted=True)
    assert error is None, error
    return journal.transfers[0], journal


def test_a_transfer_comes_with_its_cost_and_its_witnesses_agree(placed: Placed) -> None:
    result, _ = moved(placed, ORDER)
    assert result.reading.ok
    assert result.disagreements == ()
    sender, receiver = result.costs
    assert (sender.side, receiver.side) == (Side.SENDER, Side.RECEIVER)
    assert result.reading.bytes is not None
    for passed in (sender.sent_bytes, receiver.received_bytes):
        assert passed is not None
        assert result.reading.bytes <= passed < 1.2 * result.reading.bytes
    assert sender.cpu_seconds is not None
    assert sender.seconds >= 1.0


@pytest.mark.parametrize("tool", ["iperf3", "iperf"])
def test_both_directions_are_told(placed: Placed, tool: str) -> None:
    result, _ = moved(placed, replace(ORDER, tool=tool, both=True))
    assert result.reading.reverse is not None
    for figure in (result.reading.bits_per_second, result.reading.reverse.bits_per_second):
        assert figure == pytest.approx(200e6, rel=0.25)
    assert result.disagreements == ()


def test_over_ipv6_by_link_local_addresses(placed: Placed) -> None:
    result, _ = moved(placed, replace(ORDER, family="ipv6"))
    assert result.reading.ok
    assert any(word.startswith("fe80::") and word.endswith("%eth0") for word in result.client_command)


def test_round_trip_times_under_load(placed: Placed) -> None:
    result, journal = moved(placed, replace(ORDER, latency=20))
    latency = result.latency
    assert latency is not None
    assert latency.rate == 20
    assert latency.count >= 10
    assert latency.minimum_ms is not None
    assert latency.p99_ms is not None
    assert 0 < latency.minimum_ms <= latency.p99_ms
    assert any(raw.name.endswith("ping.stdout") for raw in journal.raw)


def test_a_release_that_cant_do_it_is_told_before_anything_runs(placed: Placed) -> None:
    order = replace(an_order(), transfer=replace(ORDER, tool="iperf", zerocopy=True))
    with pytest.raises(LabError, match="can't do what is asked") as caught:
        transfer(order, order.transfer, roles(order, placed), Journal(), Guard(), attempt=3, index=90, counted=True)
    assert caught.value.kind == "tool-lacks"


def test_a_transfer_that_never_began_leaves_no_probe_behind(placed: Placed) -> None:
    asked = replace(ORDER, latency=20, seconds=60.0, server_args=("--no-such-option",))
    order = replace(an_order(), transfer=asked)
    with pytest.raises(LabError) as caught:
        transfer(order, asked, roles(order, placed), Journal(), Guard(), attempt=3, index=91, counted=True)
    assert caught.value.kind == "server-failed"
    channel = placed.sender.channel
    assert isinstance(channel, NamespaceChannel)
    assert "ping" not in channel.programs()
