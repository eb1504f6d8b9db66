"""Cross-checks of a transfer: the tool's own figure, its peer's, the adapters' counters and the orchestrator's clock.

Every two of these witnesses may differ for reasons that are known, and the tolerances below are these reasons. What is
beyond them is told in a sentence that names both; no figure is dropped or mended for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from labctl.model.order import TransferOrder
from labctl.model.reading import Reading
from labctl.model.result import EndpointCost

PEERS_SHARE = 0.05
"""Both ends' figures of one transfer: each has its own start and end, and what is in flight at one is not at the other."""

PEERS_SECONDS = 0.3
"""So many seconds of the transfer may be counted by one end only: the round trips in which iperf3 starts and ends it."""

LOST_SHARE = 0.01
"""Adapters may have counted less than the tool by this share: tools round what they print to three digits."""

MORE_SHARE = 0.05
"""Adapters may have counted more than payload, headers and repeated segments by this share: acknowledgements of the other
direction, and whatever else the endpoint says on its network meanwhile."""

MORE_BYTES = 1 << 20
"""The same for short transfers: the control connections of tools, name look-ups, the channel itself over SSH."""

UNSENT_BYTES = 8 << 20
"""A sender's figure counts what was handed to its kernel: so much a stream may have been in its buffers at the end."""

HEADERS = 86
"""Bytes around the payload of a packet at the most: Ethernet 14, IPv6 40, TCP 20 with 12 of time stamps. Adapters that
segment in hardware are given up to 64 KiB with one header, so less is as right."""

LATE_SECONDS = 3.0
LATE_SHARE = 0.10
"""The orchestrator may see a client's end later than the tool's clock says, by the sum of both: starting a client and
exchanging results took up to two seconds in emulated guests."""

EARLY_SHARE = 0.01
EARLY_SECONDS = 0.1
"""A tool may claim more time than passed at the orchestrator by the sum of both: rates of two clocks, and rounding."""


@dataclass(frozen=True, kw_only=True)
class Witnesses:
    """What is known of one transfer. Each but the reading may be missing."""

    reading: Reading
    peer: Reading | None
    """The reading of the server's own output."""
    elapsed: float
    """Seconds at the orchestrator, from starting the client until its end was seen."""
    sender: EndpointCost | None
    receiver: EndpointCost | None
    mtu: int | None = None
    """Of the sender's adapter."""


def disagreements(order: TransferOrder, seen: Witnesses) -> tuple[str, ...]:
    """Which two witnesses disagree, and about what; nothing where all that is known agrees, or nothing was measured."""
    reading = seen.reading
    if not reading.ok or reading.partial or not reading.bits_per_second:
        return ()
    return tuple(filter(None, (_clock(order, seen), _peer(order, seen), *_adapters(order, seen))))


def _clock(order: TransferOrder, seen: Witnesses) -> str:
    seconds = seen.reading.seconds
    if seconds is None:
        return ""
    told = seconds + order.omit
    late = seen.elapsed - told
    if late < -(EARLY_SECONDS + EARLY_SHARE * seen.elapsed):
        return f"the tool's clock and the orchestrator's: {told:.2f} s of transfer within {seen.elapsed:.2f} s"
    if late > LATE_SECONDS + LATE_SHARE * told:
        return (
            f"the tool's clock and the orchestrator's: the client ran {seen.elapsed:.2f} s for {told:.2f} s of transfer"
        )
    return ""


def _peer(order: TransferOrder, seen: Witnesses) -> str:
    reading, peer = seen.reading, seen.peer
    if peer is None or not peer.bits_per_second or not reading.bits_per_second:
        return ""
    if order.protocol == "udp" and peer.side != reading.side:
        return ""  # what was sent and what arrived differ by the losses
    allowed = PEERS_SHARE + PEERS_SECONDS / (reading.seconds or order.seconds)
    apart = peer.bits_per_second / reading.bits_per_second - 1
    if abs(apart) <= allowed:
        return ""
    return (
        f"the tool's figure and its peer's: {_rate(reading.bits_per_second)} ({reading.side}) against "
        f"{_rate(peer.bits_per_second)} ({peer.side})"
    )


def _adapters(order: TransferOrder, seen: Witnesses) -> list[str]:
    found = []
    for name, cost in (("sender", seen.sender), ("receiver", seen.receiver)):
        if cost is None:
            continue
        there = _moved(order, seen, seen.reading.bytes)
        back = _moved(order, seen, seen.reading.reverse.bytes if seen.reading.reverse is not None else None)
        out, into = (there, back) if name == "sender" else (back, there)
        found += [
            _adapter(order, seen, f"sent by the {name}'s adapter", out, cost.sent_bytes, sends=name == "sender"),
            _adapter(order, seen, f"received by the {name}'s adapter", into, cost.received_bytes, sends=False),
        ]
    return found


def _moved(order: TransferOrder, seen: Witnesses, counted: int | None) -> float | None:
    """What must have passed the adapters, the omitted seconds included."""
    seconds = seen.reading.seconds
    if counted is None or not seconds:
        return None
    return counted * (seconds + order.omit) / seconds


def _adapter(
    order: TransferOrder, seen: Witnesses, what: str, moved: float | None, passed: int | None, *, sends: bool
) -> str:
    if moved is None or passed is None:
        return ""
    reading = seen.reading
    unsent = UNSENT_BYTES * (reading.streams or 1) if reading.side == "sender" and not sends else 0
    omitted = 0.5 * moved if order.omit else 0.0  # the ramp-up is slower, or at its start faster, than the rest
    least = moved * (1 - LOST_SHARE) - unsent - omitted
    lost = _share_lost(reading) if sends else 0.0
    most = moved * (1 + MORE_SHARE + HEADERS / _payload(order, seen)) / (1 - lost) + MORE_BYTES + omitted
    if sends and reading.retransmits:
        most += reading.retransmits * 65_536
    if least <= passed <= most:
        return ""
    return f"the tool's figure and the bytes {what}: {_size(moved)} against {_size(passed)}"


def _share_lost(reading: Reading) -> float:
    udp = reading.udp
    if udp is None or udp.lost_packets is None or not udp.packets or udp.lost_packets >= udp.packets:
        return 0.0
    return max(0.0, udp.lost_packets / udp.packets)


def _payload(order: TransferOrder, seen: Witnesses) -> int:
    """Bytes of payload in a packet, at the least."""
    sizes = [max(88, (seen.mtu or 1500) - 60)]
    if order.protocol == "udp" and order.buffer is not None:
        sizes.append(max(1, order.buffer))
    if order.mss is not None:
        sizes.append(order.mss)
    return min(sizes)


def _rate(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e6:.4g} Mbit/s"


def _size(size: float) -> str:
    return f"{size / 1e6:.4g} MB"
