"""One iperf 2 run as its output tells it, in text or CSV, and what may be read from it.

iperf 2 prints the final rows of a run whose peer died as if nothing had happened and exits 0, so that the length of
the run, the messages beside it and the other side's output decide whether the figures are a result.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from labctl.model.reading import Capture, Direction, ErrorKind, Interval, Reading, UdpCounts
from workers.transfers import command_text
from workers.transfers.failures import Fault, fault
from workers.transfers.rows_text import PrintedRow
from workers.transfers.series import Row, Series, clean, count, differ, falls_short, runs_too_long
from workers.transfers.udp import PrintedCounts, believable

TOOL = "iperf2"

_COARSE = 0.002
"""Beyond this relative rounding of the printed times, the printed rates of the streams are better than size over time."""


@dataclass(kw_only=True)
class Stream:
    """One connection in one direction. `local_sends` says who sends in it, as far as the output tells."""

    local_sends: bool
    local_port: int | None = None
    remote_port: int | None = None
    rows: list[PrintedRow] = field(default_factory=list)
    retransmits: list[float | None] = field(default_factory=list)
    """As printed, one for each row."""
    report: PrintedRow | None = None
    """The receiver's row that a UDP client prints (`Server Report`)."""

    def add(self, row: PrintedRow, retransmits: float | None = None) -> None:
        """Append a row as printed."""
        self.rows.append(row)
        self.retransmits.append(retransmits)

    @property
    def has_final(self) -> bool:
        """Whether the last row covers the whole time: it starts with the first and ends no earlier than the others."""
        if len(self.rows) < 2:
            return bool(self.rows)
        first, before, last = self.rows[0], self.rows[-2], self.rows[-1]
        return last.start <= first.start and last.end >= before.end - 0.05

    @property
    def intervals(self) -> list[PrintedRow]:
        """The rows that are not the final one."""
        return self.rows[:-1] if self.has_final else self.rows


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run with all its streams in both directions."""

    streams: tuple[Stream, ...]
    server: bool = False
    udp: bool = False
    time_decimals: int = 4
    said: str = ""
    """Error messages beside the rows."""
    notes: str = ""
    """All other text beside the rows."""
    cut: bool = False
    version: str | None = None
    warnings: tuple[str, ...] = ()
    counted_streams: int | None = None
    """Where the output has rows over all streams only."""

    @property
    def ports(self) -> frozenset[int]:
        """The client's ports, which both sides print."""
        return frozenset(
            port for one in self.streams if (port := one.remote_port if self.server else one.local_port) is not None
        )


@dataclass(frozen=True, kw_only=True)
class _Way:
    """One direction over all its streams."""

    streams: tuple[Stream, ...]
    local_sends: bool
    series: Series
    final: Row | None
    receiver: Row | None
    """What the receiver says, when it isn't the local side: `Server Report` rows."""
    retransmits: int | None = None
    retransmits_invalid: bool = False


def read(run: Run, capture: Capture, peer: Run | None = None) -> Reading:
    """The reading of a run, with the other side's account of it when there is one."""
    requested = capture.requested_seconds or command_text.seconds(capture.command)
    # A single row as long as the report interval is the first of several, when more time was asked for.
    interval = command_text.interval(capture.command)
    first = 1.05 * interval if interval and requested and requested > 1.5 * interval else 0.0
    sending = _way(run, sends=True, requested=requested, first=first)
    receiving = _way(run, sends=False, requested=requested, first=first)
    forward, backward = (receiving, sending) if run.server else (sending, receiving)
    if not forward.streams:
        forward, backward = backward, forward
    other = _way(peer, sends=not forward.local_sends, requested=requested) if peer is not None else None
    reading = _judge(run, forward, other, requested, capture)
    if backward.streams and reading.bits_per_second is not None:
        reading = replace(reading, reverse=_direction(backward))
    return reading


def _way(run: Run, *, sends: bool, requested: float | None, first: float = 0.0) -> _Way:
    streams = tuple(one for one in run.streams if one.local_sends == sends and (one.rows or one.report))
    finals = [one.rows[-1] for one in streams if one.has_final and one.rows]
    whole = bool(streams) and len(finals) == len(streams) and _all_final(streams, first=first)
    reports = [one.report for one in streams if one.report is not None]
    repeats, invalid = _retransmits(streams, whole=whole, udp=run.udp)
    return _Way(
        streams=streams,
        local_sends=sends,
        series=clean(_intervals(streams, decimals=run.time_decimals), requested=requested),
        final=_together(finals, decimals=run.time_decimals) if whole else None,
        receiver=_together(reports, decimals=run.time_decimals) if reports and len(reports) == len(streams) else None,
        retransmits=repeats,
        retransmits_invalid=invalid,
    )


def _all_final(streams: Sequence[Stream], *, first: float) -> bool:
    """Whether no stream stops after its first interval row. `first` is the length up to which a single row is one."""
    most = max(len(one.rows) for one in streams)
    longest = max(one.rows[-1].end - one.rows[-1].start for one in streams if one.rows)
    single = (one.rows[0] for one in streams if len(one.rows) == 1)
    if most == 1:
        return longest > first
    return all(row.end - row.start > 0.5 * longest for row in single)


def _together(rows: Sequence[PrintedRow], *, decimals: int) -> Row:
    """Rows of parallel streams as one: all bytes over the time from the first start to the last end.

    Rates are only added where times are rounded so much that size over time is worse, because threads that don't run
    at the same time make a sum of rates too high.
    """
    start, end = min(row.start for row in rows), max(row.end for row in rows)
    size = sum(row.bytes for row in rows)
    rates = sum(row.bits_per_second for row in rows)
    seconds = end - start
    coarse = seconds <= 0 or 10.0**-decimals / seconds > _COARSE
    rate = rates if coarse or len(rows) == 1 else size * 8 / seconds
    return Row(start=start, end=end, bytes=size, bits_per_second=rate)


def _intervals(streams: Sequence[Stream], *, decimals: int) -> list[Row]:
    """The k-th rows of all streams added up; a stream that ended early adds nothing, one that was cut ends the list."""
    added: list[Row] = []
    columns = [(one.intervals, one.has_final) for one in streams]
    for index in range(max((len(rows) for rows, _ in columns), default=0)):
        if any(len(rows) <= index and not ended for rows, ended in columns):
            break
        parts = [rows[index] for rows, _ in columns if len(rows) > index]
        lengths = [row.end - row.start for row in parts]
        alike = max(lengths) - min(lengths) <= 0.05 * statistics.median(lengths)
        row = _together(parts, decimals=0 if alike else decimals)
        added.append(row)
    return added


def _retransmits(streams: Sequence[Stream], *, whole: bool, udp: bool) -> tuple[int | None, bool]:
    if udp or not streams:
        return None, False
    printed = [one.retransmits[-1:] if whole else one.retransmits[: len(one.intervals)] for one in streams]
    values = [value for part in printed for value in part]
    if not values or any(value is None for value in values):
        return None, False
    counts = [count(value) for value in values]
    if any(value is None for value in counts):
        return None, True
    return sum(value for value in counts if value is not None), False


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """Figures of one side."""

    side: str
    row: Row
    whole: bool = True
    """Whether it comes from final rows."""
    datagrams: tuple[PrintedCounts, ...] = ()


def _judge(run: Run, way: _Way, peer: _Way | None, requested: float | None, capture: Capture) -> Reading:
    warnings = [*run.warnings, *way.series.warnings]
    if way.retransmits_invalid:
        warnings.append("retransmits_invalid")
    own = _own_figure(way)
    other = _other_figure(way, peer, own)
    base = Reading(
        tool=TOOL,
        ok=False,
        tool_version=run.version,
        error=run.said,
        streams=run.counted_streams or len(way.streams) or None,
        retransmits=way.retransmits,
        intervals=way.series.intervals or None,
    )
    if own is None and other is None:
        kind = _without_rows(run)
        return replace(base, error_kind=kind, intervals=None, warnings=_unique(warnings))
    if way.series.clock_jumped:
        return _before_the_jump(base, way, _unique(warnings))
    problem = _problem(run, way, own, other, requested, capture.command)
    chosen = _chosen(run, own, other)
    mismatch = own is not None and other is not None and differ(own.row.end, other.row.end)
    jumped = chosen is not None and runs_too_long(chosen.row.end, capture)
    jumped = jumped or (own is not None and runs_too_long(own.row.end, capture))
    if mismatch and _waited_for_the_end(own, other, requested, capture):
        mismatch, chosen = False, other
    if mismatch:
        warnings.append("duration_mismatch")
        chosen = chosen if run.udp else _closer(own, other, capture) or chosen
        jumped = jumped or problem is None
    if run.udp and (chosen is None or chosen.side != "receiver"):
        return replace(base, error_kind=problem or _udp_unheard(run), intervals=None, warnings=_unique(warnings))
    assert chosen is not None
    if problem is None and not jumped and _ran_short(chosen, requested):
        jumped = capture.elapsed is not None and not falls_short(capture.elapsed, requested)
        problem = None if jumped else ErrorKind.TRUNCATED_OUTPUT
        warnings.append("duration_mismatch")
    if jumped:
        warnings.append("clock_jump")
        problem = None
    if not chosen.row.bytes:
        return replace(base, error_kind=problem or ErrorKind.NO_DATA, warnings=_unique(warnings))
    udp, doubts = _udp(run, chosen)
    ok = problem is None and not jumped
    if run.said and ok:
        warnings.append("error_lines_present")
    return replace(
        base,
        ok=ok,
        error_kind=problem,
        partial=not ok,
        bits_per_second=chosen.row.bits_per_second,
        side=chosen.side,
        bytes=chosen.row.bytes,
        seconds=chosen.row.seconds,
        intervals=None if jumped else base.intervals or _peer_intervals(peer),
        udp=udp,
        warnings=_unique([*warnings, *doubts]),
    )


def _unique(warnings: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(warnings))


def _own_figure(way: _Way) -> _Figure | None:
    """The local side's figure: its final rows, else its interval rows."""
    side = "sender" if way.local_sends else "receiver"
    datagrams = tuple(one.rows[-1].datagrams for one in way.streams if one.rows and one.rows[-1].datagrams is not None)
    if way.final is not None:
        return _Figure(side=side, row=way.final, datagrams=datagrams)
    series = way.series
    if series.bits_per_second is None:
        return None
    row = Row(start=0.0, end=series.seconds, bytes=series.bytes, bits_per_second=series.bits_per_second)
    return _Figure(side=side, row=row, whole=False, datagrams=())


def _other_figure(way: _Way, peer: _Way | None, own: _Figure | None) -> _Figure | None:
    """The other side's figure: its own output, else the report that a UDP client prints."""
    if peer is not None and peer.streams:
        figure = _own_figure(peer)
        more_than_sent = (
            figure is not None
            and own is not None
            and figure.side == "receiver"
            and way.final is not None
            and figure.row.bytes > 1.02 * own.row.bytes
        )
        if figure is not None and figure.row.bytes and not more_than_sent:
            return figure
    if way.receiver is None:
        return None
    datagrams = tuple(one.report.datagrams for one in way.streams if one.report and one.report.datagrams is not None)
    return _Figure(side="receiver", row=way.receiver, datagrams=datagrams)


def _problem(
    run: Run, way: _Way, own: _Figure | None, other: _Figure | None, requested: float | None, command: str
) -> ErrorKind | None:
    """Why the figures are no complete result, by messages and by what is missing; None when nothing speaks against."""
    found = fault(run.said)
    confirmed = (
        own is not None
        and other is not None
        and way.final is not None
        and abs(own.row.bytes - other.row.bytes) <= 0.05 * own.row.bytes
        and requested is not None
        and not falls_short(own.row.end, requested)
    )
    if found is not None and not confirmed:
        if found is Fault.NOT_CONNECTED:
            return ErrorKind.CONNECT_REFUSED
        if found is Fault.REFUSED:
            return ErrorKind.CONNECTION_LOST if other is not None else ErrorKind.CONNECT_REFUSED
        if found in (Fault.LOST, Fault.SERVER_ENDED, Fault.CLIENT_ENDED):
            return ErrorKind.CONNECTION_LOST
    if own is None:
        return ErrorKind.NO_DATA
    if way.final is None or run.cut or _misses_streams(run, way, command):
        return ErrorKind.CONNECTION_LOST if way.series.ends_dead else ErrorKind.TRUNCATED_OUTPUT
    if falls_short(own.row.end, requested) and (own.side == "receiver" or way.series.ends_dead) and not run.server:
        return ErrorKind.CONNECTION_LOST
    return None


def _misses_streams(run: Run, way: _Way, command: str) -> bool:
    """Whether rows of fewer streams, or of fewer directions, are there than were asked for."""
    asked = command_text.streams(command)
    if asked is not None and (run.counted_streams or len(way.streams)) < asked:
        return True
    directions = {one.local_sends for one in run.streams if one.rows}
    return command_text.both_ways_at_once(command) and len(directions) < 2 and "bind failed" not in run.notes


def _chosen(run: Run, own: _Figure | None, other: _Figure | None) -> _Figure | None:
    """The receiver's figure, unless its output was cut and the sender's covers more. Of UDP only the receiver's counts."""
    if own is None or other is None:
        return own or other
    if other.side == "receiver" and (other.whole or run.udp or other.row.end >= own.row.end):
        return other
    return own


def _ran_short(chosen: _Figure, requested: float | None) -> bool:
    return falls_short(chosen.row.end, requested)


def _closer(own: _Figure | None, other: _Figure | None, capture: Capture) -> _Figure | None:
    """The side whose seconds agree with the orchestrator's clock."""
    if own is None or other is None or capture.elapsed is None:
        return None
    elapsed = capture.elapsed
    return min((other, own), key=lambda figure: abs(figure.row.end - elapsed))


def _waited_for_the_end(own: _Figure | None, other: _Figure | None, requested: float | None, capture: Capture) -> bool:
    """Whether the local sender only waited longer for the end of the connection than data flowed.

    iperf 2.1 counts until the server has closed, for up to a second. Its clock is right then, by the orchestrator's; and so
    is the receiver's, which had all data within the asked time.
    """
    if own is None or other is None or capture.elapsed is None or requested is None:
        return False
    data_ended = own.side == "sender" and other.row.bytes == own.row.bytes and not differ(other.row.end, requested)
    return data_ended and other.row.end <= own.row.end <= capture.elapsed


def _without_rows(run: Run) -> ErrorKind:
    found = fault(run.said)
    if found in (Fault.NOT_CONNECTED, Fault.REFUSED):
        return ErrorKind.CONNECT_REFUSED
    if found is Fault.LOST:
        return ErrorKind.CONNECTION_LOST
    return ErrorKind.TRUNCATED_OUTPUT if run.cut else ErrorKind.NO_DATA


def _udp_unheard(run: Run) -> ErrorKind:
    """What a UDP sender's row without the receiver's report means: it tells what was sent, not what arrived."""
    kind = _without_rows(run)
    return kind if kind is not ErrorKind.TRUNCATED_OUTPUT else ErrorKind.NO_DATA


def _before_the_jump(base: Reading, way: _Way, warnings: tuple[str, ...]) -> Reading:
    """Only rows before the first impossible one; the final row is as wrong as they are."""
    series = way.series
    return replace(
        base,
        partial=bool(series.rows),
        bits_per_second=_mean(series.intervals),
        side=("sender" if way.local_sends else "receiver") if series.rows else None,
        bytes=series.bytes if series.rows else None,
        seconds=series.seconds if series.rows else None,
        warnings=warnings,
    )


def _mean(intervals: Sequence[Interval]) -> float | None:
    """The mean rate, weighted by length."""
    seconds = sum(one.end - one.start for one in intervals)
    return sum(one.bits_per_second * (one.end - one.start) for one in intervals) / seconds if seconds else None


def _peer_intervals(peer: _Way | None) -> tuple[Interval, ...] | None:
    return (peer.series.intervals or None) if peer is not None else None


def _udp(run: Run, chosen: _Figure) -> tuple[UdpCounts | None, tuple[str, ...]]:
    if not run.udp or not chosen.datagrams:
        return None, ()
    parts = chosen.datagrams
    losses = [one.lost for one in parts if one.lost is not None]
    packets = [one.packets for one in parts if one.packets is not None]
    jitters = [one.jitter_ms for one in parts if one.jitter_ms is not None]
    total = PrintedCounts(
        jitter_ms=statistics.mean(jitters) if jitters else None,
        lost=sum(losses) if len(losses) == len(parts) else None,
        packets=sum(packets) if len(packets) == len(parts) else None,
    )
    return believable(total, parts, seconds=chosen.row.seconds, received_bytes=None, datagram=None)


def _direction(way: _Way) -> Direction:
    figure = _own_figure(way)
    return Direction(
        bits_per_second=figure.row.bits_per_second if figure else None,
        bytes=figure.row.bytes if figure else None,
        seconds=figure.row.seconds if figure else None,
        retransmits=way.retransmits,
        intervals=way.series.intervals,
    )
