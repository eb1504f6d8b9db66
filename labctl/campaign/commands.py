"""What people ask of campaigns: submit, pause, resume. May be called at any time, by anyone, twice at once."""

from __future__ import annotations

import platform
from importlib import metadata

from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, Purpose
from labctl.plan.matrix import block_order, planned_cells, refuse_oversize
from labctl.store import Store


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
