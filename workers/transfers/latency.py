"""Round-trip time under load: echo requests at a low, stated rate beside a transfer, by the `ping` that endpoints have.

A request of 64 bytes ten times a second is 11 kbit/s with its headers, and one wake-up of each end: less than a
thousandth of what any transfer worth measuring does.
"""

from __future__ import annotations

import math
import re

from labctl.model.reading import Latency
from workers.transfers.text import decode

_REPLY = re.compile(r"\b(?:icmp_)?seq=(\d{1,9})\b.*?\btime[=<](\d+(?:[.,]\d+)?) ?ms")
_TOTALS = re.compile(r"(\d{1,9}) packets transmitted, (\d{1,9}) (?:packets )?received")


def command(address: str, *, rate: int, seconds: float) -> tuple[str, ...]:
    """`ping` for so many seconds, of iputils or busybox: both take `-n`, `-c`, `-i` with a fraction, and `-w`."""
    count = max(1, math.ceil(rate * seconds))
    return ("ping", "-n", "-c", str(count), "-i", f"{1 / rate:.3f}", "-w", str(math.ceil(seconds) + 1), address)


def parse(printed: bytes, *, rate: int) -> Latency | None:
    """The reading of what `ping` printed, also when it was ended before its summary; None when it sent nothing.

    Replies that came twice count once. Without a summary, as many were sent as the last reply's number says; requests
    after that one are not known, and not called lost.
    """
    text = decode(printed).text
    times: dict[int, float] = {}
    for match in _REPLY.finditer(text):
        times.setdefault(int(match[1]), float(match[2].replace(",", ".")))
    totals = _TOTALS.search(text)
    if totals:
        sent = int(totals[1])
    elif times:
        first = 0 if 0 in times else 1
        sent = max(times) - first + 1
    else:
        return None
    if sent < len(times) or not sent:
        return None
    ordered = sorted(times.values())
    if not ordered:
        return Latency(rate=rate, sent=sent, lost=sent)
    return Latency(
        rate=rate,
        sent=sent,
        lost=sent - len(ordered),
        minimum_ms=ordered[0],
        median_ms=_percentile(ordered, 50),
        p95_ms=_percentile(ordered, 95),
        p99_ms=_percentile(ordered, 99),
        maximum_ms=ordered[-1],
    )


def _percentile(ordered: list[float], percent: int) -> float:
    """Nearest rank: the smallest value that so many per cent are not above."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
