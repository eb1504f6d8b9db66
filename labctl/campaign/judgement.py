"""What becomes of runs, cells, campaigns and hosts after an attempt, as the outcome policy says.

What an attempt's result leads to for its run and its hosts is one transaction. The rest (stopping a cell or a campaign,
telling people) follows from what is stored, so it can be done by anyone at any time: by the worker right after its result,
and by `review` in the engine's loop, should the worker have died there.
"""

from __future__ import annotations

import logging

from labctl import clock
from labctl.campaign import adaptive, health, policy
from labctl.campaign.policy import LIMITS
from labctl.campaign.stops import stop_campaign, stop_cells
from labctl.errors import LabError
from labctl.model.outcome import CampaignState, HostState, Outcome, OutcomeDetail, Purpose
from labctl.model.patience import patience
from labctl.model.result import AttemptResult
from labctl.store import After, AttemptHandle, CampaignHead, Event, Standing, Store

log = logging.getLogger(__name__)


def accept(store: Store, handle: AttemptHandle, result: AttemptResult) -> bool:
    """Take an attempt's result as the outcome policy says. False when its token is void: the result is then dropped."""
    standing = store.standing(handle.id)
    after = _after(standing, result.detail)
    accepted = store.accept(handle, result, after)
    if accepted is None:
        return False
    try:
        _follow_up(store, standing, result.detail, after)
        if standing.campaign.adaptive is not None:
            adaptive.consider(store, standing.campaign_id, standing.cell)
    except LabError as error:
        log.warning(
            "attempt %s: its result is stored; what follows from it is left to the engine: %s", handle.id, error
        )
    return True


def cleaned(store: Store, attempt_id: int) -> None:
    """A lost attempt's VMs are gone: its hosts are free and its run goes back, or ends when it has no tries left."""
    standing = store.standing(attempt_id)
    if standing.outcome is None:
        return
    detail = OutcomeDetail(outcome=standing.outcome, kind=standing.kind)
    after = _after(standing, detail)
    store.cleaned(attempt_id, again=after.again, not_before=after.not_before)
    _follow_up(store, standing, detail, after)


def unclean(store: Store, attempt_id: int, host: str, error: LabError) -> None:
    """What an attempt left on a host could not be removed: a strike against the host, like any lab-error of it."""
    standing = store.standing(attempt_id)
    detail = OutcomeDetail(
        outcome=Outcome.LAB_ERROR, kind=error.kind, what=error.what, why=error.why, todo=error.todo, host=host
    )
    if store.blame(standing.lab.name, detail, _after(standing, detail)):
        tell_of_quarantine(store, store.head(standing.campaign_id))


def review(store: Store, campaign_id: int) -> None:
    """Do what the results of a campaign lead to, should nobody have done it yet. Any number of times, by anyone."""
    head = store.head(campaign_id)
    if head.purpose is Purpose.HEALTH:
        health.settle(store, campaign_id)
        return
    tell_of_quarantine(store, head)
    troubles = store.troubles(campaign_id)
    for trouble in troubles:
        if trouble.recorded:
            _tell_of_first_failure(store, campaign_id, f"A run ended as {trouble.outcome} ({trouble.kind}).")
            break
    if head.state is CampaignState.ACTIVE and troubles:
        stop_cells(store, head, troubles)
        stop_campaign(store, head, troubles)


def tell_of_quarantine(store: Store, head: CampaignHead) -> None:
    """Keep an event for each host of a campaign's lab that is quarantined now."""
    for host in store.hosts(head.lab.name):
        if host.state is HostState.QUARANTINED and host.host in head.lab.hosts:
            event = Event(
                scope=f"lab-{host.lab}",
                key=f"quarantine-{host.host}-{host.since:.3f}",
                campaign_id=head.id,
                kind="quarantine",
                what=f"Host {host.host} of lab {host.lab} is quarantined: {host.why} "
                f"It is given no runs until a health check has passed.",
                at=host.since,
            )
            store.tell(event)


def _after(standing: Standing, detail: OutcomeDetail) -> After:
    campaign, lab, now = standing.campaign, standing.lab, clock.now()
    return After(
        again=policy.goes_back(detail, tries=standing.tries, retries=campaign.lab_error_retries),
        not_before=now + policy.back_off(campaign, detail, tries=standing.tries),
        blamed=policy.blamed(detail, used=standing.hosts, lab=lab),
        cleared=policy.cleared(detail, used=standing.hosts, lab=lab),
        quarantine_after=LIMITS.strikes,
        check_at=now + patience().check_first,
    )


def _follow_up(store: Store, standing: Standing, detail: OutcomeDetail, after: After) -> None:
    if standing.purpose is Purpose.HEALTH:
        health.settle(store, standing.campaign_id)
        return
    if standing.campaign.adaptive is not None and not after.again:
        adaptive.consider(store, standing.campaign_id, standing.cell)
    if detail.outcome in (Outcome.FAILED, Outcome.LAB_ERROR):
        if not after.again:
            said = f" {detail.what}" if detail.what else ""
            what = (
                f"Run {standing.run_id} ended as {detail.outcome} ({detail.kind}) on {'+'.join(standing.hosts)}.{said}"
            )
            _tell_of_first_failure(store, standing.campaign_id, what)
        review(store, standing.campaign_id)


def _tell_of_first_failure(store: Store, campaign_id: int, what: str) -> None:
    scope = f"campaign-{campaign_id}"
    event = Event(
        scope=scope, key="first-failure", campaign_id=campaign_id, kind="first-failure", what=what, at=clock.now()
    )
    store.tell(event)
