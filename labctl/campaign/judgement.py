"""What becomes of a run after an attempt, as the outcome policy says."""

from __future__ import annotations

from labctl.campaign.policy import goes_back
from labctl.model.result import AttemptResult
from labctl.store import After, AttemptHandle, Store


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
