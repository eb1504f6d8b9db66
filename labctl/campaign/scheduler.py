"""Which runs start now. May be called at any time, by anyone, twice at once.

`labctl.plan.choose` decides; here is what it decides on, and what follows. Nothing here takes longer the more runs there
are: of each campaign only the next few that wait are read, and what never changes is kept in mind (`memory`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import groupby
from math import inf

from labctl import clock
from labctl.campaign import adaptive, holds
from labctl.campaign.dispatch import Dispatcher
from labctl.campaign.known import KnownCampaign
from labctl.campaign.memory import Memory, Reader, memory_of
from labctl.model.outcome import CampaignState, HostState, Outcome, OutcomeDetail, Purpose, RunState
from labctl.plan.choose import Contender, Start, Timetable, choose
from labctl.plan.resources import host_resource, machines_in
from labctl.plan.windows import Opening
from labctl.store import AttemptHandle, AttemptStart, Event, HostRecord, QueuedCampaign, Store

Leased = Mapping[str, tuple[int, float]]
"""Everything that is leased in a lab, by name: the campaign that has it, and presumably until when."""

_SAY_SECONDS = 1.0
"""A campaign's hold is written at most so often: where runs take milliseconds, hosts change hands as often."""


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
        ended=tuple(campaign for each in rounds for campaign in each.ended),
        next_look=min((each.next_look for each in rounds if each.next_look < inf), default=None),
    )


@dataclass(kw_only=True)
class _Standing:
    """How an active campaign stands in a call. Only one that may start runs now has a reader and a contender."""

    queued: QueuedCampaign
    known: KnownCampaign
    opening: Opening | None
    at_work: bool
    """Whether attempts of it have leases."""
    reader: Reader | None = None
    contender: Contender | None = None

    @property
    def id(self) -> int:
        return self.queued.id

    @property
    def health(self) -> bool:
        return self.queued.purpose is Purpose.HEALTH


class _Round:
    """What a call does in one lab."""

    def __init__(self, store: Store, memory: Memory, lab: str, hold: str) -> None:
        self.started: list[tuple[KnownCampaign, AttemptHandle]] = []
        self.ended: list[int] = []
        self.next_look = inf
        self._store = store
        self._memory = memory
        self._lab = lab
        self._hold = hold
        self._now = clock.now()

    def go(self, queue: Sequence[QueuedCampaign]) -> None:
        """Choose and start runs, then see to what is left of each campaign."""
        leased = self._store.leased(self._lab)
        bad = {host.host: host for host in self._store.hosts(self._lab) if host.state is not HostState.GOOD}
        at_work = {campaign for campaign, _ in leased.values()}
        standings = [self._standing(item, at_work) for item in queue]
        ready = [] if self._hold else [each for each in standings if each.opening is not None]
        self._level(ready)
        contenders = [self._contender(each, leased, bad) for each in ready]
        starts = choose(contenders, self._timetable(leased, bad))
        self._start(ready, starts)
        ground = _ground(leased, bad, starts, contenders)
        for each in standings:
            self._settle(each, ground)

    def _standing(self, item: QueuedCampaign, at_work: Collection[int]) -> _Standing:
        known = self._memory.known(self._store, item)
        return _Standing(
            queued=item,
            known=known,
            opening=known.opening(self._now),
            at_work=item.id in at_work,
        )

    def _level(self, ready: Sequence[_Standing]) -> None:
        """A campaign whose window has opened goes on with the least share of those that went on meanwhile: the time in
        which it could not use the hosts is not made up for."""
        shut = [each for each in ready if holds.is_of_window(each.queued.hold)]
        least = min((each.queued.share for each in ready if each not in shut and not each.health), default=0.0)
        for each in shut:
            if each.queued.share < least:
                self._store.raise_share(each.id, least)
                each.queued = replace(each.queued, share=least)

    def _timetable(self, leased: Leased, bad: Mapping[str, HostRecord]) -> Timetable:
        return Timetable(
            self._memory.resources(self._lab),
            self._now,
            {name: expected for name, (_, expected) in leased.items()},
            closed=[host_resource(name) for name in bad],
        )

    def _contender(self, standing: _Standing, leased: Leased, bad: Mapping[str, HostRecord]) -> Contender:
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

    def _start(self, ready: Sequence[_Standing], starts: Sequence[Start]) -> None:
        by_id = {each.id: each for each in ready}
        asked = []
        for start in starts:
            standing = by_id[start.campaign]
            assert standing.reader is not None
            order = standing.known.order(standing.reader.runs[start.run.id].cell, start.position)
            asked.append(
                AttemptStart(run_id=start.run.id, order=order, resources=start.resources, estimate=start.run.seconds)
            )
        handles = self._store.start_attempts(self._lab, asked)
        for start, handle in zip(starts, handles, strict=True):
            if handle is not None:
                standing = by_id[start.campaign]
                standing.at_work = True
                self.started.append((standing.known, handle))
                self._tell_of_start(standing)

    def _settle(self, standing: _Standing, ground: holds.Ground) -> None:
        """End runs that can't be made any more, and the campaign when none is left; say what keeps it from starting more."""
        if standing.reader is not None and standing.reader.without_host:
            self._store.end_pending(standing.id, _no_host(ground), run_ids=standing.reader.without_host)
        if self._is_finished(standing):
            self.ended.append(standing.id)
        elif standing.opening is None:
            self._wait_for_window(standing)
        else:
            self._say(standing, self._hold or self._why_not(standing, ground))

    def _is_finished(self, standing: _Standing) -> bool:
        """Whether the campaign has no runs left; it is then done."""
        reader = standing.reader
        if standing.at_work or (reader is not None and (reader.runs or not reader.complete)):
            return False
        if self._store.has_open_runs(standing.id):
            return False
        if adaptive.consider_all(self._store, standing.id, self._memory.considered(standing.id)):
            return False
        return self._store.finish(standing.id)

    def _wait_for_window(self, standing: _Standing) -> None:
        """No window of the campaign is open: say when the next one is, or stop the campaign when there is none any more."""
        opening, windows = standing.known.next_opening(self._now), standing.known.campaign.windows
        assert windows is not None
        if opening is None:
            self._stop(standing, windows.until)
            return
        self.next_look = min(self.next_look, opening.start)
        hold = holds.opens(opening, windows.zone, self._now)
        if hold != standing.queued.hold:
            self._tell_of_closing(standing, opening, hold)
        self._say(standing, hold)

    def _stop(self, standing: _Standing, until: date | None) -> None:
        """Stop a campaign whose windows are closed for good. Attempts in progress may finish."""
        counts = self._store.run_counts(standing.id)
        if not counts.get(RunState.PENDING):
            return
        last = f": nothing of it runs after {until}" if until is not None else ""
        why = f"Its windows are closed for good{last}, with {_left(counts)}."
        self._tell(
            standing,
            kind="campaign-stopped",
            key=f"campaign-stopped-{self._store.head(standing.id).forgiven}",
            what=f"Campaign {standing.id} ({standing.known.name}) is stopped. {why}",
        )
        if self._store.set_state(standing.id, CampaignState.STOPPED, why=why, only_from=(CampaignState.ACTIVE,)):
            self.ended.append(standing.id)

    def _why_not(self, standing: _Standing, ground: holds.Ground) -> str:
        """What keeps a campaign from starting runs whose windows are open; empty when nothing but its own runs does."""
        known, reader, contender, opening = standing.known, standing.reader, standing.contender, standing.opening
        assert reader is not None
        assert contender is not None
        assert opening is not None
        again = self._store.next_not_before(standing.id) if reader.complete else None
        self.next_look = min(self.next_look, opening.end, again if again is not None else inf)
        windows = known.campaign.windows
        if not reader.runs:
            zone = windows.zone if windows is not None else "UTC"
            return holds.backing_off(again, zone, self._now) if again is not None and not standing.at_work else ""
        if windows is not None and contender.too_long == len(reader.runs):
            return holds.too_long(opening, windows.zone, self._now)
        if standing.at_work or contender.waiting is None:
            return ""
        return holds.busy(ground, standing.id, known.lab, known.spots_of(contender.waiting.places))

    def _say(self, standing: _Standing, hold: str) -> None:
        if hold == standing.queued.hold:
            return
        now = clock.monotonic()
        if now - self._memory.said.get(standing.id, -inf) < _SAY_SECONDS:
            self.next_look = min(self.next_look, self._now + _SAY_SECONDS)
            return
        self._memory.said[standing.id] = now
        self._store.set_hold(standing.id, hold)

    def _tell_of_start(self, standing: _Standing) -> None:
        if standing.health or standing.id in self._memory.told:
            return
        self._memory.told.add(standing.id)
        self._tell(
            standing,
            kind="started",
            key="started",
            what=f"The first run of campaign {standing.id} ({standing.known.name}) has started.",
        )

    def _tell_of_closing(self, standing: _Standing, opening: Opening, hold: str) -> None:
        """Once for each time that a window closes on a campaign of which something was run."""
        counts = self._store.run_counts(standing.id)
        if counts.keys() - {RunState.PENDING}:
            self._tell(
                standing,
                kind="window-closed",
                key=f"window-closed-{opening.start:.0f}",
                what=f"A window of campaign {standing.id} ({standing.known.name}) has closed with {_left(counts)}; "
                f"the next {hold}.",
            )

    def _tell(self, standing: _Standing, *, kind: str, key: str, what: str) -> None:
        scope = f"campaign-{standing.id}"
        self._store.tell(Event(scope=scope, key=key, campaign_id=standing.id, kind=kind, what=what, at=self._now))


def _ground(
    leased: Leased, bad: Mapping[str, HostRecord], starts: Sequence[Start], contenders: Sequence[Contender]
) -> holds.Ground:
    lessees = {name: campaign for name, (campaign, _) in leased.items()}
    lessees |= {name: start.campaign for start in starts for name in start.resources}
    kept: dict[str, int] = {}
    waiting = [(each.kept.begins, each.id, each.kept) for each in contenders if each.kept is not None]
    for _, campaign, reservation in sorted(waiting, key=lambda item: item[:2]):
        for name in reservation.run.places.names(reservation.position):
            kept.setdefault(name, campaign)
    return holds.Ground(lessees=lessees, kept=kept, bad=bad)


def _only(queue: Sequence[QueuedCampaign], campaign: int) -> list[QueuedCampaign]:
    """One campaign, and what lets the hosts of its lab back in that are quarantined."""
    labs = [item.lab for item in queue if item.id == campaign]
    return [item for item in queue if item.id == campaign or (item.purpose is Purpose.HEALTH and item.lab in labs)]


def _left(counts: Mapping[str, int]) -> str:
    left = counts.get(RunState.PENDING, 0)
    return f"{left} of {sum(counts.values())} runs left"


def _no_host(ground: holds.Ground) -> OutcomeDetail:
    out = [host for host in ground.bad.values() if host.state is HostState.OUT]
    return OutcomeDetail(
        outcome=Outcome.LAB_ERROR,
        kind="no-host",
        what="The run was not run: no host is left for it.",
        why=" ".join(f"Host {host.host} is out. {host.why}".strip() for host in out),
        todo="Let a host back in with `labctl hosts release`, then `labctl retry` the campaign.",
    )
