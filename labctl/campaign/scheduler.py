"""Which runs are started now. May be called at any time, by anyone, twice at once."""

from __future__ import annotations

from labctl.campaign.dispatch import Dispatcher
from labctl.model.campaign import Cell
from labctl.model.outcome import CampaignState, RunState
from labctl.plan.applicability import placements
from labctl.plan.resolve import resolve
from labctl.plan.resources import resources_of
from labctl.store import AttemptHandle, AttemptStart, CampaignHead, Store

_AHEAD = 20
"""How many pending runs are looked at for one whose hosts are free."""


def advance(store: Store, head: CampaignHead, dispatcher: Dispatcher) -> CampaignState:
    """Do what can be done now: start the next runs whose hosts are free, end a finished campaign.

    Returns where the campaign stands. A run is started at most once whoever else calls this, because taking its leases
    and creating its attempt is one transaction.
    """
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
