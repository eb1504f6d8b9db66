"""iperf 2 `-y C` output to runs: 9 columns up to 2.1.8, 14 for UDP, 15 in 2.1.9, 17 with a header in 2.2."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from workers.transfers import command_text
from workers.transfers.iperf_run import Run, Stream
from workers.transfers.rows_text import PrintedRow
from workers.transfers.udp import PrintedCounts

_TIME = re.compile(r"^\s*(?:[-+]\d{4}:)?\d{14}(?:\.\d+)?$")
_SPAN = re.compile(r"^(-?\d+(?:\.\d+)?)-(-?\d+(?:\.\d+)?)$")
_BOTH_WAYS = re.compile(r"(?:^|\s)(?:-R|-d|-r|--reverse|--dualtest|--tradeoff|--full-duplex)(?=\s|$)")
DEFAULT_PORT = 5001


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One line of CSV."""

    source: tuple[str, int]
    target: tuple[str, int]
    stream: str
    row: PrintedRow
    retransmits: float | None
    decimals: int

    @property
    def is_sum(self) -> bool:
        return self.stream == "-1" or self.source[1] == 0


def is_csv(text: str) -> bool:
    """Whether any line is iperf's CSV."""
    return any(_TIME.match(line.split(",", 1)[0]) and line.count(",") >= 5 for line in text.split("\n"))


def runs(text: str, errors: str, said: str, *, server: bool, command: str) -> list[Run]:
    """The run of a CSV output; none when no line is complete. `said` are messages beside it."""
    lines, cut = _lines(text)
    if not lines:
        return []
    port = _server_port(lines, command)
    udp = any(one.row.datagrams is not None for one in lines)
    streams = _streams([one for one in lines if not one.is_sum], server=server, port=port, command=command)
    sums = [one for one in lines if one.is_sum]
    counted = None
    if not streams and sums:
        streams = [Stream(local_sends=not server)]
        for one in sums:
            streams[0].add(one.row, one.retransmits)
    return [
        Run(
            streams=tuple(streams),
            server=server,
            udp=udp,
            time_decimals=min(one.decimals for one in lines),
            said=said,
            notes=errors,
            cut=cut,
            counted_streams=counted,
        )
    ]


def _lines(text: str) -> tuple[list[_Line], bool]:
    """All complete lines, and whether the last one was cut."""
    header: list[str] | None = None
    found: list[_Line] = []
    cut = False
    printed = text.split("\n")
    for index, raw in enumerate(printed):
        cells = [cell.strip() for cell in raw.split(",")]
        if cells[0].lower() == "time" and len(cells) > 8:
            header = [cell.lower() for cell in cells]
            continue
        if not _TIME.match(cells[0]):
            cut = cut or (index == len(printed) - 1 and bool(re.match(r"[-+\d:.]+$", cells[0])))
            continue
        line = _line(cells, header)
        unfinished = index == len(printed) - 1 and (line is None or not _agrees(line))
        cut = cut or unfinished
        if line is not None and not unfinished:
            found.append(line)
    return found, cut


def _agrees(line: _Line) -> bool:
    """Whether the rate fits size and time as far as these are rounded: a cut last number doesn't."""
    row = line.row
    rounding = 10.0**-line.decimals
    low = row.bytes * 8 / (row.end - row.start + rounding) if row.end > row.start else 0.0
    high = row.bytes * 8 / max(row.end - row.start - rounding, 1e-9)
    return 0.95 * low <= row.bits_per_second <= 1.05 * high


def _line(cells: list[str], header: list[str] | None) -> _Line | None:
    named = _named(cells, header)
    if named is None:
        return None
    try:
        start, end = float(named["istart"]), float(named["iend"])
        size, speed = float(named["bytes"]), float(named["speed"])
        source = (named["srcaddress"], int(named["srcport"]))
        target = (named["dstaddr"], int(named["dstport"]))
    except (KeyError, ValueError, OverflowError):
        return None
    if not (abs(size) < 1e30 and abs(speed) < 1e30):
        return None
    return _Line(
        source=source,
        target=target,
        stream=named["transferid"],
        row=PrintedRow(
            stream=named["transferid"],
            star=False,
            tag="",
            start=start,
            end=end,
            bytes=int(size),
            bytes_resolution=0.0,
            bits_per_second=speed,
            more="",
            datagrams=_datagrams(named),
        ),
        retransmits=_number(named.get("tcpretry")),
        decimals=len(named["iend"].partition(".")[2]),
    )


def _named(cells: list[str], header: list[str] | None) -> dict[str, str] | None:
    """The cells by the header's names, or by the names that belong to their number."""
    if header is not None and len(cells) == len(header):
        return dict(zip(header, cells, strict=True))
    if len(cells) < 9:
        return None
    named = dict(zip(("time", "srcaddress", "srcport", "dstaddr", "dstport", "transferid"), cells, strict=False))
    span = _SPAN.match(cells[6])
    rest = cells[7:] if span else cells[8:]
    named["istart"], named["iend"] = (span.group(1), span.group(2)) if span else (cells[6], cells[7])
    extra = ["jitter", "lost", "datagrams", "percent", "outoforder"] if len(rest) == 7 else ["writecnt", "writeerr"]
    if len(rest) >= 8:
        extra = ["writecnt", "writeerr", "tcpretry"]
    named.update(zip(("bytes", "speed", *extra), rest, strict=False))
    return named


def _datagrams(named: dict[str, str]) -> PrintedCounts | None:
    packets = _number(named.get("datagrams") or named.get("total"))
    if packets is None:
        return None
    lost = _number(named.get("lost") or named.get("errors"))
    return PrintedCounts(jitter_ms=_number(named.get("jitter")), lost=lost, packets=packets)


def _number(printed: str | None) -> float | None:
    try:
        return None if printed is None else float(printed)
    except ValueError:
        return None


def _server_port(lines: list[_Line], command: str) -> int:
    named = command_text.port(command)
    ports = Counter(port for one in lines for port in {one.source[1], one.target[1]} if port)
    if named is not None and named in ports:
        return named
    if DEFAULT_PORT in ports or not ports:
        return DEFAULT_PORT
    return ports.most_common(1)[0][0]


_Key = tuple[tuple[str, int], tuple[str, int]]


def _reported(streams: dict[_Key, Stream], line: _Line) -> Stream | None:
    """The UDP stream whose receiver's report this line is: 2.0.x prints it with the addresses swapped and counters.

    Counters in a client's own lines (2.1.8) say nothing of the receiver.
    """
    if line.row.datagrams is None:
        return None
    swapped = streams.get((line.target, line.source))
    if swapped is not None:
        return swapped
    own = streams.get((line.source, line.target))
    return own if own is not None and own.rows[-1].datagrams is None else None


def _streams(lines: list[_Line], *, server: bool, port: int, command: str) -> list[Stream]:
    """Rows by their pair of addresses. The sender stands first, except in a server's output of 2.0.x."""
    both = bool(_BOTH_WAYS.search(command))
    streams: dict[_Key, Stream] = {}
    for line in lines:
        client = line.target if line.source[1] == port else line.source
        from_server = line.source[1] == port and line.target[1] != port
        sent = None if both or server else _reported(streams, line)
        if sent is not None:
            sent.report = line.row
            continue
        key = (line.source, line.target)
        if key not in streams:
            streams[key] = Stream(
                local_sends=from_server == server,
                local_port=port if server else client[1],
                remote_port=client[1] if server else port,
            )
        streams[key].add(line.row, line.retransmits)
    return _one_way(list(streams.values()), server=server, reverse=both)


def _one_way(streams: list[Stream], *, server: bool, reverse: bool) -> list[Stream]:
    """A server whose rows all seem to be sent wrote its own address first (2.0.x), unless a reverse run was asked for."""
    if server and not reverse and streams and all(one.local_sends for one in streams):
        for one in streams:
            one.local_sends = False
    return streams
