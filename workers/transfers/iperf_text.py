"""iperf 2 human-readable output, plain and enhanced (`-e`), to runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from workers.transfers.iperf_run import Run, Stream
from workers.transfers.rows_text import PrintedRow, printed_row

_HEADER = re.compile(r"\[\s*ID\s*\]")
_CONNECTED = re.compile(
    r"\[\s*(?P<star>\*?)\s*(?P<id>\d+)\s*\]\s*local \S+ port (?P<local>\d+) connected (?:with|to) \S+ port (?P<remote>\d+)"
    r"(?P<more>.*)$"
)
_LISTENING = re.compile(r"Server listening on (?:TCP|UDP) port (\d+)")
_CLIENT = re.compile(r"Client connecting to .*?(?:TCP|UDP) port (\d+)")
_REPORT = re.compile(r"\[\s*\*?\s*(\d+)\s*\]\s*Server Report")
_WRITES = re.compile(r"^\s*\d+/-?\d+\s+(-?\d+)(?=\s|$)")
_VERSION = re.compile(r"iperf version (2\.\w[\w.-]*)")
_MESSAGE = re.compile(
    r"\bfailed\b|\berror:|\brefused\b|unreachable|no route|unknown host|not known|resolution|denied|unable to"
    r"|reset by peer|broken pipe|timed out|lookup failure",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"shutdown failed|listener bind failed|setsockopt|\bWARNING\b", re.IGNORECASE)
_UDP = re.compile(r"UDP (?:port|buffer)")
_ROW_BEGINS = re.compile(r"^\s*\[[^\]]*\]?\s*[-\d.]*[^\n]*\Z")


@dataclass(kw_only=True)
class _Track:
    """A stream with where it stands in the text."""

    stream: Stream
    first: int
    last: int
    connected: bool
    incoming: bool = False


@dataclass(kw_only=True)
class _Group:
    """The streams of one run."""

    tracks: list[_Track] = field(default_factory=list)

    @property
    def last(self) -> int:
        return max((one.last for one in self.tracks), default=0)

    @property
    def has_rows(self) -> bool:
        return any(one.stream.rows for one in self.tracks)


def runs(text: str, errors: str, *, server: bool) -> list[Run]:
    """The runs of a text in order; none when it holds no row. Messages in the text and in standard error go to the last."""
    listening = _LISTENING.search(text)
    client = _CLIENT.search(text)
    server = server or (listening is not None and client is None)
    port = int((listening or client).group(1)) if (listening or client) is not None else None  # type: ignore[union-attr]
    tracks, sums = _tracks(text, server=server, port=port)
    udp = bool(_UDP.search(text)) or any(row.datagrams for one in tracks for row in one.stream.rows)
    version = _VERSION.search(text)
    groups = _groups(tracks, server=server)
    if not any(group.has_rows for group in groups) and sums:
        groups = [_Group(tracks=[_Track(stream=_sum_stream(sums, server=server), first=0, last=0, connected=False)])]
    found = [
        Run(
            streams=tuple(one.stream for one in group.tracks),
            server=server,
            udp=udp,
            time_decimals=_decimals(text),
            version=version.group(1) if version else None,
            warnings=_warnings(text),
            counted_streams=_counted(text, group),
        )
        for group in groups
        if group.has_rows
    ]
    return _with_messages(found, text, errors, server=server, udp=udp)


def messages(text: str, errors: str) -> str:
    """The error messages beside the rows, one a line."""
    lines = [line.strip() for line in f"{text}\n{errors}".split("\n")]
    said = [one for one in lines if _MESSAGE.search(one) and not _HARMLESS.search(one) and printed_row(one) is None]
    return "\n".join(dict.fromkeys(said))


def is_cut(text: str) -> bool:
    """Whether the last line is the beginning of a row."""
    line = text.rsplit("\n", 1)[-1]
    return bool(line.strip()) and bool(_ROW_BEGINS.match(line)) and printed_row(line) is None and "local" not in line


def _with_messages(found: list[Run], text: str, errors: str, *, server: bool, udp: bool) -> list[Run]:
    said, cut = messages(text, errors), is_cut(text)
    if not found:
        return []
    last = found[-1]
    closed = Run(
        streams=last.streams,
        server=server,
        udp=udp,
        time_decimals=last.time_decimals,
        said=said,
        notes=errors,
        cut=cut and "Sent" not in text.rsplit("\n", 1)[-1],
        version=last.version,
        warnings=last.warnings,
        counted_streams=last.counted_streams,
    )
    return [*found[:-1], closed]


def _tracks(text: str, *, server: bool, port: int | None) -> tuple[list[_Track], list[tuple[PrintedRow, float | None]]]:
    tracks: dict[tuple[str, bool], _Track] = {}
    ordered: list[_Track] = []
    sums: list[tuple[PrintedRow, float | None]] = []
    reported: set[str] = set()
    retries = False
    facts: dict[str, re.Match[str]] = {}
    places: dict[str, int] = {}
    for index, line in enumerate(text.split("\n")):
        if _HEADER.search(line):
            retries = "Rtry" in line
        elif match := _CONNECTED.search(line):
            if match["local"] == "0":
                continue
            facts[match["id"]], places[match["id"]] = match, index
            tracks.pop((match["id"], False), None)
            tracks.pop((match["id"], True), None)
            track = _connected(match, index, server=server, port=port)
            tracks[match["id"], bool(match["star"])] = track
            ordered.append(track)
        elif match := _REPORT.search(line):
            reported.add(match.group(1))
        elif (row := printed_row(line)) is not None:
            retry = _WRITES.match(row.more) if retries else None
            value = float(retry.group(1)) if retry else None
            if row.is_sum:
                if row.stream.startswith("SUM"):
                    sums.append((row, value))
                continue
            existing = tracks.get((row.stream, row.star))
            if existing is None:
                existing = _Track(stream=Stream(local_sends=True), first=index, last=index, connected=False)
                known = facts.get(row.stream)
                _know(existing, known, row, server=server, port=port)
                if known is not None and row.star and "(reverse)" in known["more"]:
                    # All of this connection's rows carry the star, so that they stand for it.
                    existing.first, existing.connected = places[row.stream], True
                tracks[row.stream, row.star] = existing
                ordered.append(existing)
            if row.stream in reported:
                reported.discard(row.stream)
                existing.stream.report = row
            else:
                if row.datagrams is not None:
                    existing.stream.local_sends = False
                existing.stream.add(row, value)
            existing.last = index
    return [one for one in ordered if one.stream.rows or one.stream.report], sums


def _connected(match: re.Match[str], index: int, *, server: bool, port: int | None) -> _Track:
    local, remote = int(match["local"]), int(match["remote"])
    marked = bool(match["star"]) or "(reverse)" in match["more"]
    outgoing = server and port is not None and local != port and remote == port
    incoming = not server and port is not None and local == port and remote != port
    sends = (marked or outgoing) if server else not (marked or incoming)
    stream = Stream(local_sends=sends, local_port=local, remote_port=remote)
    return _Track(stream=stream, first=index, last=index, connected=True, incoming=incoming)


def _know(track: _Track, match: re.Match[str] | None, row: PrintedRow, *, server: bool, port: int | None) -> None:
    """Fill in a stream whose rows carry another mark than its connection line (`[ *1]` after `[  1] local`)."""
    track.stream.local_sends = row.star if server else not row.star
    if match is None:
        return
    track.stream.local_port, track.stream.remote_port = int(match["local"]), int(match["remote"])
    track.connected = False
    if not row.star:
        track.stream.local_sends = _connected(match, 0, server=server, port=port).stream.local_sends


def _groups(tracks: list[_Track], *, server: bool) -> list[_Group]:
    """Runs by their place in the text: a new one begins where a connection follows the last row of all before it."""
    groups = [_Group()]
    for track in sorted(tracks, key=lambda one: one.first):
        current = groups[-1]
        tradeoff = track.incoming and not server
        if track.connected and current.has_rows and track.first > current.last and not tradeoff:
            current = _Group()
            groups.append(current)
        current.tracks.append(track)
    return groups


def _sum_stream(sums: list[tuple[PrintedRow, float | None]], *, server: bool) -> Stream:
    stream = Stream(local_sends=not server)
    for row, value in sums:
        if row.datagrams is not None:
            stream.local_sends = False
        stream.add(row, value)
    return stream


def _counted(text: str, group: _Group) -> int | None:
    """How many streams a text has whose rows are over all of them only (`--sum-only`)."""
    if len(group.tracks) != 1 or group.tracks[0].last:
        return None
    match = re.search(r"\[SUM-(\d+)\]|\((\d+) flows\)", text)
    return int(match.group(1) or match.group(2)) if match else None


def _decimals(text: str) -> int:
    found = re.search(r"\d[.,](\d+)\s+sec\b", text)
    return len(found.group(1)) if found else 1


def _warnings(text: str) -> tuple[str, ...]:
    return ("window_not_granted",) if re.search(r"WARNING: requested", text) else ()
