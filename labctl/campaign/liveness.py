"""Who is still alive: attempts without a sign of life are given up, and what they left is cleaned.

Signs of life are counters in the store; whoever watches judges by a clock of its own how long one has not moved. So no
step of a wall clock makes anybody seem dead. A process of this machine that has died is known at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from labctl.campaign import judgement
from labctl.campaign.dispatch import Dispatcher
from labctl.campaign.holds import is_of_window
from labctl.campaign.processes import has_died
from labctl.model.outcome import AttemptState, OutcomeDetail
from labctl.model.patience import Patience, patience
from labctl.store import MESSAGE_LOST, WORKER_LOST, Sign, Store

Monotonic = Callable[[], float]
StillWaiting = Callable[[tuple[int, ...]], Collection[int]]
"""Which of these attempts have messages that still wait in their queue. Raises `LabError` (`broker`) when that can't be told."""

_AGAIN_AT_MOST = 300.0
"""Seconds between two times that the same cleaning is asked for, however often it has failed."""


class Stillness:
    """How long values have not changed, by this process's own clock. What is seen for the first time has just changed."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[int | str, tuple[Hashable, float]] = {}

    def seconds(self, values: Mapping[int, Hashable] | Mapping[str, Hashable]) -> dict[int | str, float]:
        """Seconds since each last changed; those that are no longer there are forgotten."""
        now, seen = self._monotonic(), {}
        for key, value in values.items():
            before, since = self._seen.get(key, (None, now))
            seen[key] = value, since if before == value else now
        self._seen = seen
        return {key: now - since for key, (_, since) in seen.items()}


class Watch:
    """Watches the signs of life of all attempts in progress."""

    def __init__(self, patient: Patience | None = None, monotonic: Monotonic = time.monotonic) -> None:
        self._patience = patient or patience()
        self._stillness = Stillness(monotonic)

    def lost(self, signs: Iterable[Sign]) -> tuple[Sign, ...]:
        """Those that have not moved for too long, and those whose process on this machine has died."""
        by_id = {sign.attempt_id: sign for sign in signs}
        silent = self._stillness.seconds({id_: (sign.state, sign.beats) for id_, sign in by_id.items()})
        return tuple(
            sign
            for id_, sign in by_id.items()
            if silent[id_] > self._limit(sign) or (sign.state is AttemptState.CLAIMED and has_died(sign.worker))
        )

    def _limit(self, sign: Sign) -> float:
        return self._patience.silent if sign.state is AttemptState.CLAIMED else self._patience.unclaimed


def give_up_lost(
    store: Store, watch: Watch, dispatcher: Dispatcher, *, still_waiting: StillWaiting = lambda _: ()
) -> tuple[int, ...]:
    """Void the tokens of attempts without a sign of life. Returns their ids.

    What the VMs of those that were claimed are is asked to be removed, and their hosts are free after that. Those that nobody
    claimed never touched a host: they are free at once, unless their messages still wait for a slot.
    """
    lost = watch.lost(store.signs())
    claimed = [sign.attempt_id for sign in lost if sign.state is AttemptState.CLAIMED]
    sent = tuple(sign.attempt_id for sign in lost if sign.state is AttemptState.SENT)
    given_up = store.lose_attempts(claimed, WORKER_LOST, states=(AttemptState.CLAIMED,))
    if sent:
        given_up += withdraw(store, set(sent) - _rightly_waiting(store, still_waiting(sent)))
    ask_to_clean(store, dispatcher, {store.tries(attempt_id)[0] for attempt_id in given_up if attempt_id in claimed})
    return given_up


def _rightly_waiting(store: Store, attempt_ids: Collection[int]) -> set[int]:
    """Those of the attempts whose campaigns still want them: not those of a campaign that was paused or whose window has
    closed while no worker had a slot for them."""
    wanting = {queued.id for queued in store.queue() if not is_of_window(queued.hold)}
    return {attempt_id for attempt_id in attempt_ids if store.tries(attempt_id)[0] in wanting}


def withdraw(store: Store, attempt_ids: Iterable[int], *, why: OutcomeDetail = MESSAGE_LOST) -> tuple[int, ...]:
    """Give up those of the attempts that nobody has claimed: their hosts are free and their runs go back, at no try, because
    `why` is a cancellation. Returns their ids."""
    lost = store.lose_attempts(tuple(attempt_ids), why, states=(AttemptState.SENT,))
    for attempt_id in lost:
        judgement.cleaned(store, attempt_id)
    return lost


def ask_to_clean(store: Store, dispatcher: Dispatcher, campaign_ids: Iterable[int]) -> None:
    """Ask for what the attempts of these campaigns have left to be removed."""
    for campaign_id in campaign_ids:
        dispatcher.clean(store.head(campaign_id).lab, campaign_id)


class Cleaning:
    """Asks for cleaning, again and again, as long as there is something to clean: ever more seldom, because a host that
    doesn't answer would keep a slot busy each time."""

    def __init__(self, patient: Patience | None = None, monotonic: Monotonic = time.monotonic) -> None:
        self._first = (patient or patience()).clean_again
        self._monotonic = monotonic
        self._looked = -math.inf
        self._asked: dict[int, tuple[float, float]] = {}

    def look(self, store: Store, dispatcher: Dispatcher) -> None:
        """Ask for what is due now; looks at most once every few seconds."""
        now = self._monotonic()
        if now - self._looked < self._first / 4:
            return
        self._looked, wanted = now, campaigns_to_clean(store)
        for campaign_id in wanted:
            due, pause = self._asked.get(campaign_id, (now, self._first))
            if due <= now:
                self._asked[campaign_id] = now + pause, min(2 * pause, _AGAIN_AT_MOST)
                ask_to_clean(store, dispatcher, [campaign_id])
        self._asked = {campaign_id: asked for campaign_id, asked in self._asked.items() if campaign_id in wanted}


def campaigns_to_clean(store: Store) -> frozenset[int]:
    """Campaigns whose lost attempts hold hosts, or that have VMs which no attempt in progress needs."""
    active = {queued.id for queued in store.queue()}
    found = {store.tries(attempt_id)[0] for attempt_id in store.lost_attempts()}
    for campaign_id in {vm.campaign_id for vm in store.live_vms()}:
        idle = store.idle_vms(campaign_id)
        if any(vm.state != "parked" or campaign_id not in active for vm in idle):
            found.add(campaign_id)
    return frozenset(found)
