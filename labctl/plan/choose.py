"""Which of the waiting runs start now, and where. Pure: everything that it depends on is given.

Campaigns of a higher priority come first. Those of equal priority take turns: the next run to be started is one of the
campaign that was given least so far, in machine seconds, those of this very call counted. Within a campaign runs come in
its order of work. Whoever can use a host gets it: a run whose hosts are busy is passed over for one whose are not.

That alone would starve a run that needs two hosts where others need one, because hosts rarely become free in pairs. So
the first run of each campaign that has to wait keeps the placement that will be free first, and others may use it until
then only with runs that will have ended by then: backfilling with reservations, as EASY does it (Mu'alem and Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", IEEE
TPDS 12(6), 2001). Estimates may be wrong. A lease that has outlived its estimate counts as ending any moment: nothing
more is then put on the hosts that the waiting run gets beside it.

Where several placements are free, a run takes the one that it wishes for, or else the next in the order of the placements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heapify, heappop, heappush
from math import inf, nextafter
from typing import Any

import numpy as np

from labctl.plan.resources import machines_in

Array = np.ndarray[Any, np.dtype[Any]]

ALL = slice(None)
"""All positions."""
_NOTHING = 0
"""The number of a resource that is always free."""


class Resources:
    """Numbers for the names of all that runs of one lab may lease, so that their instants can be kept in arrays."""

    def __init__(self) -> None:
        self.names: list[str] = [""]
        self._numbers: dict[str, int] = {"": _NOTHING}

    def number(self, name: str) -> int:
        """The number of a resource, given to it when it is named for the first time."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found


class Places:
    """The placements that runs of some cells may have, in order, as what each of them leases.

    `slots` names resources of which a run needs any one beside those of its placement.
    """

    def __init__(self, resources: Resources, leased: Sequence[frozenset[str]], *, slots: Sequence[str] = ()) -> None:
        self.slots = tuple(resources.number(name) for name in slots) or (_NOTHING,)
        self._names = resources.names
        rows = [sorted(resources.number(name) for name in names) for names in leased]
        width = max(map(len, rows))
        table = np.array([[*row, *[_NOTHING] * (width - len(row))] for row in rows], dtype=np.intp)
        self._columns = tuple(np.ascontiguousarray(column) for column in table.T)

    def __len__(self) -> int:
        return len(self._columns[0])

    def latest(self, instants: Array, positions: Array | slice = ALL) -> Array:
        """For each of these placements the latest of the instants of its resources."""
        return reduce(np.maximum, (instants[column[positions]] for column in self._columns))

    def earliest(self, instants: Array, positions: Array | slice = ALL) -> Array:
        """For each of these placements the earliest of the instants of its resources."""
        return reduce(np.minimum, (instants[column[positions]] for column in self._columns))

    def all_need(self, names: Iterable[str]) -> bool:
        """Whether there is no placement without any of these resources."""
        which = np.isin(self._names, list(names))
        return bool(self.counts(which).min() > 0)

    def counts(self, which: Array) -> Array:
        """For every placement how many of its resources are among these."""
        found: Array = np.sum([which[column] for column in self._columns], axis=0)
        return found

    def numbers(self, position: int, slot: int = _NOTHING) -> list[int]:
        """The numbers of what a run leases in a placement, with a slot."""
        found = {int(column[position]) for column in self._columns} | {slot}
        return sorted(found - {_NOTHING})

    def names(self, position: int, slot: int = _NOTHING) -> frozenset[str]:
        """The names of what a run leases in a placement, with a slot."""
        return frozenset(self._names[number] for number in self.numbers(position, slot))


@dataclass(frozen=True, kw_only=True)
class WaitingRun:
    """A run that may be started, for `seconds` presumably. `wish` says in which placement it would rather be: the
    position in its places, beyond the last of which they are counted from the first again."""

    id: int
    places: Places
    seconds: float
    wish: int = 0


@dataclass(kw_only=True)
class Contender:
    """A campaign that has runs to be started.

    `runs` come in its order of work and are read only as far as there is something to be had for them; `places` are all
    that they may have. The last fields tell what `choose` found out.
    """

    id: int
    runs: Iterator[WaitingRun]
    places: frozenset[Places]
    priority: int = 0
    share: float = 0.0
    """Machine seconds that it was given so far; it grows by what it is given now."""
    seconds_left: float = inf
    """Until its window closes: runs that take longer are not started."""
    health: bool = False
    """Whether it is a health check: those come before all others, and may use hosts that are not good."""
    waiting: WaitingRun | None = None
    """The first of its runs that has to wait for a placement."""
    kept: Reservation | None = None
    """What is kept for one of its runs, the first for which that is possible."""
    too_long: int = 0
    """How many of its runs that were read take longer than what is left of its window."""
    shortest: float = inf
    """The seconds of the shortest of those."""

    @property
    def rank(self) -> tuple[bool, int, float, int]:
        """Smaller ranks come first."""
        return not self.health, -self.priority, self.share, self.id


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run to be started now, in the placement at `position` of its places, with all that it leases."""

    campaign: int
    run: WaitingRun
    position: int
    resources: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A placement that is kept for a waiting run from the instant `begins` on, at which it can presumably start."""

    run: WaitingRun
    position: int
    begins: float


class Timetable:
    """When each resource of a lab is free: now, or when its lease is expected to end.

    `leases` gives the expected end of everything that is leased; `closed` names what only health checks may use. All
    places must have been made before.
    """

    def __init__(
        self, resources: Resources, now: float, leases: Mapping[str, float], closed: Iterable[str] = ()
    ) -> None:
        held = {resources.number(name): max(end, nextafter(now, inf)) for name, end in leases.items()}
        shut = [resources.number(name) for name in closed]
        self.now = now
        self._free_at = np.zeros(len(resources.names))
        self._free_at[list(held)] = list(held.values())
        self._open_at = self._free_at.copy()
        self._open_at[shut] = inf
        self._promised_at = self._open_at.copy()
        """When each is free again after all that is kept for waiting runs."""
        self._kept_from = np.full(len(resources.names), inf)
        self._free: dict[Places, Array] = {}
        """The positions that were free when somebody looked last; none becomes free later."""
        self._full: set[Places] = set()
        self._hopeless: set[Places] = set()
        self._kept_out: dict[Places, float] = {}
        """The seconds of the shortest run that was kept out by reservations."""

    def seat(self, run: WaitingRun, *, health: bool = False) -> tuple[int, int] | None:
        """The position and the slot with which a run can be started now; None when it has to wait."""
        places, ends = run.places, self.now + run.seconds
        if not health and (places in self._full or run.seconds >= self._kept_out.get(places, inf)):
            return None
        free = np.flatnonzero(places.latest(self._free_at) <= self.now) if health else self._still_free(places)
        slots = [slot for slot in places.slots if self._free_at[slot] <= self.now]
        if not slots or not free.size:
            if not health:
                self._full.add(places)
            return None
        positions = free[places.earliest(self._kept_from, free) >= ends]
        slots = [slot for slot in slots if self._kept_from[slot] >= ends]
        if not slots or not positions.size:
            if not health:
                self._kept_out[places] = min(run.seconds, self._kept_out.get(places, inf))
            return None
        following = int(np.searchsorted(positions, run.wish % len(places)))
        return int(positions[following % positions.size]), slots[0]

    def _still_free(self, places: Places) -> Array:
        if places not in self._free:
            self._free[places] = np.arange(len(places))
        before = self._free[places]
        self._free[places] = before[places.latest(self._open_at, before) <= self.now]
        return self._free[places]

    def take(self, run: WaitingRun, position: int, slot: int) -> None:
        """A run starts there."""
        end = max(self.now + run.seconds, nextafter(self.now, inf))
        numbers = run.places.numbers(position, slot)
        for instants in (self._free_at, self._open_at, self._promised_at):
            instants[numbers] = np.maximum(instants[numbers], end)

    def keep(self, run: WaitingRun, *, within: float = inf) -> Reservation | None:
        """Keep the placement for a waiting run in which it can start first, and of those equally early the one of which
        least is leased now. None when it could not end within so many seconds, or never start."""
        places = run.places
        if places in self._hopeless:
            return None
        slot = min(places.slots, key=lambda number: float(self._promised_at[number]))
        free_at = places.latest(self._promised_at)
        begins = max(float(free_at.min()), float(self._promised_at[slot]), nextafter(self.now, inf))
        if begins == inf:
            self._hopeless.add(places)
        if begins + run.seconds > self.now + within or begins == inf:
            return None
        position = int(np.where(free_at <= begins, places.counts(self._free_at > self.now), inf).argmin())
        numbers = places.numbers(position, slot)
        self._kept_from[numbers] = np.minimum(self._kept_from[numbers], begins)
        self._promised_at[numbers] = begins + run.seconds
        return Reservation(run=run, position=position, begins=begins)

    def closed_to(self, contender: Contender) -> bool:
        """Whether nothing more can be started of a campaign, nor kept for it."""
        if contender.health:
            return False
        return self._full >= contender.places and (contender.kept is not None or self._hopeless >= contender.places)


def choose(contenders: Iterable[Contender], timetable: Timetable) -> tuple[Start, ...]:
    """The runs that start now. The timetable then says what is left, and each contender what its runs wait for."""
    ranked = [(contender.rank, contender) for contender in contenders]
    heapify(ranked)
    starts: list[Start] = []
    while ranked:
        _, contender = heappop(ranked)
        start = _next_start(contender, timetable)
        if start is not None:
            starts.append(start)
            contender.share += start.run.seconds * machines_in(start.resources)
            heappush(ranked, (contender.rank, contender))
    return tuple(starts)


def _next_start(contender: Contender, timetable: Timetable) -> Start | None:
    """The next run of a campaign that can be started; None when there is none any more."""
    if timetable.closed_to(contender):
        return None
    for run in contender.runs:
        if run.seconds > contender.seconds_left:
            contender.too_long += 1
            contender.shortest = min(contender.shortest, run.seconds)
            continue
        seat = timetable.seat(run, health=contender.health)
        if seat is not None:
            timetable.take(run, *seat)
            return Start(campaign=contender.id, run=run, position=seat[0], resources=run.places.names(*seat))
        contender.waiting = contender.waiting or run
        if contender.kept is None:
            contender.kept = timetable.keep(run, within=contender.seconds_left)
        if timetable.closed_to(contender):
            return None
    return None
