"""Readings: what a transfer tool's output says, in one form for all tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ErrorKind(StrEnum):
    """Why a tool's output holds no (complete) result."""

    SERVER_BUSY = "server_busy"
    CONNECT_REFUSED = "connect_refused"
    CONNECTION_LOST = "connection_lost"
    """The peer or the path vanished in mid-transfer."""
    TRUNCATED_OUTPUT = "truncated_output"
    """Our own side was stopped, or its output was cut."""
    CORRUPT_DATA = "corrupt_data"
    """What arrived is not what was sent."""
    UNPARSEABLE = "unparseable"
    NO_DATA = "no_data"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Throughput of one interval. Seconds since the start by the tool's clock; bit/s over all streams."""

    start: float
    end: float
    bits_per_second: float


@dataclass(frozen=True, kw_only=True)
class UdpCounts:
    """What a UDP transfer says besides throughput; None is unknown, never zero."""

    jitter_ms: float | None = None
    lost_packets: int | None = None
    packets: int | None = None
    lost_percent: float | None = None


@dataclass(frozen=True, kw_only=True)
class Direction:
    """The other direction of a transfer that went both ways at once; never added to the first in silence."""

    bits_per_second: float | None
    bytes: int | None
    seconds: float | None
    retransmits: int | None = None
    intervals: tuple[Interval, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Round-trip times of a small probe beside a transfer, in milliseconds; None where no reply came.

    `rate` is how many requests per second were asked for. A percentile is the smallest time that so many per cent of
    the replies took at the most (nearest rank). Requests without a reply are `lost`; they have no time.
    """

    rate: int
    sent: int
    lost: int
    minimum_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    maximum_ms: float | None = None

    @property
    def count(self) -> int:
        """Replies, which the times are of."""
        return self.sent - self.lost


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The reading of one output.

    `bits_per_second` is the receiver's figure where it can be trusted, else the sender's, as `side` says. `ok` false
    with no `error_kind` means that the figures are invalid because a clock stepped. `partial` means that figures are
    there but cover less than was asked for. None is unknown, never zero. `intervals` is None where the tool gave none.
    """

    tool: str
    ok: bool
    tool_version: str | None = None
    error_kind: ErrorKind | None = None
    error: str = ""
    """The tool's own words about the failure."""
    partial: bool = False
    bits_per_second: float | None = None
    side: str | None = None
    bytes: int | None = None
    seconds: float | None = None
    streams: int | None = None
    retransmits: int | None = None
    intervals: tuple[Interval, ...] | None = ()
    reverse: Direction | None = None
    udp: UdpCounts | None = None
    cpu_percent: Mapping[str, float] = field(default_factory=dict)
    """CPU use that the tool reports, by `sender` and `receiver`, in percent of one core."""
    warnings: tuple[str, ...] = ()
    documents: tuple[Reading, ...] = ()
    """The readings of all documents when the output held several; the reading itself is the last that holds data."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """Captured bytes of one tool, as a parser takes them. Everything but `stdout` may be missing."""

    stdout: bytes
    stderr: bytes = b""
    server: bytes | None = None
    """What the other side's tool printed."""
    exit_code: int | None = None
    requested_seconds: float | None = None
    role: str = "client"
    command: str = ""
    elapsed: float | None = None
    """Seconds from start to end of the tool by the orchestrator's monotonic clock."""
