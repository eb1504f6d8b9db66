"""One iperf3 run as its output tells it, in JSON or in text, and what may be read from it.

The figures of a run are its receiver's totals. They are believed only when the run ended well: with an error, the
totals at the end are wrong in several ways (the receiver's are 0, the sender's count more bytes than their seconds),
so that only the distinct rows hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labctl.model.reading import Capture, Direction, ErrorKind, Reading, UdpCounts
from workers.transfers import failures
from workers.transfers.series import Row, Series, clean, count, differ, falls_short, runs_too_long
from workers.transfers.udp import PrintedCounts, believable

TOOL = "iperf3"


@dataclass(frozen=True, kw_only=True)
class Total:
    """A summary as printed. None is not printed."""

    bytes: int | None = None
    seconds: float | None = None
    bits_per_second: float | None = None
    retransmits: float | None = None
    udp: PrintedCounts = field(default_factory=PrintedCounts)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One direction of a run. `rows` are the counted ones (no omitted rows), as printed."""

    local_sends: bool
    rows: tuple[Row, ...] = ()
    row_udp: tuple[PrintedCounts, ...] = ()
    sent: Total | None = None
    received: Total | None = None
    combined: Total | None = None
    """The only total that releases before 3.12 give for UDP: the sender's bytes with the receiver's losses."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. `forward` is the direction that was asked for (client to server when it went both ways)."""

    forward: Way
    backward: Way | None = None
    version: str | None = None
    udp: bool = False
    server: bool = False
    streams: int | None = None
    requested: float | None = None
    datagram: float | None = None
    error: str = ""
    complete: bool = True
    live: bool = False
    """Printed while it ran (text, `--json-stream`), so that the last row is the last thing that happened."""
    cpu: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    identity: tuple[object, ...] = ()
    """Equal for the same run printed twice."""
    cookie: str = ""


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """The figure of one direction."""

    series: Series
    bits_per_second: float | None = None
    side: str | None = None
    bytes: int | None = None
    seconds: float | None = None
    retransmits: int | None = None
    udp: UdpCounts | None = None
    warnings: tuple[str, ...] = ()


def read(run: Run, capture: Capture, peer: Run | None = None) -> Reading:
    """The reading of a run, with the other side's account of it when there is one."""
    requested = capture.requested_seconds or run.requested
    way = run.forward
    series = clean(way.rows, requested=requested)
    kind = _failure(run, series)
    figure = _figure_of_totals(run, way, series) if kind is None else _figure_of_rows(run, way, series)
    if kind is None and not figure.bits_per_second:
        kind = ErrorKind.NO_DATA
        figure = replace(figure, bits_per_second=None, side=None, bytes=None, seconds=None)
    reading = Reading(
        tool=TOOL,
        ok=kind is None,
        tool_version=run.version,
        error_kind=kind,
        error=run.error,
        partial=kind is not None and figure.bits_per_second is not None,
        bits_per_second=figure.bits_per_second,
        side=figure.side,
        bytes=figure.bytes,
        seconds=figure.seconds,
        streams=run.streams,
        retransmits=figure.retransmits,
        intervals=series.intervals,
        reverse=None if run.backward is None else _direction(run, run.backward, requested, whole=kind is None),
        udp=figure.udp,
        cpu_percent=run.cpu,
        warnings=(*run.warnings, *series.warnings, *figure.warnings),
    )
    reading = _check_duration(reading, series, requested, capture)
    if peer is not None:
        reading = with_peer(reading, read(peer, replace(capture, role="server", elapsed=None)), capture)
    return replace(reading, warnings=tuple(dict.fromkeys(reading.warnings)))


def _failure(run: Run, series: Series) -> ErrorKind | None:
    """Why the run holds no complete result; None when it ended well."""
    if run.error:
        found = failures.fault(run.error) or failures.Fault.OTHER
        kind = failures.error_kind(found, moved=series.moved, server=run.server)
        stopped = kind is ErrorKind.TRUNCATED_OUTPUT
        return ErrorKind.CONNECTION_LOST if stopped and series.ends_dead else kind
    if not run.complete:
        return ErrorKind.CONNECTION_LOST if run.live and series.ends_dead else ErrorKind.TRUNCATED_OUTPUT
    way = run.forward
    if way.sent is None and way.received is None and way.combined is None:
        return ErrorKind.TRUNCATED_OUTPUT if series.rows else ErrorKind.NO_DATA
    return None


def _figure_of_rows(run: Run, way: Way, series: Series) -> _Figure:
    """What the distinct rows add up to, on the side that printed them."""
    warnings: list[str] = []
    if not series.rows:
        return _Figure(series=series)
    received, sent = way.received, way.sent
    if way.local_sends and received is not None and received.bytes == 0 and series.moved:
        warnings.append("sum_received_zero_ignored")
    if way.local_sends and sent is not None and sent.bytes and sent.seconds:
        same_time = abs(sent.seconds - series.seconds) < 0.01 * sent.seconds
        if same_time and abs(sent.bytes - series.bytes) > 0.01 * sent.bytes:
            warnings.append("sum_sent_bytes_and_seconds_disagree")
    retransmits, more = _retransmits(run, way, series, totals=False)
    udp, doubts = _udp(run, way, None, series) if run.udp and not way.local_sends else (None, ())
    return _Figure(
        series=series,
        bits_per_second=series.bits_per_second,
        side="sender" if way.local_sends else "receiver",
        bytes=series.bytes,
        seconds=series.seconds,
        retransmits=retransmits,
        udp=udp,
        warnings=(*warnings, *more, *doubts),
    )


def _figure_of_totals(run: Run, way: Way, series: Series) -> _Figure:
    """The receiver's total where it can be trusted, else the sender's."""
    warnings: list[str] = []
    total, side = way.received, "receiver"
    if total is None or not total.bytes:
        if total is not None and way.sent is not None and way.sent.bytes and way.local_sends and not run.server:
            warnings.append("sum_received_zero_ignored")
        total, side = way.sent, "sender"
        if run.udp and not run.server:
            total = None
    if way.received is None and way.combined is not None and total is None:
        total, side, more = _combined(way, way.combined, series)
        warnings += more
    retransmits, more_warnings = _retransmits(run, way, series, totals=True)
    udp, doubts = _udp(run, way, total if side == "receiver" else None, series) if run.udp else (None, ())
    figure = _Figure(series=series, retransmits=retransmits, udp=udp, warnings=(*warnings, *more_warnings, *doubts))
    if total is None:
        return figure
    return replace(
        figure,
        bits_per_second=_rate(total),
        side=side,
        bytes=total.bytes,
        seconds=total.seconds,
    )


def _rate(total: Total) -> float | None:
    """From bytes and seconds where both are known, because releases 3.1.x round the printed rate; else as printed."""
    if total.bytes is None or not total.seconds:
        return total.bits_per_second
    return total.bytes * 8 / total.seconds


def _combined(way: Way, combined: Total, series: Series) -> tuple[Total, str, list[str]]:
    """What an old UDP total says of the receiver: its bytes are the sender's (esnet/iperf PR #1174)."""
    if not way.local_sends:
        if combined.bytes and series.moved and abs(combined.bytes - series.bytes) > 0.01 * combined.bytes:
            return replace(combined, bytes=series.bytes, bits_per_second=None), "receiver", ["sum_is_sender"]
        return combined, "receiver", []
    counts = combined.udp
    arrived = counts.received
    if combined.bytes is None or arrived is None or not counts.packets or not 0 <= arrived <= counts.packets:
        return combined, "sender", ["sum_is_sender"]
    if arrived == counts.packets:
        return combined, "receiver", []
    received = round(combined.bytes * arrived / counts.packets)
    return replace(combined, bytes=received, bits_per_second=None), "receiver", ["sum_is_sender"]


def _retransmits(run: Run, way: Way, series: Series, *, totals: bool) -> tuple[int | None, tuple[str, ...]]:
    """Retransmitted segments of the whole run, or of its rows; None where unknown."""
    if run.udp:
        return None, ()
    rows = [row.retransmits for row in series.rows if row.retransmits is not None]
    total = way.sent.retransmits if way.sent is not None else None
    if any(count(one) is None for one in rows) or (total is not None and count(total) is None):
        return None, ("retransmits_invalid",)
    of_rows = int(sum(rows)) if rows and len(rows) == len(series.rows) else None
    if total is not None and (totals or of_rows is None or total > of_rows):
        return count(total), ()
    return of_rows, ()


def _udp(run: Run, way: Way, received: Total | None, series: Series) -> tuple[UdpCounts, tuple[str, ...]]:
    source = way.received or way.combined
    return believable(
        source.udp if source is not None else PrintedCounts(),
        () if way.local_sends else way.row_udp,
        seconds=series.seconds or None,
        received_bytes=received.bytes if received is not None else None,
        datagram=run.datagram,
    )


def _direction(run: Run, way: Way, requested: float | None, *, whole: bool) -> Direction:
    series = clean(way.rows, requested=requested)
    figure = _figure_of_totals(run, way, series) if whole else _figure_of_rows(run, way, series)
    return Direction(
        bits_per_second=figure.bits_per_second,
        bytes=figure.bytes,
        seconds=figure.seconds,
        retransmits=figure.retransmits,
        intervals=series.intervals,
    )


def _check_duration(reading: Reading, series: Series, requested: float | None, capture: Capture) -> Reading:
    """Compare the tool's seconds with the asked ones and with the orchestrator's clock."""
    seconds = reading.seconds
    if seconds is None:
        return reading
    warnings: list[str] = []
    if requested and seconds > requested and differ(seconds, requested):
        warnings.append("elapsed_exceeds_requested")
    jumped = series.clock_jumped or runs_too_long(seconds, capture)
    short = reading.ok and falls_short(seconds, requested)
    if short:
        warnings.append("duration_mismatch")
        ran = capture.elapsed is not None and not falls_short(capture.elapsed, requested)
        jumped = jumped or ran
    if jumped and reading.ok:
        reading = _after_clock_jump(reading, series)
        warnings.append("clock_jump")
    elif short:
        reading = replace(reading, ok=False, partial=True, error_kind=ErrorKind.TRUNCATED_OUTPUT)
    return replace(reading, warnings=(*reading.warnings, *warnings))


def _after_clock_jump(reading: Reading, series: Series) -> Reading:
    """Only rows before the first impossible one are shown; without one, the figures stay as the tool's claim."""
    reading = replace(reading, ok=False, partial=True, error_kind=None)
    if not series.clock_jumped or not series.rows:
        return reading
    return replace(reading, bits_per_second=series.bits_per_second, bytes=series.bytes, seconds=series.seconds)


def with_peer(reading: Reading, peer: Reading, capture: Capture) -> Reading:
    """Add what the server's own output knows: a figure where the client has none, or another opinion on time."""
    never_began = reading.error_kind in (ErrorKind.SERVER_BUSY, ErrorKind.CONNECT_REFUSED)
    if never_began or peer.bits_per_second is None or peer.seconds is None or peer.side != "receiver":
        return reading
    if reading.bits_per_second is None:
        return _figures_of(reading, peer, "figure_from_server")
    if not reading.ok or reading.seconds is None:
        return reading
    if differ(reading.seconds, peer.seconds):
        closer = capture.elapsed is not None and (
            abs(peer.seconds - capture.elapsed) < abs(reading.seconds - capture.elapsed)
        )
        reading = replace(reading, ok=False, warnings=(*reading.warnings, "clock_jump", "duration_mismatch"))
        return _figures_of(reading, peer, "figure_from_server") if closer else replace(reading, partial=True)
    if reading.side == "sender" and peer.ok:
        return replace(_figures_of(reading, peer, "figure_from_server"), partial=False)
    return reading


def _figures_of(reading: Reading, peer: Reading, warning: str) -> Reading:
    """The reading with the peer's figures: still not what was asked for, so partial."""
    return replace(
        reading,
        partial=True,
        bits_per_second=peer.bits_per_second,
        bytes=peer.bytes,
        seconds=peer.seconds,
        side=peer.side,
        streams=reading.streams or peer.streams,
        tool_version=reading.tool_version or peer.tool_version,
        intervals=reading.intervals or peer.intervals,
        udp=peer.udp or reading.udp,
        warnings=(*reading.warnings, warning),
    )
