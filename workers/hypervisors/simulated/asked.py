"""What a command line of a transfer tool asks for, read from its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOOLS = ("iperf3", "iperf")
"""Programs that simulated endpoints have and that move data."""

VERSIONS = {"iperf3": "iperf 3.12 (cJSON 1.7.15)", "iperf": "iperf version 2.1.8 (12 August 2022) pthreads"}
"""The first line of what `TOOL --version` prints."""

_UNLIMITED_UDP = 1_048_576
"""What both tools send by UDP when no rate is asked for, in bit/s."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One client or server. `server` is empty for a server; seconds, bytes, bit/s."""

    tool: str
    port: int
    server: str = ""
    seconds: float = 10.0
    interval: float = 1.0
    streams: int = 1
    udp: bool = False
    rate: int | None = None
    reverse: bool = False
    window: int | None = None
    buffer: int | None = None

    @property
    def limit(self) -> float | None:
        """What may be sent over all streams, in bit/s; None: whatever the path carries."""
        rate = self.rate or (_UNLIMITED_UDP if self.udp else None)
        return None if rate is None else float(rate * self.streams)


def asked(argv: Sequence[str]) -> Asked | None:
    """What a command asks for; None when it is none of a transfer tool."""
    tool = argv[0].rpartition("/")[2]
    if tool not in TOOLS:
        return None
    given = dict(zip(argv, [*argv[1:], ""], strict=True))
    seconds = float(given.get("-t", 10.0))
    return Asked(
        tool=tool,
        port=int(given.get("-p", 5201 if tool == "iperf3" else 5001)),
        server=given.get("-c", ""),
        seconds=seconds,
        interval=float(given.get("-i") or 0) or seconds,
        streams=int(given.get("-P", 1)),
        udp="-u" in given,
        rate=int(given["-b"]) if "-b" in given else None,
        reverse="-R" in given,
        window=int(given["-w"]) if "-w" in given else None,
        buffer=int(given["-l"]) if "-l" in given else None,
    )
