"""What iperf3 3.12 prints with `-J`, on either side (layout as its own: https://github.com/esnet/iperf, `iperf_api.c`)."""

from __future__ import annotations

import json
import time
from typing import Any

from workers.hypervisors.simulated.talk import Talk, bits_per_second
from workers.hypervisors.simulated.traffic import Stretch

_BLOCK = 131_072
_DATAGRAM = 1448
_SYSTEM = "Linux simulated 6.1.0-simulated #1 SMP x86_64"
_JITTER = 0.01
_MOST_ROWS = 100
"""Rows of single streams in all intervals together. Beyond that only the sums are printed: nobody reads more, and a night of
them takes minutes to print and parse."""


def client_output(talk: Talk) -> bytes:
    """The document of the client. Of a transfer whose connection was lost: its rows, and what iperf3 then says."""
    return _printed(talk, server=False, error="control socket has closed unexpectedly")


def server_output(talk: Talk) -> bytes:
    """The document of the server."""
    return _printed(talk, server=True, error="the client has unexpectedly closed the connection")


def refused() -> bytes:
    """The document of a client that finds nobody listening."""
    return _text(
        {
            "start": {"connected": [], "version": "iperf 3.12", "system_info": _SYSTEM},
            "intervals": [],
            "end": {},
            "error": "unable to connect to server: Connection refused",
        }
    )


def _printed(talk: Talk, *, server: bool, error: str) -> bytes:
    sends = talk.client_sends != server
    document: dict[str, Any] = {
        "start": _start(talk, server=server),
        "intervals": [_interval(talk, stretch, sends=sends) for stretch in talk.moved.stretches],
    }
    if talk.moved.lost_at is None:
        document["end"] = _end(talk, server=server, sends=sends)
    else:
        document |= {"end": {}, "error": error}
    return _text(document)


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _start(talk: Talk, *, server: bool) -> dict[str, Any]:
    asked = talk.asked
    local, remote = (talk.server, talk.client) if server else (talk.client, talk.server)

    def connection(number: int) -> dict[str, Any]:
        here, there = (asked.port, talk.port + number) if server else (talk.port + number, asked.port)
        return {
            "socket": 5 + 2 * number,
            "local_host": local,
            "local_port": here,
            "remote_host": remote,
            "remote_port": there,
        }

    peer = {"host": remote, "port": talk.port - 1 if server else asked.port}
    return {
        "connected": [connection(number) for number in range(asked.streams)],
        "version": "iperf 3.12",
        "system_info": _SYSTEM,
        "timestamp": {
            "time": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(talk.started)),
            "timesecs": int(talk.started),
        },
        "accepted_connection" if server else "connecting_to": peer,
        "cookie": f"simulated{talk.pid:027d}",
        "tcp_mss_default": 0 if server or asked.udp else 1448,
        "target_bitrate": asked.rate or 0,
        "sock_bufsize": asked.window or 0,
        "sndbuf_actual": asked.window or 16_384,
        "rcvbuf_actual": asked.window or 131_072,
        "test_start": {
            "protocol": "UDP" if asked.udp else "TCP",
            "num_streams": asked.streams,
            "blksize": asked.buffer or (_DATAGRAM if asked.udp else _BLOCK),
            "omit": 0,
            "duration": int(asked.seconds),
            "bytes": 0,
            "blocks": 0,
            "reverse": int(asked.reverse),
            "tos": 0,
            "target_bitrate": asked.rate or 0,
        },
    }


def _interval(talk: Talk, stretch: Stretch, *, sends: bool) -> dict[str, Any]:
    total = _row(talk, stretch, sends=sends)
    if talk.asked.streams * len(talk.moved.stretches) > _MOST_ROWS:
        return {"streams": [], "sum": total}
    rows = [
        {"socket": 5 + 2 * number} | _row(talk, part, sends=sends) for number, part in enumerate(talk.streams(stretch))
    ]
    return {"streams": rows, "sum": total}


def _row(talk: Talk, stretch: Stretch, *, sends: bool) -> dict[str, Any]:
    row = _span(stretch, scale=1 / (1 - talk.lost) if sends else 1.0)
    if talk.asked.udp:
        row |= {"packets": row["bytes"] // _datagram(talk)} if sends else _counts(talk, stretch)
    elif sends:
        row["retransmits"] = stretch.retransmits
    return row | {"omitted": False, "sender": sends}


def _span(stretch: Stretch, *, scale: float = 1.0) -> dict[str, Any]:
    return {
        "start": round(stretch.start, 6),
        "end": round(stretch.end, 6),
        "seconds": stretch.end - stretch.start,
        "bytes": int(stretch.bytes * scale),
        "bits_per_second": bits_per_second(stretch) * scale,
    }


def _end(talk: Talk, *, server: bool, sends: bool) -> dict[str, Any]:
    """The totals. A side knows of the other's only when it is the client: a server prints zeros."""
    whole = talk.whole
    nothing = Stretch(start=0.0, end=whole.end, bytes=0)
    received = nothing if server and sends else whole
    sent = nothing if server and not sends else whole
    again = {} if talk.asked.udp or sent is nothing else {"retransmits": whole.retransmits}
    totals = {
        "sum_sent": _span(sent, scale=1 / (1 - talk.lost)) | again | {"sender": sends},
        "sum_received": _span(received) | {"sender": sends},
    }
    if talk.asked.udp:
        counts = _counts(talk, whole)
        totals["sum"] = _span(whole, scale=1 / (1 - talk.lost)) | counts | {"sender": sends}
        totals["sum_received"] |= counts | {"sender": False}
    return {
        "streams": [],
        **totals,
        "cpu_utilization_percent": {"host_total": 40.0 if sends else 55.0, "remote_total": 55.0 if sends else 40.0},
        "sender_tcp_congestion": "cubic",
        "receiver_tcp_congestion": "cubic",
    }


def _counts(talk: Talk, stretch: Stretch) -> dict[str, Any]:
    """A receiver's counts of datagrams."""
    arrived = stretch.bytes // _datagram(talk)
    sent = max(arrived, round(arrived / (1 - talk.lost)))
    return {
        "jitter_ms": _JITTER,
        "lost_packets": sent - arrived,
        "packets": sent,
        "lost_percent": 100 * (sent - arrived) / sent if sent else 0.0,
    }


def _datagram(talk: Talk) -> int:
    return talk.asked.buffer or _DATAGRAM
