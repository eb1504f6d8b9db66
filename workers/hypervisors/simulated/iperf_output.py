"""What iperf 2.1.8 prints with `-e -f b`, on either side (as seen of the program itself)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from workers.hypervisors.simulated.talk import Talk, bits_per_second
from workers.hypervisors.simulated.traffic import Stretch

_RULE = "-" * 60
_BLOCK = 131_072
_DATAGRAM = 1470


def client_output(talk: Talk) -> bytes:
    """The text of the client. What it says of a lost connection goes to standard error (`LOST`)."""
    return _text(_client_lines(talk))


def server_output(talk: Talk) -> bytes:
    """The text of the server."""
    return _text(_server_lines(talk))


REFUSED = b"tcp connect failed: Connection refused\n"
"""On standard error, when nobody listens."""

LOST = b"tcp write failed: Connection reset by peer\n"
"""On standard error, when the connection is lost."""


def refused(server: str, port: int) -> bytes:
    """The text of a client that finds nobody listening."""
    return _text(iter([_RULE, f"Client connecting to {server}, TCP port {port}", _RULE]))


def _text(lines: Iterator[str]) -> bytes:
    return "\n".join((*lines, "")).encode()


def _client_lines(talk: Talk) -> Iterator[str]:
    asked = talk.asked
    kind, flows = "UDP" if asked.udp else "TCP", asked.streams
    yield _RULE
    yield f"Client connecting to {talk.server}, {kind} port {asked.port} with pid {talk.pid} ({flows} flows)"
    yield f"{kind} buffer size: 212992 Byte (default)" if asked.udp else "TCP window size: 16384 Byte (default)"
    yield _RULE
    mark = " (reverse)" if asked.reverse else ""
    for number in range(flows):
        yield (
            f"[{number + 1:3}] local {talk.client} port {talk.port + number} connected with {talk.server} port "
            f"{asked.port}{mark} (sock={number + 3}) on {_stamp(talk.started)}"
        )
    yield from _rows(talk, sends=talk.client_sends, star=asked.reverse)
    if asked.udp and talk.client_sends and talk.moved.lost_at is None:
        for number, part in enumerate(talk.streams(talk.whole)):
            yield f"[{number + 1:3}] Sent {_datagrams(talk, part)[1]} datagrams"
            yield f"[{number + 1:3}] Server Report:"
            yield _UDP_HEAD
            yield _row(talk, part, f"{number + 1:3}", sends=False)


def _server_lines(talk: Talk) -> Iterator[str]:
    asked = talk.asked
    kind = "UDP" if asked.udp else "TCP"
    yield _RULE
    yield f"Server listening on {kind} port {asked.port} with pid {talk.pid + 1}"
    yield f"{kind} buffer size: 212992 Byte (default)" if asked.udp else "TCP window size: 131072 Byte (default)"
    yield _RULE
    mark = " (reverse)" if asked.reverse else ""
    for number in range(asked.streams):
        yield (
            f"[{number + 1:3}] local {talk.server} port {asked.port} connected with {talk.client} port "
            f"{talk.port + number}{mark} (sock={number + 4}) (peer 2.1.8) on {_stamp(talk.started)}"
        )
    yield from _rows(talk, sends=not talk.client_sends, star=False)


_UDP_HEAD = "[ ID] Interval            Transfer     Bandwidth        Jitter   Lost/Total"
_TCP_HEAD = "[ ID] Interval            Transfer    Bandwidth"


def _rows(talk: Talk, *, sends: bool, star: bool) -> Iterator[str]:
    """Interval rows of every stream, with their sum, and the final ones."""
    if talk.asked.udp:
        yield _TCP_HEAD + "       Write/Err  PPS" if sends else _UDP_HEAD
    else:
        yield _TCP_HEAD + ("       Write/Err  Rtry" if sends else "       Reads=Dist")
    for stretch in (*talk.moved.stretches, talk.whole):
        parts = talk.streams(stretch)
        for number, part in enumerate(parts, start=1):
            yield _row(talk, part, f" *{number}" if star else f"{number:3}", sends=sends)
        if len(parts) > 1:
            yield _row(talk, stretch, "SUM", sends=sends)


def _row(talk: Talk, stretch: Stretch, mark: str, *, sends: bool) -> str:
    scale = 1 / (1 - talk.lost) if sends else 1.0
    size, rate = int(stretch.bytes * scale), bits_per_second(stretch) * scale
    row = f"[{mark}] {stretch.start:.4f}-{stretch.end:.4f} sec  {size} Bytes  {rate:.0f} bits/sec"
    arrived, sent = _datagrams(talk, stretch)
    if talk.asked.udp and sends:
        return f"{row}  {sent}/0  {sent / max(1e-9, stretch.end - stretch.start):.0f} pps"
    if talk.asked.udp:
        return f"{row}   0.010 ms {sent - arrived}/{sent} ({100 * (sent - arrived) / sent if sent else 0:.2g}%)"
    return f"{row}  {size // _BLOCK + 1}/0  {stretch.retransmits:9}" if sends else f"{row}  {size // _BLOCK + 1}=1:0:0"


def _datagrams(talk: Talk, stretch: Stretch) -> tuple[int, int]:
    """How many datagrams arrived, and how many were sent."""
    arrived = stretch.bytes // (talk.asked.buffer or _DATAGRAM)
    return arrived, max(arrived, round(arrived / (1 - talk.lost)))


def _stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S (UTC)", time.gmtime(moment))
