"""Who is still alive: attempts without a sign of life are given up, and what they left is cleaned."""

from __future__ import annotations

import time
from collections.abc import Sequence

from labctl.campaign import judgement
from labctl.campaign.dispatch import Dispatcher
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState
from labctl.store import MESSAGE_LOST, WORKER_LOST, CampaignHead, Sign, Store

SILENT_SECONDS = 30.0
"""A claimed attempt without a heartbeat for so long is lost. Workers beat every 2 s."""
UNCLAIMED_SECONDS = 60.0
"""A sent attempt that nobody has claimed for so long is lost: its message is."""


class Watch:
    """Watches signs of life by its own clock, so that no step of a wall clock makes anybody seem dead."""

    def __init__(self, *, silent: float = SILENT_SECONDS, unclaimed: float = UNCLAIMED_SECONDS) -> None:
        self._limits = {AttemptState.CLAIMED: silent, AttemptState.SENT: unclaimed}
        self._seen: dict[int, tuple[Sign, float]] = {}

    def silent(self, store: Store) -> tuple[int, ...]:
        """Attempts that have given no sign of life for too long; attempts that are seen for the first time have just
        given one."""
        now, seen = time.monotonic(), {}
        for sign in store.signs():
            before, since = self._seen.get(sign.attempt_id, (None, now))
            seen[sign.attempt_id] = sign, since if before == sign else now
        self._seen = seen
        return tuple(id_ for id_, (sign, since) in seen.items() if now - since > self._limits[sign.state])


def give_up_lost(store: Store, watch: Watch, lab: Lab, dispatcher: Dispatcher) -> tuple[int, ...]:
    """Void the tokens of attempts without a sign of life, and have their VMs removed. Returns their ids."""
    silent = watch.silent(store)
    lost = store.lose_attempts(silent, WORKER_LOST, states=(AttemptState.CLAIMED,))
    lost += store.lose_attempts(silent, MESSAGE_LOST, states=(AttemptState.SENT,))
    for campaign_id in {store.tries(attempt)[0] for attempt in lost}:
        dispatcher.clean(lab, campaign_id)
    return lost


def give_up_dead(store: Store, head: CampaignHead, dead: Sequence[int], dispatcher: Dispatcher) -> None:
    """Void the tokens of attempts of a campaign whose worker process is known to have died; have their VMs removed."""
    if dead:
        store.lose_attempts(dead, WORKER_LOST)
        dispatcher.clean(head.lab, head.id)


def withdraw_unclaimed(store: Store, campaign_id: int) -> None:
    """Give up attempts of a campaign whose messages are lost with their broker. Nobody began them, so their hosts are
    free and their runs go back."""
    unclaimed = [item.id for item in store.active_attempts(campaign_id) if item.state is AttemptState.SENT]
    store.lose_attempts(unclaimed, MESSAGE_LOST, states=(AttemptState.SENT,))
    for attempt_id in unclaimed:
        judgement.cleaned(store, attempt_id)


def clean_lost(store: Store, lab: Lab, dispatcher: Dispatcher) -> None:
    """Ask again for the cleaning of lost attempts that still hold hosts of the lab: an earlier try may have failed."""
    for campaign_id in {store.tries(attempt)[0] for attempt in store.lost_attempts(lab=lab.name)}:
        dispatcher.clean(lab, campaign_id)
