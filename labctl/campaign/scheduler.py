"""Which runs start now. May be called at any time, by anyone, twice at once.

`labctl.plan.choose` decides; here is what it decides on, and what follows. Nothing here takes longer the more runs there
are: of each campaign only the next few that wait are read, and what never changes is kept in mind (`memory`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf

from labctl import clock
from labctl.campaign import holds
from labctl.campaign.dispatch import Dispatcher
from labctl.campaign.known import KnownCampaign
from labctl.campaign.memory import Memory, Reader, memory_of
from labctl.campaign.outlook import Outlook, Standing
from labctl.model.outcome import HostState, Purpose
from labctl.plan.choose import Contender, Start, Timetable, choose
from labctl.plan.resources import host_resource, machines_in
from labctl.store import AttemptHandle, AttemptStart, HostRecord, Leased, QueuedCampaign, Store


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """What a call did. `ended` names the campaigns that it ended. From the instant `next_look` on (epoch seconds) there may
    be more to do although nothing changes in the store until then; None when there is no such moment."""

    started: int
    ended: tuple[int, ...]
    next_look: float | None


def advance(store: Store, dispatcher: Dispatcher, *, only: int | None = None, hold: str = "") -> Advanced:
    """Start what can be started of all active campaigns, or of `only` one and the health checks of its lab, and end those
    that have nothing left.

    A run is started once whoever else calls this: its leases and its attempt are taken in one transaction, of which there
    is one for each lab. With `hold` nothing is started, and people are told that this is why. Raises `LabError` (`broker`)
    when messages can't be sent, after all else is done; attempts whose messages were not sent are given up later, like
    others that no worker takes.
    """
    memory = memory_of(store)
    rounds: list[_Round] = []
    try:
        with memory.lock:
            queue = store.queue()
            memory.keep_only(item.id for item in queue)
            asked = queue if only is None else _only(queue, only)
            for lab, items in groupby(sorted(asked, key=lambda item: item.lab), key=lambda item: item.lab):
                rounds.append(_Round(store, memory, lab, hold))
                rounds[-1].go(tuple(items))
    finally:
        # Whatever else fails: what was started has its message.
        for each in rounds:
            for known, handle in each.started:
                dispatcher.attempt(known.lab, handle)
    return Advanced(
        started=sum(len(each.started) for each in rounds),
        ended=tuple(campaign for each in rounds for campaign in each.outlook.ended),
        next_look=min((each.outlook.next_look for each in rounds if each.outlook.next_look < inf), default=None),
    )


class _Round:
    """What a call does in one lab."""

    def __init__(self, store: Store, memory: Memory, lab: str, hold: str) -> None:
        self._now = clock.now()
        self.started: list[tuple[KnownCampaign, AttemptHandle]] = []
        self.outlook = Outlook(store, memory, now=self._now, hold=hold)
        self._store = store
        self._memory = memory
        self._lab = lab
        self._hold = hold

    def go(self, queue: Sequence[QueuedCampaign]) -> None:
        """Choose and start runs, then see to what is left of each campaign."""
        leased = self._store.leased(self._lab)
        bad = {host.host: host for host in self._store.hosts(self._lab) if host.state is not HostState.GOOD}
        at_work = {each.campaign_id for each in leased.values() if each.in_progress}
        standings = [self._standing(item, at_work) for item in queue]
        ready = [] if self._hold else [each for each in standings if each.opening is not None]
        self._level(ready)
        contenders = [self._contender(each, leased, bad) for each in ready]
        starts = choose(contenders, self._timetable(leased, bad))
        self._start(ready, starts)
        ground = _ground(leased, bad, starts, contenders)
        for each in standings:
            self.outlook.settle(each, ground)

    def _standing(self, item: QueuedCampaign, at_work: Collection[int]) -> Standing:
        known = self._memory.known(self._store, item)
        return Standing(
            queued=item,
            known=known,
            opening=known.opening(self._now),
            at_work=item.id in at_work,
        )

    def _level(self, ready: Sequence[Standing]) -> None:
        """A campaign whose window has opened goes on with the least share of those that went on meanwhile: the time in
        which it could not use the hosts is not made up for."""
        shut = [each for each in ready if holds.is_of_window(each.queued.hold)]
        least = min((each.queued.share for each in ready if each not in shut and not each.health), default=0.0)
        for each in shut:
            if each.queued.share < least:
                self._store.raise_share(each.id, least)
                each.queued = replace(each.queued, share=least)

    def _timetable(self, leased: Mapping[str, Leased], bad: Mapping[str, HostRecord]) -> Timetable:
        return Timetable(
            self._memory.resources(self._lab),
            self._now,
            {name: each.expected for name, each in leased.items()},
            closed=[host_resource(name) for name in bad],
        )

    def _contender(self, standing: Standing, leased: Mapping[str, Leased], bad: Mapping[str, HostRecord]) -> Contender:
        known, queued = standing.known, standing.queued
        assert standing.opening is not None
        out = [] if standing.health else [name for name, host in bad.items() if host.state is HostState.OUT]
        free = known.machines - machines_in(leased)
        standing.reader = Reader(self._store, known, free=max(0, free), out=out)
        standing.contender = Contender(
            id=standing.id,
            runs=iter(standing.reader),
            places=known.places,
            priority=queued.priority,
            share=queued.share,
            seconds_left=standing.opening.end - self._now,
            health=standing.health,
        )
        return standing.contender

    def _start(self, ready: Sequence[Standing], starts: Sequence[Start]) -> None:
        by_id = {each.id: each for each in ready}
        asked = []
        for start in starts:
            standing = by_id[start.campaign]
            assert standing.reader is not None
            asked.append(
                AttemptStart(
                    run_id=start.run.id,
                    order=standing.known.order(standing.reader.runs[start.run.id].cell, start.position),
                    resources=start.resources,
                    estimate=start.run.seconds,
                    claim_by=self._latest_begin(standing, start),
                )
            )
        handles = self._store.start_attempts(self._lab, asked)
        for start, handle in zip(starts, handles, strict=True):
            if handle is not None:
                standing = by_id[start.campaign]
                standing.at_work = True
                self.started.append((standing.known, handle))
                self.outlook.tell_of_start(standing)

    def _latest_begin(self, standing: Standing, start: Start) -> float | None:
        """Until when a run may be begun to end before its window closes; None without windows."""
        assert standing.opening is not None
        if standing.opening.end == inf:
            return None
        return max(self._now, standing.opening.end - start.run.seconds)


def _ground(
    leased: Mapping[str, Leased],
    bad: Mapping[str, HostRecord],
    starts: Sequence[Start],
    contenders: Sequence[Contender],
) -> holds.Ground:
    lessees = {name: each.campaign_id for name, each in leased.items()}
    lessees |= {name: start.campaign for start in starts for name in start.resources}
    kept: dict[str, int] = {}
    waiting = [(each.kept.begins, each.id, each.kept) for each in contenders if each.kept is not None]
    for _, campaign, reservation in sorted(waiting, key=lambda item: item[:2]):
        for name in reservation.run.places.names(reservation.position):
            kept.setdefault(name, campaign)
    unclean = frozenset(name for name, each in leased.items() if not each.in_progress)
    return holds.Ground(lessees=lessees, unclean=unclean, kept=kept, bad=bad)


def _only(queue: Sequence[QueuedCampaign], campaign: int) -> list[QueuedCampaign]:
    """One campaign, and what lets the hosts of its lab back in that are quarantined."""
    labs = [item.lab for item in queue if item.id == campaign]
    return [item for item in queue if item.id == campaign or (item.purpose is Purpose.HEALTH and item.lab in labs)]
