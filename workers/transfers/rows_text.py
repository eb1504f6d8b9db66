"""Rows of human-readable output, which iperf and iperf3 print alike: `[ID] start-end sec  size  rate  more`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workers.transfers.series import Row
from workers.transfers.udp import PrintedCounts
from workers.transfers.units import NUMBER, bits, number, resolution

_ROW = re.compile(
    rf"""\[\s*(?P<star>\*?)\s*(?P<id>\d+|(?:SUM|FD)(?:-?\d+)?)\s*\]\s*(?:\[\s*(?P<tag>[TR]X-[CS])\s*\])?\s*
    (?P<start>{NUMBER})\s*-\s*\(?(?P<end>{NUMBER})\)?\s*sec\s+
    (?P<size>{NUMBER})\s*(?P<size_unit>[KMGTP]?(?:Bytes?|bits?))\s+
    (?P<rate>{NUMBER})\s*(?P<rate_unit>[KMGTP]?(?:Bytes?|bits?))/sec
    (?P<more>.*)$""",
    re.VERBOSE | re.IGNORECASE,
)
_DATAGRAMS = re.compile(
    rf"(?:(?P<jitter>{NUMBER})\s*ms\s+)?(?P<lost>-?\d+)\s*/\s*(?P<packets>-?\d+)\s*\(\s*(?P<percent>{NUMBER})\s*%\s*\)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class PrintedRow:
    """One row as printed; `bits_per_second` from the cell that is rounded least."""

    stream: str
    """The id without blanks and star: `1`, `SUM`, `SUM-2`, `FD1`."""
    star: bool
    tag: str
    start: float
    end: float
    bytes: int
    bytes_resolution: float
    bits_per_second: float
    more: str
    """What follows the rate."""
    datagrams: PrintedCounts | None

    @property
    def is_sum(self) -> bool:
        """Whether it is a row over several streams."""
        return not self.stream.isdigit()

    def row(self, *, retransmits: float | None = None) -> Row:
        """The row for a series."""
        return Row(
            start=self.start,
            end=self.end,
            bytes=self.bytes,
            bits_per_second=self.bits_per_second,
            retransmits=retransmits,
        )


def printed_row(line: str) -> PrintedRow | None:
    """The row of a line, or None when the line holds none (or one that was cut before its rate)."""
    match = _ROW.search(line)
    if match is None:
        return None
    start, end = number(match["start"]), number(match["end"])
    size, rate = bits(match["size"], match["size_unit"]), bits(match["rate"], match["rate_unit"])
    seconds = end - start
    if rate == rate and seconds > 0 and size > 0 and _spread(match, seconds) < resolution(match["rate"]):
        rate = size / seconds
    return PrintedRow(
        stream=match["id"].upper(),
        star=bool(match["star"]),
        tag=(match["tag"] or "").upper(),
        start=start,
        end=end,
        bytes=round(size / 8) if size == size and abs(size) != float("inf") else 0,
        bytes_resolution=resolution(match["size"]),
        bits_per_second=rate,
        more=match["more"],
        datagrams=_datagrams(match["more"]),
    )


def _spread(match: re.Match[str], seconds: float) -> float:
    """The relative rounding of the size over the printed time."""
    decimals = len(match["end"].replace(",", ".").partition(".")[2])
    return resolution(match["size"]) + 10.0**-decimals / seconds


def _datagrams(more: str) -> PrintedCounts | None:
    match = _DATAGRAMS.search(more)
    if match is None:
        return None
    percent = number(match["percent"])
    return PrintedCounts(
        jitter_ms=number(match["jitter"]) if match["jitter"] else None,
        lost=float(match["lost"]),
        packets=float(match["packets"]),
        percent=percent if percent == percent else None,
    )


def error_lines(text: str, tool: str) -> str:
    """What the tool itself says about a failure: the text after `iperf3: error - ` and the like; empty without one."""
    pattern = rf"^.*?\b{tool}(?:\.exe)?\s*:\s*(?!.*\bwarning\b)(?P<said>\S.*)$"
    said = [match["said"].strip() for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE)]
    return "\n".join(said)
