"""iperf3's human-readable output to runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from workers.transfers import command_text
from workers.transfers.iperf3_run import Run, Total, Way
from workers.transfers.rows_text import PrintedRow, error_lines, printed_row
from workers.transfers.series import Row
from workers.transfers.udp import PrintedCounts

_HEADER = re.compile(r"\[\s*ID\s*\]")
_LABEL = re.compile(r"\b(sender|receiver)\b")
_RETRANSMITS = re.compile(r"^\s*(-?\d+)(?:\s|$)")
_VERSION = re.compile(r"^\s*iperf (3\.[\w.+-]*\w)", re.MULTILINE)
_BEGIN = re.compile(r"Connecting to host|Accepted connection from")
_CONNECTED = re.compile(r"\[\s*(\d+)\]\s*(?:\[[TR]X-[CS]\]\s*)?local \S+ port \d+ connected")


@dataclass(kw_only=True)
class _Section:
    """The lines of one run."""

    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def runs(text: str, errors: str, *, server: bool, command: str) -> list[Run]:
    """The runs of a text in order; none when it holds neither rows nor a connection. `errors` is standard error."""
    sections = [_Section()]
    for line in text.split("\n"):
        if _BEGIN.search(line) and any(_BEGIN.search(one) or printed_row(one) for one in sections[-1].lines):
            sections.append(_Section())
        sections[-1].lines.append(line)
    version = _VERSION.search(text)
    found = [_run(one, server=server, command=command) for one in sections if _is_run(one)]
    if found and errors.strip():
        said = error_lines(errors, "iperf3") or ""
        found[-1] = replace(found[-1], error=found[-1].error or said)
    return [replace(run, version=version.group(1) if version else None) for run in found]


def _is_run(section: _Section) -> bool:
    return bool(_BEGIN.search(section.text)) or any(printed_row(line) for line in section.lines)


@dataclass(kw_only=True)
class _Rows:
    """Rows of one direction, sorted by what they are."""

    intervals: list[tuple[PrintedRow, bool]] = field(default_factory=list)
    """With whether a `Retr` column is above it."""
    sent: list[tuple[PrintedRow, bool]] = field(default_factory=list)
    received: list[tuple[PrintedRow, bool]] = field(default_factory=list)
    unlabelled: list[tuple[PrintedRow, bool]] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)


def _run(section: _Section, *, server: bool, command: str) -> Run:
    text = section.text
    server = server or "Accepted connection from" in text
    forward, backward, retr_above = _Rows(), _Rows(), False
    headers, connections = 0, set[str]()
    for line in section.lines:
        if _HEADER.search(line):
            headers += 1
            retr_above = "Retr" in line
        if connected := _CONNECTED.search(line):
            connections.add(connected.group(1))
        row = printed_row(line)
        if row is None or "(omitted)" in row.more:
            continue
        rows = backward if row.tag in ("RX-C", "TX-S") else forward
        _sort(rows, row, retr_above=retr_above, last_part=headers > 1)
    reverse = bool(re.search(r"^Reverse mode", text, re.MULTILINE))
    sends = server == reverse
    if server and any(retr for _, retr in forward.intervals) and not backward.intervals:
        sends = True
    udp = _is_udp(forward, command)
    ways = (_way(forward, udp=udp, sends=sends), _way(backward, udp=udp, sends=not sends))
    return Run(
        forward=ways[0],
        backward=ways[1] if backward.intervals or backward.received else None,
        udp=udp,
        server=server,
        streams=len(forward.streams) or len(connections) or None,
        requested=command_text.seconds(command),
        error=error_lines(text, "iperf3"),
        complete=_is_complete(text, [way for way in ways if way.rows or way.received], server=server),
        live=True,
    )


def _sort(rows: _Rows, row: PrintedRow, *, retr_above: bool, last_part: bool) -> None:
    label = _LABEL.search(row.more)
    if not row.is_sum:
        rows.streams.add(row.stream)
    if label is not None:
        (rows.sent if label.group(1) == "sender" else rows.received).append((row, retr_above))
    elif last_part and rows.intervals and row.start <= rows.intervals[0][0].start:
        rows.unlabelled.append((row, retr_above))
    else:
        rows.intervals.append((row, retr_above))


def _is_udp(rows: _Rows, command: str) -> bool:
    printed = (row for part in (rows.received, rows.sent, rows.intervals, rows.unlabelled) for row, _ in part)
    return any(row.datagrams is not None for row in printed) or bool(re.search(r"\s(-u|--udp)\b", command))


def _is_complete(text: str, ways: list[Way], *, server: bool) -> bool:
    if "iperf Done." in text:
        return True
    if server:
        return all(way.received is not None or way.sent is not None or way.combined is not None for way in ways)
    return all((way.received is not None and way.sent is not None) or way.combined is not None for way in ways)


def _way(rows: _Rows, *, udp: bool, sends: bool) -> Way:
    kept = _over_streams(rows.intervals, streams=len(rows.streams))
    return Way(
        local_sends=sends,
        rows=tuple(_row(row, retr=retr) for row, retr in kept),
        row_udp=tuple(row.datagrams or PrintedCounts() for row, _ in kept),
        sent=_total(rows.sent, streams=len(rows.streams)),
        received=_total(rows.received, streams=len(rows.streams)),
        combined=_total(rows.unlabelled, streams=len(rows.streams)) if udp else None,
    )


def _over_streams(rows: Iterable[tuple[PrintedRow, bool]], *, streams: int) -> list[tuple[PrintedRow, bool]]:
    return [(row, retr) for row, retr in rows if row.is_sum == (streams > 1)]


def _row(row: PrintedRow, *, retr: bool) -> Row:
    return row.row(retransmits=_repeats(row) if retr else None)


def _repeats(row: PrintedRow) -> float | None:
    match = _RETRANSMITS.match(row.more)
    return float(match.group(1)) if match else None


def _total(rows: list[tuple[PrintedRow, bool]], *, streams: int) -> Total | None:
    over_all = _over_streams(rows, streams=streams)
    if not over_all:
        return None
    row, retr = over_all[-1]
    size = row.bytes
    single = [one for one, _ in rows if not one.is_sum]
    if len(single) == streams > 1 and max(one.bytes_resolution for one in single) < row.bytes_resolution:
        size = sum(one.bytes for one in single)
    seconds = row.end - row.start
    return Total(
        bytes=size,
        seconds=seconds,
        bits_per_second=row.bits_per_second,
        retransmits=_repeats(row) if retr and row.datagrams is None else None,
        udp=row.datagrams or PrintedCounts(),
    )
