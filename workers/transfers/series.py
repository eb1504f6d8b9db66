"""Rows of throughput over time: cleaning them, adding them up, and what their shape says."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.model.reading import Capture, Interval

STALL_SECONDS = 1.9
"""Zero rows for at least this long at the end of an interrupted transfer mean that nothing came through any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row over all streams of one direction. `retransmits` as printed; None is unknown."""

    start: float
    end: float
    bytes: int
    bits_per_second: float
    retransmits: float | None = None

    @property
    def seconds(self) -> float:
        """Length of the row."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Series:
    """Cleaned rows. `clock_jumped` says that rows after the last one kept were impossible."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()
    clock_jumped: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return sum(row.bytes for row in self.rows)

    @property
    def seconds(self) -> float:
        """From the start of the first row to the end of the last."""
        return self.rows[-1].end - self.rows[0].start if self.rows else 0.0

    @property
    def bits_per_second(self) -> float | None:
        """Mean over the whole time, gaps included; None without rows."""
        return self.bytes * 8 / self.seconds if self.seconds > 0 else None

    @property
    def moved(self) -> bool:
        """Whether any data moved."""
        return self.bytes > 0

    @property
    def ends_dead(self) -> bool:
        """Whether the last rows are zero for so long that the path must have vanished."""
        dead = 0.0
        count = 0
        for row in reversed(self.rows):
            if row.bytes:
                break
            dead += row.seconds
            count += 1
        return self.moved and dead >= STALL_SECONDS and (count > 1 or dead > 2 * self._nominal)

    @property
    def _nominal(self) -> float:
        return _nominal(self.rows)

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The rows as the model's intervals."""
        return tuple(Interval(start=row.start, end=row.end, bits_per_second=row.bits_per_second) for row in self.rows)


def clean(rows: Sequence[Row], *, requested: float | None) -> Series:
    """Drop repeated and empty rows and everything from the first impossible row on; name gaps and long rows.

    iperf3 3.9 to 3.21 print the last row twice when the server dies; a tail of some milliseconds without data is no
    measurement; rows that end before they start, or lie before their predecessors, come from a clock that was set.
    """
    warnings: list[str] = []
    kept: list[Row] = []
    jumped = False
    for row in rows:
        if kept and (row.start, row.end) == (kept[-1].start, kept[-1].end):
            warnings.append("duplicate_interval_removed")
            continue
        if row.end == row.start and not row.bytes:
            warnings.append("empty_tail_interval_dropped")
            continue
        if _impossible(row) or (kept and row.start < kept[-1].end - 0.5 * min(row.seconds, kept[-1].seconds)):
            jumped = True
            break
        kept.append(row)
    if jumped:
        warnings += ["clock_jump", "invalid_rows_dropped"]
    nominal = _nominal(kept)
    if len(kept) > 1 and not kept[-1].bytes and kept[-1].seconds < 0.15 * nominal:
        kept.pop()
        warnings.append("empty_tail_interval_dropped")
    warnings += _irregularities(kept, nominal, requested)
    return Series(rows=tuple(kept), warnings=tuple(dict.fromkeys(warnings)), clock_jumped=jumped)


def _impossible(row: Row) -> bool:
    finite = all(math.isfinite(value) for value in (row.start, row.end, row.bits_per_second))
    return not finite or row.end <= row.start or row.start < 0 or row.bits_per_second < 0 or row.bytes < 0


def _nominal(rows: Sequence[Row]) -> float:
    return statistics.median(row.seconds for row in rows) if rows else 0.0


def _irregularities(rows: Sequence[Row], nominal: float, requested: float | None) -> list[str]:
    found: list[str] = []
    pairs = itertools.pairwise(rows)
    if any(after.start - before.end > 0.5 * nominal for before, after in pairs):
        found.append("interval_gap")
    last_asked = math.inf if requested is None else requested + nominal
    # A row that runs far beyond the asked time is the tool waiting for its end, not a stun of the side that reports.
    if len(rows) > 1 and any(row.seconds > 1.5 * nominal and row.end <= last_asked for row in rows):
        found.append("irregular_intervals")
    return found


def differ(first: float, second: float) -> bool:
    """Whether two durations in seconds of the same transfer can't both be right."""
    return abs(first - second) > max(1.0, 0.1 * max(first, second))


def runs_too_long(seconds: float, capture: Capture) -> bool:
    """Whether a tool claims more seconds than passed by the orchestrator's monotonic clock: its own clock jumped."""
    return capture.elapsed is not None and seconds > capture.elapsed and differ(seconds, capture.elapsed)


def falls_short(seconds: float, requested: float | None) -> bool:
    """Whether a transfer ended long before the time that was asked for."""
    return bool(requested) and requested is not None and seconds < requested and differ(seconds, requested)


def count(value: float | None, *, limit: float = 2**31) -> int | None:
    """A counter as printed, or None where it can't be one: negative, or the wrapped -1 of an unknown."""
    if value is None or not math.isfinite(value) or not 0 <= value < limit:
        return None
    return int(value)
