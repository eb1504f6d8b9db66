"""What a live migration did to the traffic that ran through it.

Throughput comes from the intervals of the endpoint that stays, the moments of the migration from the worker's clock.
Both meet at `TransferResult.zero`, known to within plus or minus `zero_uncertainty`; intervals that this uncertainty
could put on either side of an event count for neither. The gap that traffic sees and the downtime that the hypervisor
states are two things and are never equated: the one includes the network's and TCP's time to find the VM again.

All seconds here are since the tool's own zero, unless said; throughput is in bit/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from labctl.model.reading import ErrorKind, Interval
from labctl.model.result import AttemptResult, MigrationResult, TransferResult

STALL_SHARE = 0.01
"""Traffic stands still where an interval moves less than this share of the median before the migration."""
RECOVERY_SHARE = 0.90
"""Traffic is back where it moves at least this share of the mean before the migration."""
SMOOTHING_SECONDS = 1.0
"""Recovery is judged on means over this long (or over one interval, if that is longer): shorter ones are noise."""
PATH_LEARNING = 5
"""Traffic that stands still for more than this many downtimes waits for more than the VM."""
IRREGULAR = 1.5
"""An interval longer than this many typical ones is said to be irregular."""


class Phase(StrEnum):
    """Where an interval lies relative to the migrations of its transfer."""

    BEFORE = "before"
    MIGRATING = "migrating"
    AFTER = "after"


class RecoveryState(StrEnum):
    """Whether the throughput came back to within 10 % of before, and stayed."""

    UNDISTURBED = "never fell more than 10 % below"
    RECOVERED = "recovered"
    NOT_RECOVERED = "not recovered within the transfer"
    UNKNOWN = "can't be told"


@dataclass(frozen=True, kw_only=True)
class TimelinePoint:
    """One interval of the transfer with its phase; `phase` is None when the alignment is not known."""

    start: float
    end: float
    bits_per_second: float
    phase: Phase | None


@dataclass(frozen=True, kw_only=True)
class PhaseThroughput:
    """Throughput over a phase, weighted by the length of its intervals, which cover `seconds`."""

    seconds: float
    mean: float
    median: float


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Contiguous intervals in which next to nothing moved. The true gap is at most two intervals longer."""

    start: float
    end: float
    unended: bool = False
    """Whether the transfer ended in it, so that nobody knows how long it would have been."""

    @property
    def seconds(self) -> float:
        """How long nothing moved."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Dip:
    """The lowest interval from the migration's start on. `depth` is the share of before's median that was missing."""

    start: float
    end: float
    bits_per_second: float
    depth: float


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """When the throughput was back. `at` is None unless it was; `after_end` is negative before the migration's end."""

    state: RecoveryState
    at: float | None = None
    after_start: float | None = None
    after_end: float | None = None


@dataclass(frozen=True, kw_only=True)
class MigrationEffect:
    """One migration and what the traffic did. Whatever can't be told is None, and `warnings` say why.

    `before` is always the time before the first migration of the transfer. `during` weighs intervals by how much of
    them lies between start and end of the migration; `after` ends with the transfer or the next migration.
    `bytes_not_moved` is what the mean of before would have moved between the start of the migration and the recovery
    (or the end), less what was moved; noise may make it slightly negative. `resolution` is the longest interval looked
    at, in seconds: a stall is known to no better.
    """

    migration: MigrationResult
    started: float | None
    ended: float | None
    uncertainty: float | None
    before: PhaseThroughput | None = None
    during: PhaseThroughput | None = None
    after: PhaseThroughput | None = None
    stall: Stall | None = None
    resolution: float | None = None
    dip: Dip | None = None
    bytes_not_moved: float | None = None
    recovery: Recovery = Recovery(state=RecoveryState.UNKNOWN)
    session_survived: bool | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TransferTimeline:
    """A transfer in which something migrated: its intervals with phases, and the effect of each migration."""

    transfer: TransferResult
    points: tuple[TimelinePoint, ...]
    effects: tuple[MigrationEffect, ...]


def timelines(result: AttemptResult) -> tuple[TransferTimeline, ...]:
    """The timelines of all transfers of an attempt in which a VM migrated, in order."""
    found = []
    for transfer in result.transfers:
        migrations = [one for one in result.migrations if one.transfer_index == transfer.index]
        if migrations:
            found.append(timeline(transfer, sorted(migrations, key=lambda one: one.started)))
    return tuple(found)


def timeline(transfer: TransferResult, migrations: Sequence[MigrationResult]) -> TransferTimeline:
    """The timeline of one transfer. `migrations` are those that happened in it, in order of time."""
    intervals = sorted(
        (one for one in transfer.reading.intervals or () if one.end > one.start), key=lambda one: one.start
    )
    if transfer.zero is None or not intervals:
        why = "the transfer has no intervals" if not intervals else "the start of the transfer could not be told"
        return TransferTimeline(
            transfer=transfer,
            points=tuple(_point(one, None) for one in intervals),
            effects=tuple(_unaligned(transfer, migration, why) for migration in migrations),
        )
    spans = [(migration.started - transfer.zero, migration.ended - transfer.zero) for migration in migrations]
    horizons = [start for start, _ in spans[1:]] + [intervals[-1].end]
    uncertainty = transfer.zero_uncertainty or 0.0
    warnings = _irregular(intervals)
    if transfer.zero_uncertainty is None:
        warnings += ("how well intervals and events are aligned is not known",)
    undisturbed = [one for one in intervals if one.end <= spans[0][0] - uncertainty]
    return TransferTimeline(
        transfer=transfer,
        points=tuple(_point(one, _phase(one, spans)) for one in intervals),
        effects=tuple(
            _with_doubts(_effect(transfer, migration, intervals, undisturbed, span, horizon, uncertainty, warnings))
            for migration, span, horizon in zip(migrations, spans, horizons, strict=True)
        ),
    )


def _effect(
    transfer: TransferResult,
    migration: MigrationResult,
    intervals: Sequence[Interval],
    undisturbed: Sequence[Interval],
    span: tuple[float, float],
    horizon: float,
    uncertainty: float,
    warnings: tuple[str, ...],
) -> MigrationEffect:
    started, ended = span
    before = _throughput(undisturbed)
    later = [one for one in intervals if one.end > started - uncertainty and one.start < horizon]
    during = _overlapping(intervals, started, min(ended, horizon))
    after = _throughput([one for one in later if one.start >= ended + uncertainty and one.end <= horizon])
    common = MigrationEffect(
        migration=migration,
        started=started,
        ended=ended,
        uncertainty=transfer.zero_uncertainty,
        before=before,
        during=during,
        after=after,
        resolution=max((one.end - one.start for one in later), default=None),
        warnings=warnings,
    )
    if before is None or before.median <= 0 or not later:
        why = "nothing was measured before the migration" if later else "the transfer ended before the migration began"
        return replace(common, session_survived=_survived(transfer, later, ended, 0.0), warnings=(*warnings, why))
    floor = STALL_SHARE * before.median
    stall = _longest_stall(later, floor)
    recovery = _recovery(intervals, undisturbed, before, stall, span, horizon)
    until = recovery.at if recovery.at is not None else horizon
    moved, covered = _moved(intervals, started, until)
    return replace(
        common,
        stall=stall,
        dip=_dip(later, before),
        recovery=recovery,
        bytes_not_moved=(before.mean * covered - moved) / 8,
        session_survived=_survived(transfer, later, ended, floor),
    )


def _with_doubts(effect: MigrationEffect) -> MigrationEffect:
    """What the gap in the traffic and the hypervisor's downtime say when they are seen together."""
    downtime, stall, doubts = effect.migration.downtime_ms, effect.stall, effect.warnings
    if effect.migration.no_downtime:
        doubts += (f"the hypervisor states no downtime: {effect.migration.no_downtime}",)
    if stall is not None and downtime is not None and 1000 * stall.seconds > PATH_LEARNING * downtime:
        doubts += (
            f"path learning: traffic stood still for {stall.seconds:.3g} s and the VM for {downtime / 1000:.3g} s, so most "
            "of the gap is the network's time to find the VM again, or TCP's pause before it tried again",
        )
    return replace(effect, warnings=doubts)


def _longest_stall(intervals: Sequence[Interval], floor: float) -> Stall | None:
    """Equal ones count as the first. Intervals on both sides of a hole in the record are not contiguous."""
    longest: Stall | None = None
    current: Stall | None = None
    for one in intervals:
        if one.bits_per_second >= floor:
            current = None
            continue
        joined = current is not None and one.start - current.end < 0.5 * (one.end - one.start)
        current = Stall(start=current.start if joined and current else one.start, end=one.end)
        if longest is None or current.seconds > longest.seconds:
            longest = current
    return replace(longest, unended=True) if longest is not None and longest.end == intervals[-1].end else longest


def _dip(intervals: Sequence[Interval], before: PhaseThroughput) -> Dip:
    lowest = min(intervals, key=lambda one: one.bits_per_second)
    return Dip(
        start=lowest.start,
        end=lowest.end,
        bits_per_second=lowest.bits_per_second,
        depth=max(0.0, 1 - lowest.bits_per_second / before.median),
    )


def _recovery(
    intervals: Sequence[Interval],
    undisturbed: Sequence[Interval],
    before: PhaseThroughput,
    stall: Stall | None,
    span: tuple[float, float],
    horizon: float,
) -> Recovery:
    """The first moment from which the throughput is back and stays.

    Back: the interval that begins there is within 10 % of before's mean, and so are the mean of the second from there
    and the mean of all that follows. Stays: no later second moves less than 90 % of before, or than the slowest second
    before the migration if that was lower, since noise that was there without a migration is no relapse.
    """
    started, ended = span
    width = max(SMOOTHING_SECONDS, float(np.median([one.end - one.start for one in intervals])))
    wanted = RECOVERY_SHARE * before.mean
    candidates = [one for one in intervals if one.end > started and max(one.start, started) + width <= horizon + 1e-9]
    if not candidates:
        return Recovery(state=RecoveryState.UNKNOWN)
    starts = np.array([max(one.start, started) for one in candidates])
    own = np.array([one.bits_per_second for one in candidates])
    seconds = _means(intervals, starts, starts + width)
    rest = _means(intervals, starts, np.full_like(starts, horizon))
    usual = np.array([one.start for one in undisturbed if one.start + width <= undisturbed[-1].end + 1e-9])
    slowest = float(_means(intervals, usual, usual + width).min()) if usual.size else wanted
    lowest_from_here = np.minimum.accumulate(seconds[::-1])[::-1]
    stays = (seconds >= wanted) & (rest >= wanted) & (lowest_from_here >= min(wanted, slowest))
    if stays[0] and stall is None:
        return Recovery(state=RecoveryState.UNDISTURBED, at=started, after_start=0.0, after_end=started - ended)
    back = stays & (own >= wanted)
    if not back.any():
        return Recovery(state=RecoveryState.NOT_RECOVERED)
    at = float(starts[int(back.argmax())])
    if stall is not None:
        at = max(at, stall.end)
    return Recovery(state=RecoveryState.RECOVERED, at=at, after_start=at - started, after_end=at - ended)


def _survived(transfer: TransferResult, later: Sequence[Interval], ended: float, floor: float) -> bool | None:
    """Whether the connection lived on. None when the transfer was over before the migration was."""
    if transfer.reading.error_kind is ErrorKind.CONNECTION_LOST:
        return False
    if any(one.start >= ended and one.bits_per_second > floor for one in later):
        return True
    if transfer.reading.error_kind is None and transfer.reading.ok and any(one.end >= ended for one in later):
        return True
    return None


def _throughput(intervals: Sequence[Interval]) -> PhaseThroughput | None:
    if not intervals:
        return None
    lengths = np.array([one.end - one.start for one in intervals])
    rates = np.array([one.bits_per_second for one in intervals])
    return PhaseThroughput(
        seconds=float(lengths.sum()),
        mean=float((lengths * rates).sum() / lengths.sum()),
        median=_weighted_median(rates, lengths),
    )


def _overlapping(intervals: Sequence[Interval], start: float, end: float) -> PhaseThroughput | None:
    parts = [
        Interval(start=max(one.start, start), end=min(one.end, end), bits_per_second=one.bits_per_second)
        for one in intervals
        if min(one.end, end) > max(one.start, start)
    ]
    return _throughput(parts)


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    half = below[-1] / 2
    index = int(np.searchsorted(below, half * (1 - 1e-12)))
    if index + 1 < len(order) and abs(below[index] - half) <= 1e-9 * half:
        return float(values[order[index : index + 2]].mean())
    return float(values[order[index]])


def _means(intervals: Sequence[Interval], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Mean throughput of each stretch, over the part of it that intervals cover."""
    edges = np.array([edge for one in intervals for edge in (one.start, one.end)])
    lengths = np.array([length for one in intervals for length in (0.0, one.end - one.start)])
    rates = np.repeat([one.bits_per_second for one in intervals], 2)
    bits, covered = np.cumsum(lengths * rates), np.cumsum(lengths)
    moved = np.interp(ends, edges, bits) - np.interp(starts, edges, bits)
    seconds = np.interp(ends, edges, covered) - np.interp(starts, edges, covered)
    return np.asarray(np.divide(moved, seconds, out=np.zeros_like(moved), where=seconds > 0))


def _moved(intervals: Sequence[Interval], start: float, end: float) -> tuple[float, float]:
    """Bits moved in a stretch, and how many seconds of it intervals cover."""
    part = _overlapping(intervals, start, end)
    return (part.mean * part.seconds, part.seconds) if part is not None else (0.0, 0.0)


def _phase(one: Interval, spans: Sequence[tuple[float, float]]) -> Phase:
    middle = (one.start + one.end) / 2
    if middle < spans[0][0]:
        return Phase.BEFORE
    return Phase.MIGRATING if any(start <= middle <= end for start, end in spans) else Phase.AFTER


def _irregular(intervals: Sequence[Interval]) -> tuple[str, ...]:
    lengths = [one.end - one.start for one in intervals]
    longest, typical = max(lengths), float(np.median(lengths))
    if longest <= IRREGULAR * typical:
        return ()
    return (
        f"an interval of {longest:.3g} s among intervals of {typical:.3g} s: the measuring endpoint was held up "
        "itself, and a stall inside it shows only as less throughput",
    )


def _point(one: Interval, phase: Phase | None) -> TimelinePoint:
    return TimelinePoint(start=one.start, end=one.end, bits_per_second=one.bits_per_second, phase=phase)


def _unaligned(transfer: TransferResult, migration: MigrationResult, why: str) -> MigrationEffect:
    survived = False if transfer.reading.error_kind is ErrorKind.CONNECTION_LOST else None
    return MigrationEffect(
        migration=migration,
        started=None,
        ended=None,
        uncertainty=None,
        session_survived=survived,
        warnings=(f"throughput and migration can't be aligned: {why}",),
    )
