"""What UDP counters of iperf and iperf3 may be believed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from labctl.model.reading import UdpCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class PrintedCounts:
    """Counters as printed; None where there was no number."""

    jitter_ms: float | None = None
    lost: float | None = None
    packets: float | None = None
    percent: float | None = None

    @property
    def received(self) -> float | None:
        """Datagrams that arrived, by these counters."""
        return None if self.lost is None or self.packets is None else self.packets - self.lost


def believable(
    total: PrintedCounts,
    rows: Iterable[PrintedCounts],
    *,
    seconds: float | None,
    received_bytes: int | None,
    datagram: float | None,
) -> tuple[UdpCounts, tuple[str, ...]]:
    """The counts that can be true, and warnings about the rest.

    Lost datagrams below zero or above the total come from a stale first datagram that set the expected number far
    ahead (esnet/iperf #914, #716); so does a total that doesn't fit the bytes received. A jitter longer than the
    transfer is the difference of two clocks (esnet/iperf #842). A few datagrams that arrive late make a single row
    negative in a healthy run, so a row is wrong only beyond its own size.
    """
    rows = tuple(rows)
    warnings: list[str] = []
    jitter = total.jitter_ms
    limit = 1000.0 * (seconds or math.inf)
    jitters = [jitter, *(row.jitter_ms for row in rows)]
    if any(one is not None and not 0 <= one <= limit for one in jitters):
        jitter = None
        warnings.append("jitter_implausible")
    lost, packets = total.lost, total.packets
    if not packets:
        return UdpCounts(jitter_ms=jitter or None), tuple(warnings)
    known = lost is not None and packets is not None
    wrong = known and (_impossible(total) or any(_row_impossible(row) for row in rows))
    if known and not wrong and received_bytes and datagram:
        arrived = received_bytes / datagram
        wrong = abs((total.received or 0.0) - arrived) > max(3.0, 0.02 * arrived)
    if wrong:
        return UdpCounts(jitter_ms=jitter), ("udp_loss_invalid", *warnings)
    counts = UdpCounts(
        jitter_ms=jitter,
        lost_packets=None if lost is None or not known else int(lost),
        packets=None if packets is None else int(packets),
        lost_percent=_percent(total),
    )
    return counts, tuple(warnings)


def _impossible(counts: PrintedCounts) -> bool:
    if counts.lost is None or counts.packets is None:
        return False
    return counts.lost < 0 or counts.lost > counts.packets or counts.packets >= 2**31 - 1


def _row_impossible(row: PrintedCounts) -> bool:
    return row.lost is not None and row.packets is not None and not -row.packets <= row.lost <= row.packets


def _percent(counts: PrintedCounts) -> float | None:
    computed = None
    if counts.lost is not None and counts.packets:
        computed = 100.0 * counts.lost / counts.packets
    if counts.percent is None or computed is None:
        return computed
    return counts.percent if abs(counts.percent - computed) < 0.1 else computed
