"""iperf3 `-J` and `--json-stream` output to runs (releases 3.0 to 3.2x, client and server side)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from workers.transfers.iperf3_run import Run, Total, Way
from workers.transfers.json_documents import Compact, Document, Found, Members, find_documents
from workers.transfers.series import Row
from workers.transfers.udp import PrintedCounts


def find(text: str) -> Found:
    """The iperf3 documents of a text, whole or as stream events.

    Of events of a stream only what is read is kept: a night of intervals prints hundreds of megabytes.
    """
    return find_documents(text, _is_iperf3, kept=_Events().kept)


class _Events:
    """Keeps of each interval its sums, and of the first one after a start its streams too, which tell who sends."""

    def __init__(self) -> None:
        self._first = True

    def kept(self, root: Members) -> Members:
        """The event without what nobody reads."""
        event, data = root.text("event"), root.get("data")
        if event != "interval" or not root.complete or not isinstance(data, Members):
            self._first = self._first or event == "start"
            return root
        sums = [(key, Compact(one)) for key, one in data.pairs if key.startswith("sum") and isinstance(one, Members)]
        if self._first or not sums:
            self._first = False
            return root
        return Compact(Members([("event", event), ("data", Compact(Members([*sums])))]))


def _is_iperf3(root: Members) -> bool:
    if isinstance(root.get("event"), str):
        return True
    parts = (isinstance(root.get("start"), Members), isinstance(root.get("intervals"), list))
    return any(parts) or (isinstance(root.get("error"), str) and len(root.pairs) <= 4)


def runs(found: Found, *, server: bool) -> list[Run]:
    """The distinct runs of the documents, in order. A run that is printed twice counts once."""
    distinct: list[Run] = []
    for output in _outputs(found.documents):
        run = _run(output, server=server)
        same = [index for index, other in enumerate(distinct) if other.identity == run.identity and run.identity]
        if not same:
            distinct.append(run)
        elif run.complete:
            distinct[same[0]] = run
    return distinct


@dataclass(kw_only=True)
class _Output:
    """What one run printed, whether as one document or as events."""

    start: Members | None = None
    intervals: list[Members] = field(default_factory=list)
    end: Members | None = None
    error: str = ""
    complete: bool = False
    live: bool = False
    repairs: set[str] = field(default_factory=set)


def _outputs(documents: Iterable[Document]) -> list[_Output]:
    outputs: list[_Output] = []
    stream: _Output | None = None
    for document in documents:
        root = document.root
        event = root.text("event")
        if event is None:
            outputs.append(_whole(root, document.repairs))
            stream = None
            continue
        if stream is None or (event == "start" and stream.start is not None):
            stream = _Output(live=True)
            outputs.append(stream)
        _take_event(stream, event, root)
        stream.repairs |= document.repairs
    return outputs


def _whole(root: Members, repairs: frozenset[str]) -> _Output:
    return _Output(
        start=root.object("start"),
        intervals=root.objects("intervals"),
        end=root.object("end"),
        error=(root.text("error") or "").strip(),
        complete=root.complete,
        repairs=set(repairs),
    )


def _take_event(stream: _Output, event: str, root: Members) -> None:
    data = root.get("data")
    if event == "error":
        stream.error = str(data).strip() if isinstance(data, str) else "unknown error"
    if not root.complete or not isinstance(data, Members):
        return
    if event == "start":
        stream.start = data
    elif event == "interval":
        stream.intervals.append(data)
    elif event == "end":
        stream.end = data
        stream.complete = True


def _run(output: _Output, *, server: bool) -> Run:
    start = output.start or Members([])
    test = start.object("test_start") or Members([])
    if start.has("accepted_connection"):
        server = True
    elif start.has("connecting_to"):
        server = False
    end = output.end if output.end is not None and output.end.complete else Members([])
    both = _both_ways(test, output.intervals, end)
    reverse = bool(test.number("reverse")) and not both
    udp = (test.text("protocol") or "").upper() == "UDP" or _looks_like_udp(output.intervals)
    sides = _Sides(server=server, both=both, udp=udp)
    sends = server == reverse if both else _local_sends(output.intervals, default=server == reverse, udp=udp)
    cookie = start.text("cookie") or ""
    return Run(
        forward=_way(output.intervals, end, sides, forward=True, local_sends=sends),
        backward=_way(output.intervals, end, sides, forward=False, local_sends=not sends) if both else None,
        version=_version(start.text("version")),
        udp=udp,
        server=server,
        streams=_streams(start, test, output.intervals, both=both),
        requested=test.number("duration") or None,
        datagram=test.number("blksize"),
        error=output.error,
        complete=output.complete,
        live=output.live,
        cpu=_cpu(end.object("cpu_utilization_percent"), local_sends=sends),
        warnings=(*sorted(output.repairs), *(["duplicate_keys"] if _has_duplicates(output.intervals, end) else [])),
        identity=_identity(start, cookie),
        cookie=cookie,
    )


def _identity(start: Members, cookie: str) -> tuple[object, ...]:
    stamp = start.object("timestamp") or Members([])
    ports = tuple(one.number("local_port") for one in start.objects("connected"))
    return (cookie, stamp.number("timesecs"), ports) if cookie and ports else ()


def _version(printed: str | None) -> str | None:
    match = re.search(r"iperf\s+(\d+\.[\w.+-]*\w)", printed or "")
    return match.group(1) if match else None


def _streams(start: Members, test: Members, intervals: list[Members], *, both: bool) -> int | None:
    given = test.number("num_streams")
    if given:
        return int(given)
    seen = len(start.objects("connected")) or (len(intervals[0].objects("streams")) if intervals else 0)
    return (seen // 2 if both else seen) or None


def _cpu(printed: Members | None, *, local_sends: bool) -> Mapping[str, float]:
    if printed is None:
        return {}
    local, remote = ("sender", "receiver") if local_sends else ("receiver", "sender")
    figures = {local: printed.number("host_total"), remote: printed.number("remote_total")}
    return {side: value for side, value in figures.items() if value}


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """Which direction a summary belongs to.

    Releases 3.7 to 3.10 print both directions under the same keys, later ones add `_bidir_reverse` to the one from the
    server. Where the key doesn't tell, the `sender` flag does: of TCP it says whether the local side sends in that
    direction. In UDP totals it says which row it is instead, and there the direction from the client stands first.
    """

    server: bool
    both: bool
    udp: bool

    def pick(self, owner: Members, name: str, *, forward: bool) -> Members | None:
        """The summary of this name and direction in an interval or in the end; None when there is none."""
        found = _summaries(owner, name)
        if not self.both:
            return found[0][1] if found else None
        if any(key.endswith(_REVERSE) for key, _ in owner.pairs):
            return next((value for key, value in found if key.endswith(_REVERSE) != forward), None)
        flags = [value.flag("sender") for _, value in found]
        if len(found) > 1 and (None in flags or (self.udp and name != "sum")):
            return found[0 if forward else 1][1]
        return next((value for _, value in found if (value.flag("sender") != self.server) == forward), None)


_REVERSE = "_bidir_reverse"


def _both_ways(test: Members, intervals: list[Members], end: Members) -> bool:
    if test.number("bidir"):
        return True
    marked = any(key.endswith(_REVERSE) for one in (*intervals, end) for key, _ in one.pairs)
    return marked or _has_duplicates(intervals, end)


def _local_sends(intervals: list[Members], *, default: bool, udp: bool) -> bool:
    """By the rows' own `sender` flag (3.7 and newer); of UDP rows only a receiver's hold a jitter."""
    streams = [stream for one in intervals[:1] for stream in one.objects("streams")]
    for stream in streams[:1]:
        sender = stream.flag("sender")
        if sender is not None:
            return sender
        if udp and stream.has("jitter_ms"):
            return False
    return default


def _has_duplicates(intervals: list[Members], end: Members) -> bool:
    return any(len(one.all(key)) > 1 for one in (*intervals, end) for key in ("sum", "sum_sent", "sum_received"))


def _looks_like_udp(intervals: list[Members]) -> bool:
    return any(stream.has("packets") for one in intervals[:1] for stream in one.objects("streams"))


def _way(intervals: list[Members], end: Members, sides: _Sides, *, forward: bool, local_sends: bool) -> Way:
    rows: list[Row] = []
    counts: list[PrintedCounts] = []
    for interval in intervals:
        summary = _summary(interval, sides, forward=forward, local_sends=local_sends)
        if summary is not None and not summary.flag("omitted") and (row := _row(summary)) is not None:
            rows.append(row)
            counts.append(_counts(summary))
    sent, received, combined = (sides.pick(end, name, forward=forward) for name in ("sum_sent", "sum_received", "sum"))
    return Way(
        local_sends=local_sends,
        rows=tuple(rows),
        row_udp=tuple(counts),
        sent=_total(sent) if sent is not None else None,
        received=_total(received) if received is not None else None,
        combined=_total(combined) if combined is not None and sides.udp else None,
    )


def _summaries(owner: Members, name: str) -> list[tuple[str, Members]]:
    names = (name, f"{name}{_REVERSE}")
    return [
        (key, value) for key, value in owner.pairs if key in names and isinstance(value, Members) and value.complete
    ]


def _summary(interval: Members, sides: _Sides, *, forward: bool, local_sends: bool) -> Members | None:
    summary = sides.pick(interval, "sum", forward=forward)
    if summary is not None:
        return summary
    streams = [one for one in interval.objects("streams") if not sides.both or one.flag("sender") == local_sends]
    return _added(streams) if streams else None


def _added(streams: list[Members]) -> Members | None:
    starts = [one.number("start") for one in streams]
    ends = [one.number("end") for one in streams]
    sizes = [one.number("bytes") for one in streams]
    if None in starts or None in ends or None in sizes:
        return None
    repeats = [one.number("retransmits") for one in streams]
    pairs: list[tuple[str, object]] = [
        ("start", min(value for value in starts if value is not None)),
        ("end", max(value for value in ends if value is not None)),
        ("bytes", sum(value for value in sizes if value is not None)),
        ("omitted", all(one.flag("omitted") for one in streams)),
    ]
    if None not in repeats:
        pairs.append(("retransmits", sum(value for value in repeats if value is not None)))
    return Members(pairs)


def _row(summary: Members) -> Row | None:
    start, end = summary.number("start"), summary.number("end")
    if start is None or end is None:
        return None
    seconds = summary.number("seconds") or end - start
    rate, size = summary.number("bits_per_second"), summary.number("bytes")
    if size is None:
        if rate is None:
            return None
        size = rate * seconds / 8
    exact = size * 8 / seconds if seconds > 0 else rate
    return Row(
        start=start, end=end, bytes=int(size), bits_per_second=exact or 0.0, retransmits=summary.number("retransmits")
    )


def _total(summary: Members) -> Total:
    size = summary.number("bytes")
    start, end = summary.number("start"), summary.number("end")
    seconds = end - (start or 0.0) if end is not None else summary.number("seconds")
    return Total(
        bytes=None if size is None else int(size),
        seconds=seconds or summary.number("seconds"),
        bits_per_second=summary.number("bits_per_second"),
        retransmits=summary.number("retransmits"),
        udp=_counts(summary),
    )


def _counts(summary: Members) -> PrintedCounts:
    return PrintedCounts(
        jitter_ms=summary.number("jitter_ms"),
        lost=summary.number("lost_packets"),
        packets=summary.number("packets"),
        percent=summary.number("lost_percent"),
    )
