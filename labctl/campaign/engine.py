"""Submitting campaigns and working them off. Everything here may be called at any time, by anyone, twice at once."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib import metadata

from labctl.campaign.dispatch import Dispatcher
from labctl.campaign.policy import goes_back
from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState, CampaignState, Purpose, RunState
from labctl.model.result import AttemptResult
from labctl.plan.applicability import placements
from labctl.plan.matrix import block_order, planned_cells, refuse_oversize
from labctl.plan.resolve import resolve
from labctl.plan.resources import resources_of
from labctl.store import MESSAGE_LOST, WORKER_LOST, After, AttemptHandle, AttemptStart, CampaignHead, Store

SILENT_SECONDS = 30.0
"""A claimed attempt without a heartbeat for so long is lost. Workers beat every 2 s."""
UNCLAIMED_SECONDS = 60.0
"""A sent attempt that nobody has claimed for so long is lost: its message is."""
_AHEAD = 20
"""How many pending runs are looked at for one whose hosts are free."""


def submit(store: Store, campaign: Campaign, lab: Lab, *, campaign_text: str, lab_text: str) -> int:
    """Store a campaign with all its cells and runs, and return its id.

    Raises `SpecError` when it has more runs than its cap, or none that can run in the lab.
    """
    counts = refuse_oversize(campaign, lab)
    return store.submit(
        campaign,
        lab,
        campaign_text=campaign_text,
        lab_text=lab_text,
        versions=_versions(),
        cells=planned_cells(campaign, lab),
        order=(
            (position, replicate, Purpose.MEASURE)
            for replicate in range(1, campaign.repeats + 1)
            for position in block_order(campaign, counts.applicable, replicate)
        ),
    )


def _versions() -> dict[str, str]:
    names = ("labctl", "celery", "kombu", "redis", "libvirt-python")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def advance(store: Store, head: CampaignHead, dispatcher: Dispatcher) -> CampaignState:
    """Do what can be done now: give up lost attempts, start the next runs whose hosts are free, end a finished campaign.

    Returns where the campaign stands. A run is started at most once whoever else calls this, because taking its leases
    and creating its attempt is one transaction.
    """
    give_up_lost(store, head.lab, dispatcher)
    state = store.state(head.id)
    if state is not CampaignState.ACTIVE:
        return state
    held = {line.resource for line in store.leases(head.lab.name)}
    for run in store.pending_runs(head.id, limit=_AHEAD):
        handle = _start(store, head, run.id, run.cell, held)
        if handle is not None:
            dispatcher.attempt(head.lab, handle)
    counts = store.run_counts(head.id)
    if not counts.get(RunState.PENDING) and not counts.get(RunState.ACTIVE):
        store.set_state(head.id, CampaignState.DONE)
        return CampaignState.DONE
    return CampaignState.ACTIVE


def _start(store: Store, head: CampaignHead, run_id: int, cell: Cell, held: set[str]) -> AttemptHandle | None:
    """Start a run in the first of its placements whose hosts are free; None when there is none. Adds to `held`."""
    for placement in placements(head.campaign, cell, head.lab):
        resources = resources_of(placement, head.lab)
        if resources & held:
            continue
        order = resolve(head.campaign, cell, head.lab, placement=placement)
        (handle,) = store.start_attempts(head.lab.name, [AttemptStart(run_id=run_id, order=order, resources=resources)])
        if handle is not None:
            held |= resources
            return handle
    return None


def give_up_lost(store: Store, lab: Lab, dispatcher: Dispatcher) -> tuple[int, ...]:
    """Void the tokens of attempts without a sign of life, and have their VMs removed. Returns their ids."""
    lost = _silent(store)
    for campaign_id in {store.tries(attempt)[0] for attempt in lost}:
        dispatcher.clean(lab, campaign_id)
    return lost


_seen: dict[int, tuple[AttemptState, int, float]] = {}


def _silent(store: Store) -> tuple[int, ...]:
    now = time.monotonic()
    lost: list[int] = []
    for sign in store.signs():
        state, beats, since = _seen.get(sign.attempt_id, (None, -1, now))
        if (state, beats) != (sign.state, sign.beats):
            _seen[sign.attempt_id] = sign.state, sign.beats, now
            continue
        limit = SILENT_SECONDS if sign.state is AttemptState.CLAIMED else UNCLAIMED_SECONDS
        if now - since > limit:
            why = WORKER_LOST if sign.state is AttemptState.CLAIMED else MESSAGE_LOST
            lost += store.lose_attempts([sign.attempt_id], why, states=(sign.state,))
    return tuple(lost)


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
        cleaned(store, attempt_id)


def clean_lost(store: Store, lab: Lab, dispatcher: Dispatcher) -> None:
    """Ask again for the cleaning of lost attempts that still hold hosts of the lab: an earlier try may have failed."""
    for campaign_id in {store.tries(attempt)[0] for attempt in store.lost_attempts(lab=lab.name)}:
        dispatcher.clean(lab, campaign_id)


def accept(store: Store, handle: AttemptHandle, result: AttemptResult) -> bool:
    """Take an attempt's result as the outcome policy says. False when its token is void: the result is then dropped."""
    campaign_id, tries = store.tries(handle.id)
    retries = store.head(campaign_id).campaign.lab_error_retries
    after = After(again=goes_back(result.detail.outcome, tries=tries, retries=retries))
    return store.accept(handle, result, after) is not None


def cleaned(store: Store, attempt_id: int) -> None:
    """A lost attempt's VMs are gone: its hosts are free and its run goes back, or ends when it has no tries left."""
    campaign_id, tries = store.tries(attempt_id)
    store.cleaned(attempt_id, again=tries <= store.head(campaign_id).campaign.lab_error_retries)


def interrupt(store: Store, campaign_id: int) -> None:
    """Pause a campaign and ask its attempts in progress to end at their next step; their runs go back."""
    store.set_state(campaign_id, CampaignState.PAUSED, stop_attempts=True)


def resume(store: Store, campaign_id: int) -> None:
    """Let a paused campaign go on. Raises `SpecError` for one that is done or cancelled."""
    refuse_ended(store, campaign_id)
    store.set_state(campaign_id, CampaignState.ACTIVE)


def refuse_ended(store: Store, campaign_id: int) -> None:
    """Raise `SpecError` for a campaign that is done or cancelled, or that isn't there."""
    state = store.state(campaign_id)
    if state in (CampaignState.DONE, CampaignState.CANCELLED):
        raise SpecError(
            f"Campaign {campaign_id} can't be resumed: it is {state}.",
            todo=f"See its report: `labctl report {campaign_id}`.",
        )
