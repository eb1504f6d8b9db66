"""How far a campaign is, how fast it goes, and when it will be done, its windows counted in.

Looking is cheap, so that any number of terminals may look at a campaign of any size while it measures: what is in progress
is asked for at every look, whatever needs all runs at most once a second and in a twentieth of the time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from labctl import clock
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, HostState, Purpose, RunState
from labctl.model.window import Windows
from labctl.plan.estimate import Needs, needs_of
from labctl.plan.nights import Nights, nights
from labctl.plan.windows import opening_at
from labctl.store import ActiveAttempt, CampaignHead, HostRecord, Store

T = TypeVar("T")
Range = tuple[float, float]

_SELDOM_SECONDS, _SELDOM_TIMES = 1.0, 20
_LATELY_SECONDS = 3600.0
_LATELY_ENDS = 200
"""The rate is that of the last hour, and of so many attempts at the most."""
_LEAST = 1e-3
"""No run is taken as quicker (seconds)."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is left to do, as ranges that the runs so far justify: low and high."""

    seconds: Range = (0.0, 0.0)
    """Seconds until all is done, if the lab did nothing else and the windows were always open."""
    done: tuple[float | None, float | None] = (None, None)
    """When it will be done (instants), with the windows. None: nothing is left, or the windows have no room for all of
    it."""
    nights: int = 0
    """How many openings of its windows that takes; 0 for a campaign without windows."""
    measured: int = 0
    """How many attempts this rests on; 0: on the plan's estimate alone."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A campaign at one moment."""

    head: CampaignHead
    at: float
    """When this was so (epoch seconds)."""
    total: int
    done: int
    counts: Mapping[str, int]
    """Runs by outcome, and those that have none by state."""
    active: tuple[ActiveAttempt, ...]
    rate: float | None
    """Runs per hour lately; None while too few have ended."""
    left: Left
    bad_hosts: tuple[HostRecord, ...]
    """Hosts of its lab that are quarantined or out."""
    beside: tuple[int, ...]
    """Other active campaigns that want hosts of the same lab."""

    @property
    def state(self) -> CampaignState:
        """Where the campaign stands."""
        return self.head.state


class Meter:
    """Looks at a campaign again and again. Not for several threads."""

    def __init__(self, store: Store, campaign_id: int) -> None:
        self._store = store
        self._id = campaign_id
        self._needs: dict[str, Needs] = {}
        self._counts = _Seldom(lambda: store.run_counts(campaign_id))
        self._left = _Seldom(self._measure_left)
        self._rate = _Seldom(lambda: _rate(store.latest_ends(campaign_id, limit=_LATELY_ENDS), clock.now()))

    def look(self) -> Progress:
        """The progress now, from the store alone. Raises `SpecError` when there is no such campaign."""
        store = self._store
        head = store.head(self._id)
        counts = self._counts.value(fresh=head.state.ended)
        total, active = sum(counts.values()), store.active_attempts(self._id)
        return Progress(
            head=head,
            at=clock.now(),
            total=total,
            done=total - counts.get(RunState.PENDING, 0) - counts.get(RunState.ACTIVE, 0),
            counts=counts,
            active=active,
            rate=self._rate.value(),
            left=self._left.value(fresh=head.state.ended),
            bad_hosts=_bad_hosts(store, head.lab),
            beside=_beside(store, head),
        )

    def _measure_left(self) -> Left:
        store, head, now = self._store, self._store.head(self._id), clock.now()
        cells = store.pending_cells(self._id)
        for cell_id, (cell, _) in cells.items():
            if cell_id not in self._needs:
                self._needs[cell_id] = needs_of(head.campaign, cell, head.lab)
        durations = store.durations(self._id)
        machines = _machines(head.lab, frozenset(record.host for record in _bad_hosts(store, head.lab)))
        waiting = {cell_id: (self._needs[cell_id], runs) for cell_id, (_, runs) in cells.items()}
        needs, spread = _learnt(waiting, durations, machines)
        begun = _begun(store.active_attempts(self._id), self._needs, machines, now)
        found = _left(needs, spread, head.campaign.windows, machines=machines, begun=begun, now=now)
        return replace(found, measured=sum(count for count, _ in durations.values()))


def progress(store: Store, head: CampaignHead) -> Progress:
    """The progress of a campaign, looked at once."""
    return Meter(store, head.id).look()


class _Seldom(Generic[T]):
    """A value that is computed anew at most once a second, and only so often that it takes a twentieth of the time."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._kept: T
        self._due = -math.inf

    def value(self, *, fresh: bool = False) -> T:
        """The value, not older than that; with `fresh` it is computed now."""
        began = time.monotonic()
        if fresh or began >= self._due:
            self._kept = self._compute()
            ended = time.monotonic()
            self._due = ended + max(_SELDOM_SECONDS, (ended - began) * _SELDOM_TIMES)
        return self._kept


def _rate(ends: tuple[float, ...], now: float) -> float | None:
    """Runs per hour: over the time since the first of the latest ends, newest first. None with fewer than two."""
    lately = [end for end in ends if now - end < _LATELY_SECONDS]
    if len(lately) < 2 or now <= lately[-1]:
        return None
    return (len(lately) - 1) * 3600 / (now - lately[-1])


def _learnt(
    cells: Mapping[str, tuple[Needs, int]], durations: Mapping[str, tuple[int, float]], machines: int
) -> tuple[dict[Needs, int], float]:
    """How many runs are left by what they need, and how far off their seconds may be, as a share.

    A cell that was measured counts with its own mean; the others with the plan's estimate, times the ratio of measured to
    estimated seconds of those that were. Runs that need as many machines are taken as equally long. Until three attempts
    have ended they may be a quarter off; then it is two standard errors of the ratio, at least a tenth.
    """
    ratios = [
        mean / cells[cell_id][0].seconds
        for cell_id, (count, mean) in durations.items()
        if cell_id in cells
        for _ in range(count)
    ]
    ratio = max(statistics.fmean(ratios), _LEAST) if ratios else 1.0
    runs: Counter[tuple[int, int]] = Counter()
    work: dict[tuple[int, int], float] = {}
    for cell_id, (needs, number) in cells.items():
        taken = min(needs.machines, machines)
        alike = taken, min(needs.at_once, machines // taken)
        runs[alike] += number
        seconds = durations[cell_id][1] if cell_id in durations else ratio * needs.seconds
        work[alike] = work.get(alike, 0.0) + number * seconds
    spread = 0.25
    if len(ratios) >= 3:
        spread = min(0.5, max(0.1, 2 * statistics.stdev(ratios) / ratio / math.sqrt(len(ratios))))
    return {
        Needs(seconds=max(work[alike] / number, _LEAST), machines=alike[0], at_once=alike[1]): number
        for alike, number in runs.items()
    }, spread


def _left(
    needs: Mapping[Needs, int], spread: float, windows: Windows | None, *, machines: int, begun: float, now: float
) -> Left:
    """The ranges. `begun` is how many seconds of the lab's work attempts in progress have behind them."""
    if not needs:
        return Left()
    bounds = [
        {replace(each, seconds=each.seconds * (1 + sign * spread)): runs for each, runs in needs.items()}
        for sign in (-1, 1)
    ]
    low, high = (_seconds(nights(bound, None, now, machines=machines), now, begun) for bound in bounds)
    if windows is None:
        return Left(seconds=(low, high), done=(now + low, now + high))
    begun = begun if opening_at(windows, now) is not None else 0.0
    early, late = (nights(bound, windows, now, machines=machines) for bound in bounds)
    done = (None if found.end is None else max(now, found.end - begun) for found in (early, late))
    return Left(seconds=(low, high), done=(next(done), next(done)), nights=late.count)


def _seconds(found: Nights, now: float, begun: float) -> float:
    return max(0.0, (found.end or now) - now - begun)


def _begun(active: Iterable[ActiveAttempt], needs: Mapping[str, Needs], machines: int, now: float) -> float:
    """Seconds of the whole lab's work that attempts in progress have behind them."""
    done = 0.0
    for attempt in active:
        each = needs.get(attempt.cell.id)
        if each is not None:
            expected = attempt.estimate or each.seconds
            done += each.machines * min(max(0.0, now - attempt.created), expected)
    return done / machines


def _machines(lab: Lab, bad: frozenset[str]) -> int:
    """How many physical machines have hosts that can be used."""
    return max(1, len({host.machine for host in lab.hosts.values() if host.name not in bad}))


def _bad_hosts(store: Store, lab: Lab) -> tuple[HostRecord, ...]:
    return tuple(
        record
        for record in store.hosts(lab.name)
        if record.state is not HostState.GOOD and (record.host in lab.hosts or record.host in lab.machines)
    )


def _beside(store: Store, head: CampaignHead) -> tuple[int, ...]:
    return tuple(
        other.id
        for other in store.queue()
        if other.lab == head.lab.name and other.id != head.id and other.purpose is not Purpose.HEALTH
    )
