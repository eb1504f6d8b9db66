"""Counters, latency and cross-checks: pure functions over what endpoints print and what tools claim."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.model.order import TransferOrder
from labctl.model.reading import Direction, Reading, UdpCounts
from labctl.model.result import EndpointCost
from labctl.model.scenario import Side
from workers.transfers import counters, latency
from workers.transfers.cross_check import Witnesses, disagreements

BEFORE = b"""uptime 100.50
cpu 1000 0 500 10 40 7
core
core
nic eth0 1500 1000000 2000000
nic lo 65536 5 5
address lo 127.0.0.1
address eth0 198.18.0.16
address eth0 fe80::5054:ff:fe12:10
address eth0 2001:db8::16
"""
AFTER = b"""uptime 111.00
cpu 1400 0 1100 20 280 9
core
core
nic eth0 1500 2000000 1302000000
nic lo 65536 5 5
address eth0 198.18.0.16
"""


def test_cost_of_a_transfer() -> None:
    before, after = counters.parse(BEFORE), counters.parse(AFTER)
    assert before is not None
    assert after is not None
    cost = counters.cost(Side.SENDER, "198.18.0.16", before, after, bits=10e9)
    assert cost == EndpointCost(
        side=Side.SENDER,
        seconds=10.5,
        cores=2,
        cpu_seconds=12.5,
        stolen_seconds=0.02,
        sent_bytes=1_300_000_000,
        received_bytes=1_000_000,
        bits_per_cpu_second=800e6,
    )
    assert before.ipv6("198.18.0.16") == "2001:db8::16"
    assert after.ipv6("198.18.0.16") == ""


def test_what_went_back_is_not_known() -> None:
    before, after = counters.parse(BEFORE), counters.parse(AFTER.replace(b"1302000000", b"5"))
    assert before is not None
    assert after is not None
    cost = counters.cost(Side.SENDER, "198.18.0.16", before, after, bits=None)
    assert cost is not None
    assert (cost.sent_bytes, cost.received_bytes, cost.bits_per_cpu_second) == (None, 1_000_000, None)
    assert counters.cost(Side.SENDER, "198.18.0.16", after, before, bits=None) is None, "it was restarted"


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, len(BEFORE)), junk=st.binary(max_size=30))
def test_counters_never_raise(at: int, junk: bytes) -> None:
    counters.parse(BEFORE[:at] + junk + BEFORE[at + len(junk) :])


def _ping(times: dict[int, float], *, sent: int | None, first: str = "icmp_seq") -> bytes:
    lines = [f"64 bytes from 10.0.0.2: {first}={number} ttl=64 time={ms} ms" for number, ms in times.items()]
    if sent is not None:
        lines.append(f"{sent} packets transmitted, {len(times)} received, 0% packet loss, time 99ms")
    return "\n".join(lines).encode()


def test_percentiles_of_round_trips() -> None:
    found = latency.parse(_ping({number: float(number) for number in range(1, 101)}, sent=103), rate=10)
    assert found is not None
    assert (found.sent, found.lost, found.count, found.rate) == (103, 3, 100, 10)
    assert (found.minimum_ms, found.median_ms, found.p95_ms, found.p99_ms, found.maximum_ms) == (1, 50, 95, 99, 100)


def test_a_probe_that_was_ended_counts_the_gaps() -> None:
    found = latency.parse(_ping({0: 1.0, 1: 1.5, 4: 2.0}, sent=None, first="seq"), rate=10)
    assert found is not None
    assert (found.sent, found.lost) == (5, 2)


def test_no_reply_has_no_time() -> None:
    found = latency.parse(b"20 packets transmitted, 0 packets received, 100% packet loss", rate=10)
    assert found is not None
    assert (found.lost, found.median_ms, found.maximum_ms) == (20, None, None)
    assert latency.parse(b"ping: bad address", rate=10) is None


@settings(max_examples=200, deadline=None)
@given(output=st.binary(max_size=300), at=st.integers(0, 400))
def test_latency_never_raises(output: bytes, at: int) -> None:
    latency.parse(output, rate=10)
    latency.parse(_ping({1: 1.0, 2: 2.0}, sent=2)[:at] + output, rate=10)


ORDER = TransferOrder(tool="iperf3", seconds=10.0, interval=1.0)
BYTES = 1_250_000_000
READING = Reading(
    tool="iperf3", ok=True, bits_per_second=1e9, side="receiver", bytes=BYTES, seconds=10.0, streams=1, retransmits=0
)


def _cost(side: Side, *, sent: int | None = None, received: int | None = None) -> EndpointCost:
    return EndpointCost(side=side, seconds=11.0, sent_bytes=sent, received_bytes=received)


AGREE = Witnesses(
    reading=READING,
    peer=replace(READING, side="sender", bits_per_second=1.01e9),
    elapsed=10.4,
    sender=_cost(Side.SENDER, sent=round(BYTES * 1.045), received=20_000_000),
    receiver=_cost(Side.RECEIVER, sent=20_000_000, received=round(BYTES * 1.002)),
    mtu=1500,
)


def test_witnesses_that_agree_say_nothing() -> None:
    """With a header for each packet (sender), and with few for all (receiver: large receive offload)."""
    assert disagreements(ORDER, AGREE) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"elapsed": 5.0}, ("the tool's clock", "the orchestrator's")),
        ({"elapsed": 20.0}, ("the tool's clock", "the orchestrator's")),
        ({"peer": replace(READING, bits_per_second=2e9)}, ("the tool's figure", "its peer's", "2000 Mbit/s")),
        ({"peer": replace(READING, bits_per_second=0.8e9)}, ("the tool's figure", "its peer's")),
        ({"sender": _cost(Side.SENDER, sent=BYTES // 2)}, ("the tool's figure", "sent by the sender's adapter")),
        ({"sender": _cost(Side.SENDER, sent=2 * BYTES)}, ("the tool's figure", "sent by the sender's adapter")),
        ({"receiver": _cost(Side.RECEIVER, received=0)}, ("the tool's figure", "received by the receiver's adapter")),
    ],
)
def test_two_that_disagree_are_named(change: dict[str, object], words: tuple[str, ...]) -> None:
    (said,) = disagreements(ORDER, replace(AGREE, **change))  # type: ignore[arg-type]
    assert all(word in said for word in words)


@pytest.mark.parametrize("name", ["peer", "sender", "receiver", "mtu"])
def test_a_missing_witness_disagrees_with_nobody(name: str) -> None:
    assert disagreements(ORDER, replace(AGREE, **{name: None})) == ()  # type: ignore[arg-type]


def test_nothing_is_said_of_what_is_no_result_anyway() -> None:
    wrong = replace(AGREE, elapsed=99.0)
    assert disagreements(ORDER, replace(wrong, reading=replace(READING, ok=False))) == ()
    assert disagreements(ORDER, replace(wrong, reading=replace(READING, partial=True))) == ()


def test_repeated_segments_and_lost_datagrams_are_known_reasons() -> None:
    much = replace(AGREE, sender=_cost(Side.SENDER, sent=BYTES + 500_000_000))
    assert disagreements(ORDER, much)
    assert not disagreements(ORDER, replace(much, reading=replace(READING, retransmits=10_000)))
    lossy = replace(READING, udp=UdpCounts(lost_packets=3000, packets=10_000))
    udp = replace(AGREE, peer=None, sender=_cost(Side.SENDER, sent=round(BYTES * 1.1 / 0.7)))
    assert disagreements(replace(ORDER, protocol="udp"), replace(udp, reading=lossy)) == ()
    assert disagreements(replace(ORDER, protocol="udp"), udp)


def test_small_packets_have_many_headers() -> None:
    passed = replace(AGREE, sender=_cost(Side.SENDER, sent=round(BYTES * 1.8)))
    assert disagreements(ORDER, passed)
    assert not disagreements(replace(ORDER, mss=100), passed)


def test_both_directions_are_checked() -> None:
    order = replace(ORDER, both=True)
    back = Direction(bits_per_second=0.8e9, bytes=1_000_000_000, seconds=10.0)
    both = replace(
        AGREE,
        reading=replace(READING, reverse=back),
        peer=None,
        sender=_cost(Side.SENDER, sent=BYTES, received=1_000_000_000),
        receiver=_cost(Side.RECEIVER, sent=1_000_000_000, received=BYTES),
    )
    assert disagreements(order, both) == ()
    (said,) = disagreements(order, replace(both, receiver=_cost(Side.RECEIVER, sent=1_000, received=BYTES)))
    assert "sent by the receiver's adapter" in said


def test_omitted_seconds_passed_the_adapters_too() -> None:
    passed = replace(AGREE, elapsed=12.4, sender=_cost(Side.SENDER, sent=round(BYTES * 1.25)), receiver=None)
    assert disagreements(replace(ORDER, omit=2.0), passed) == ()
    assert disagreements(ORDER, passed)
