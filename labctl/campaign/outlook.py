"""What is left of a campaign when runs were chosen: whether it ends, or what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from labctl import clock
from labctl.campaign import adaptive, holds
from labctl.campaign.known import KnownCampaign
from labctl.campaign.memory import Memory, Reader
from labctl.model.outcome import CampaignState, HostState, Outcome, OutcomeDetail, Purpose, RunState
from labctl.plan.choose import Contender
from labctl.plan.windows import Opening
from labctl.store import Event, HostRecord, QueuedCampaign, Store

SAY_SECONDS = 1.0
"""A campaign's hold is written at most so often: where runs take milliseconds, hosts change hands as often."""


@dataclass(kw_only=True)
class Standing:
    """How an active campaign stands in a call. Only one that may start runs now has a reader and a contender."""

    queued: QueuedCampaign
    known: KnownCampaign
    opening: Opening | None
    at_work: bool
    """Whether attempts of it are in progress."""
    reader: Reader | None = None
    contender: Contender | None = None

    @property
    def id(self) -> int:
        """Its id."""
        return self.queued.id

    @property
    def health(self) -> bool:
        """Whether it is a health check."""
        return self.queued.purpose is Purpose.HEALTH


class Outlook:
    """Settles campaigns one after the other. Whatever it does may be done again by the next call."""

    def __init__(self, store: Store, memory: Memory, *, now: float, hold: str) -> None:
        self.ended: list[int] = []
        """Campaigns that it ended."""
        self.next_look = inf
        """When there may be more to do although nothing changes until then."""
        self._store = store
        self._memory = memory
        self._now = now
        self._hold = hold

    def settle(self, standing: Standing, ground: holds.Ground) -> None:
        """End runs that can't be made any more, and the campaign when none is left; say what keeps it from starting more."""
        if standing.reader is not None and standing.reader.without_host:
            self._store.end_pending(
                standing.id, no_host(tuple(ground.bad.values())), run_ids=standing.reader.without_host
            )
        if self._is_finished(standing):
            self.ended.append(standing.id)
        elif standing.opening is None:
            self._wait_for_window(standing)
        elif self._hold or standing.contender is None or standing.reader is None:
            self._say(standing, self._hold)
        else:
            self._wait_for_hosts(standing, standing.opening, standing.contender, standing.reader, ground)

    def tell_of_start(self, standing: Standing) -> None:
        """Once: a campaign's first run was started."""
        if standing.health or standing.id in self._memory.told:
            return
        self._memory.told.add(standing.id)
        self._tell(
            standing,
            kind="started",
            key="started",
            what=f"The first run of campaign {standing.id} ({standing.known.name}) has started.",
        )

    def _is_finished(self, standing: Standing) -> bool:
        """Whether the campaign has no runs left; it is then done."""
        reader = standing.reader
        if standing.at_work or (reader is not None and (reader.runs or not reader.complete)):
            return False
        if self._store.has_open_runs(standing.id):
            return False
        if adaptive.consider_all(self._store, standing.id, self._memory.considered(standing.id)):
            return False
        return self._store.finish(standing.id)

    def _wait_for_window(self, standing: Standing) -> None:
        """No window of the campaign is open: say when the next one is, or stop the campaign when there is none any more."""
        opening, windows = standing.known.next_opening(self._now), standing.known.campaign.windows
        assert windows is not None
        if opening is None:
            last = f": nothing of it runs after {windows.until}" if windows.until is not None else ""
            self._stop(standing, f"Its windows are closed for good{last}")
            return
        self.next_look = min(self.next_look, opening.start)
        hold = holds.opens(opening, windows.zone, self._now)
        if hold != standing.queued.hold:
            self._tell_of_closing(standing, opening, hold)
        self._say(standing, hold)

    def _wait_for_hosts(
        self, standing: Standing, opening: Opening, contender: Contender, reader: Reader, ground: holds.Ground
    ) -> None:
        """Say what keeps a campaign from starting runs whose window is open: nothing, when it is only its own runs."""
        known, windows, hold = standing.known, standing.known.campaign.windows, ""
        again = self._store.next_not_before(standing.id) if reader.complete else None
        self.next_look = min(self.next_look, opening.end, again if again is not None else inf)
        if not reader.runs and again is not None and not standing.at_work:
            hold = holds.backing_off(again, self._now)
        elif windows is not None and reader.runs and contender.too_long == len(reader.runs):
            longest = known.longest_opening(self._now)
            if reader.complete and again is None and not standing.at_work and contender.shortest > longest:
                self._stop(standing, holds.never_fits(contender.shortest, longest))
                return
            hold = holds.too_long(opening, windows.zone, self._now)
        elif contender.waiting is not None and not standing.at_work:
            hold = holds.busy(ground, standing.id, known.lab, known.spots_of(contender.waiting.places))
        self._say(standing, hold)

    def _stop(self, standing: Standing, reason: str) -> None:
        """Stop a campaign of which nothing more can be started. Attempts in progress may finish."""
        counts = self._store.run_counts(standing.id)
        if not counts.get(RunState.PENDING):
            return
        why = f"{reason}, with {_left(counts)}."
        self._tell(
            standing,
            kind="campaign-stopped",
            key=f"campaign-stopped-{self._store.head(standing.id).forgiven}",
            what=f"Campaign {standing.id} ({standing.known.name}) is stopped. {why}",
        )
        if self._store.set_state(standing.id, CampaignState.STOPPED, why=why, only_from=(CampaignState.ACTIVE,)):
            self.ended.append(standing.id)

    def _say(self, standing: Standing, hold: str) -> None:
        if hold == standing.queued.hold:
            return
        now = clock.monotonic()
        if now - self._memory.said.get(standing.id, -inf) < SAY_SECONDS:
            self.next_look = min(self.next_look, self._now + SAY_SECONDS)
            return
        self._memory.said[standing.id] = now
        self._store.set_hold(standing.id, hold)

    def _tell_of_closing(self, standing: Standing, opening: Opening, hold: str) -> None:
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

    def _tell(self, standing: Standing, *, kind: str, key: str, what: str) -> None:
        scope = f"campaign-{standing.id}"
        self._store.tell(Event(scope=scope, key=key, campaign_id=standing.id, kind=kind, what=what, at=self._now))


def no_host(bad: Sequence[HostRecord]) -> OutcomeDetail:
    """Why runs are ended that no host is left for."""
    out = [host for host in bad if host.state is HostState.OUT]
    return OutcomeDetail(
        outcome=Outcome.LAB_ERROR,
        kind="no-host",
        what="The run was not run: no host is left for it.",
        why=" ".join(f"Host {host.host} is out. {host.why}".strip() for host in out),
        todo="Let a host back in with `labctl hosts release`, then `labctl retry` the campaign.",
    )


def _left(counts: Mapping[str, int]) -> str:
    left = counts.get(RunState.PENDING, 0)
    return f"{left} of {sum(counts.values())} runs left"
