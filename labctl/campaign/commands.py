"""What people ask of campaigns: submit, pause, resume, cancel, retry. May be called at any time, by anyone, twice at once.

All of it is on the store alone: whoever works on the lab sees it there within a second. Asking twice is as good as asking
once. What makes no sense for a campaign as it stands raises `SpecError`, and what would have two machines work on one
SQLite store `LabError` (`store-elsewhere`).
"""

from __future__ import annotations

import json
import platform
from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import metadata

from labctl import clock
from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, Purpose
from labctl.plan.matrix import Matrix, anchor_position, planned_cells, refuse_oversize, work_order
from labctl.plan.windows import refuse_ended_windows, refuse_too_short
from labctl.spec.documents import to_json
from labctl.store import CampaignHead, Store

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100
CANCELLED = OutcomeDetail(
    outcome=Outcome.CANCELLED,
    kind="cancelled",
    what="The run was not run.",
    why="The campaign was cancelled before.",
    todo="Submit the campaign again for the runs that are missing.",
)
CELL_STOPPED = "cell-stopped"
"""The kind of the reason for which the outcome policy ends runs of a cell without running them."""


@dataclass(frozen=True, kw_only=True)
class Retried:
    """How many runs go back, and where the campaign stands then."""

    runs: int
    state: CampaignState


def submit(
    store: Store,
    campaign: Campaign,
    lab: Lab,
    *,
    campaign_text: str,
    lab_text: str,
    again: bool = True,
    purpose: Purpose = Purpose.MEASURE,
) -> int:
    """Store a campaign with all its cells and runs, and return its id.

    Raises `SpecError` when it has more runs than its cap, none that can run in the lab, or windows in which none could
    run; without `again` also when a campaign with the same content has not ended.
    """
    matrix, now = Matrix(campaign, lab), clock.now()
    counts = refuse_oversize(campaign, lab, matrix=matrix)
    refuse_ended_windows(campaign, now)
    refuse_too_short(campaign, lab, now=now, matrix=matrix)
    store.work_here()
    return store.submit(
        campaign,
        lab,
        campaign_text=campaign_text,
        lab_text=lab_text,
        versions=_versions(),
        cells=planned_cells(campaign, lab, matrix=matrix),
        order=work_order(campaign, counts.applicable, anchor_position(campaign, lab, matrix=matrix)),
        digest=content_digest(campaign, lab),
        purpose=purpose,
        once=not again,
    )


def content_digest(campaign: Campaign, lab: Lab) -> str:
    """Names what a campaign measures where: equal for two that would give the same figures.

    When it is worked on, how urgently, with which cap and who is told of it are no part of that, and neither is what the
    lab file says beside the lab's name: an edited lab is the same lab.
    """
    measured = replace(campaign, max_runs=0, priority=0, windows=None, notify=())
    text = json.dumps([lab.name, json.loads(to_json(measured))], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def pause(store: Store, campaign_id: int, *, now: bool = False, why: str = "") -> None:
    """Start no more runs of a campaign. Attempts in progress finish; with `now` they are stopped, and their runs go back.

    Raises `SpecError` for a campaign that has ended.
    """
    paused = store.set_state(
        campaign_id, CampaignState.PAUSED, stop_attempts=now, why=why, only_from=(CampaignState.ACTIVE,)
    )
    if not paused:
        _refuse_unless(store, campaign_id, CampaignState.PAUSED, "paused")
    if now and not paused:
        interrupt(store, campaign_id)


def interrupt(store: Store, campaign_id: int) -> None:
    """Pause a campaign that has not ended and ask its attempts in progress to end at their next step; their runs go
    back."""
    store.set_state(
        campaign_id,
        CampaignState.PAUSED,
        stop_attempts=True,
        why=store.head(campaign_id).why,
        only_from=(CampaignState.ACTIVE, CampaignState.PAUSED),
    )


def resume(store: Store, campaign_id: int) -> None:
    """Let a campaign go on that is paused, or that was stopped by the outcome policy.

    Raises `SpecError` for one that is done or cancelled, or whose windows have ended.
    """
    refuse_ended(store, campaign_id)
    refuse_ended_windows(store.head(campaign_id).campaign, clock.now())
    store.work_here()
    waiting = (CampaignState.PAUSED, CampaignState.STOPPED)
    if not store.set_state(campaign_id, CampaignState.ACTIVE, only_from=waiting):
        _refuse_unless(store, campaign_id, CampaignState.ACTIVE, "resumed")


def cancel(store: Store, campaign_id: int, *, now: bool = False, why: str = "") -> int:
    """End a campaign for good: runs that wait are not run any more. Returns how many those are.

    Attempts in progress finish and their results are kept; with `now` they are stopped. Raises `SpecError` for a campaign
    that is done.
    """
    cancelled = store.set_state(
        campaign_id,
        CampaignState.CANCELLED,
        stop_attempts=now,
        why=why,
        only_from=(CampaignState.ACTIVE, CampaignState.PAUSED, CampaignState.STOPPED),
    )
    if not cancelled:
        _refuse_unless(store, campaign_id, CampaignState.CANCELLED, "cancelled")
    if now and not cancelled:
        head = store.head(campaign_id)
        store.set_state(campaign_id, CampaignState.CANCELLED, stop_attempts=True, why=head.why)
    return store.end_pending(campaign_id, CANCELLED)


def retry(store: Store, campaign_id: int, outcomes: Collection[Outcome], *, stopped: bool = False) -> Retried:
    """Send the runs back that ended with one of these outcomes, and with `stopped` those that the outcome policy ended
    without running them. A campaign that has ended goes on; one that is paused stays so.

    Raises `SpecError` for one that was cancelled, that was imported, or whose windows have ended.
    """
    if store.head(campaign_id).purpose is Purpose.IMPORTED:
        raise SpecError(
            f"Campaign {campaign_id} can't be retried: it was imported.",
            why="Its outputs were made by hand, and the lab that they come from is not known.",
            todo="Submit a campaign of your own with the same cells.",
        )
    if store.state(campaign_id) is CampaignState.CANCELLED:
        raise _refusal(store, campaign_id, "retried")
    refuse_ended_windows(store.head(campaign_id).campaign, clock.now())
    store.work_here()
    runs = store.reopen(campaign_id, outcomes, unrun=(CELL_STOPPED,) if stopped else ())
    if runs:
        store.set_state(campaign_id, CampaignState.ACTIVE, only_from=(CampaignState.DONE, CampaignState.STOPPED))
    elif store.has_open_runs(campaign_id):
        # An earlier call was killed between the two steps.
        store.set_state(campaign_id, CampaignState.ACTIVE, only_from=(CampaignState.DONE,))
    return Retried(runs=runs, state=store.state(campaign_id))


def set_priority(store: Store, campaign_id: int, priority: int) -> None:
    """Change the rank of a campaign among others. Raises `SpecError` for one that has ended, and for a priority that is
    none."""
    if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise SpecError(f"{priority} is no priority.", todo=f"Name one from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}.")
    if store.state(campaign_id).ended:
        raise _refusal(store, campaign_id, "given another priority")
    store.set_priority(campaign_id, priority)


def refuse_ended(store: Store, campaign_id: int) -> None:
    """Raise `SpecError` for a campaign that is done or cancelled, or that isn't there."""
    if store.state(campaign_id) in (CampaignState.DONE, CampaignState.CANCELLED):
        raise _refusal(store, campaign_id, "resumed")


def _refuse_unless(store: Store, campaign_id: int, wanted: CampaignState, done: str) -> None:
    if store.state(campaign_id) is not wanted:
        raise _refusal(store, campaign_id, done)


def _refusal(store: Store, campaign_id: int, done: str) -> SpecError:
    head = store.head(campaign_id)
    return SpecError(
        f"Campaign {campaign_id} can't be {done}: it is {head.state}.", why=head.why, todo=_instead(head, done)
    )


def _instead(head: CampaignHead, done: str) -> str:
    """What to do with a campaign that has ended."""
    if head.state is CampaignState.STOPPED and done == "paused":
        return f"Nothing of it is started until `labctl resume {head.id}`."
    if head.state is CampaignState.CANCELLED:
        return f"See its report, `labctl report {head.id}`; to measure what is missing submit it again."
    return f"See its report, `labctl report {head.id}`; `labctl retry {head.id}` runs again what failed."


def _versions() -> dict[str, str]:
    names = ("labctl", "celery", "kombu", "redis", "libvirt-python")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
