"""What the commands of people ask of the store: submitting once, changing states, sending runs back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl import clock
from labctl.errors import SpecError
from labctl.model.campaign import PlannedCell
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, Purpose
from labctl.store import WORKER_LOST, After, AttemptHandle, AttemptStart, Contents, Store
from tests.values import a_campaign, a_cell, a_lab, a_result, an_order

STOPPED = OutcomeDetail(outcome=Outcome.CANCELLED, kind="cell-stopped", what="It fails on every host.")
NO_HOST = OutcomeDetail(outcome=Outcome.LAB_ERROR, kind="no-host", what="All hosts are out.")


def submit(store: Store, *, runs: int = 3, lab: str = "lab", digest: str = "d", once: bool = False) -> int:
    return store.submit(
        a_campaign(),
        replace(a_lab(), name=lab),
        campaign_text="campaign: small\n",
        lab_text="lab: lab\n",
        versions={},
        cells=[PlannedCell(cell=a_cell(nic_model="virtio"))],
        order=[(0, number, Purpose.MEASURE) for number in range(1, runs + 1)],
        digest=digest,
        once=once,
    )


def started(store: Store, campaign: int) -> AttemptHandle:
    run = store.pending_runs(campaign, limit=1)[0]
    (handle,) = store.start_attempts(
        "lab", [AttemptStart(run_id=run.id, order=an_order(), resources=frozenset({"host:a"}), estimate=1.0)]
    )
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    return handle


def ended(store: Store, campaign: int, outcome: Outcome, *, again: bool = False) -> None:
    assert store.accept(started(store, campaign), a_result(outcome, kind="x"), After(again=again)) is not None


def test_the_same_content_is_submitted_once_while_it_has_not_ended(store: Store) -> None:
    first = submit(store, once=True)
    with pytest.raises(SpecError, match=f"Campaign {first} .* is active") as refusal:
        submit(store, once=True)
    assert "--again" in refusal.value.todo
    with pytest.raises(SpecError, match=f"Campaign {first} .* is active"):
        store.refuse_second("d")
    store.refuse_second("another")
    assert submit(store, once=True, digest="another") != first
    store.set_state(first, CampaignState.PAUSED)
    with pytest.raises(SpecError, match="is paused"):
        submit(store, once=True)
    second = submit(store)
    for campaign in (first, second):
        store.set_state(campaign, CampaignState.CANCELLED)
    assert store.same_content("d") == ()
    submit(store, once=True)


def test_a_state_is_changed_only_from_those_that_were_meant(store: Store) -> None:
    campaign = submit(store)
    store.set_state(campaign, CampaignState.DONE)
    assert not store.set_state(campaign, CampaignState.PAUSED, only_from=(CampaignState.ACTIVE,))
    assert store.state(campaign) is CampaignState.DONE
    assert store.set_state(campaign, CampaignState.ACTIVE, only_from=(CampaignState.DONE,))


def test_runs_go_back_by_outcome_or_by_the_reason_why_they_were_not_run(store: Store) -> None:
    campaign = submit(store, runs=6)
    for outcome in (Outcome.OK, Outcome.FAILED, Outcome.LAB_ERROR):
        ended(store, campaign, outcome)
    fourth, fifth, sixth = (run.id for run in store.pending_runs(campaign, limit=9))
    store.end_pending(campaign, STOPPED, run_ids=[fourth])
    store.end_pending(campaign, NO_HOST, run_ids=[fifth])
    store.end_pending(campaign, OutcomeDetail(outcome=Outcome.CANCELLED, kind="cancelled"), run_ids=[sixth])
    assert store.run_counts(campaign) == {"ok": 1, "failed": 1, "lab-error": 2, "cancelled": 2}
    assert store.reopen(campaign, [], unrun=["cell-stopped"]) == 1
    assert store.run_counts(campaign) == {"ok": 1, "failed": 1, "lab-error": 2, "cancelled": 1, "pending": 1}
    assert store.reopen(campaign, [Outcome.LAB_ERROR]) == 2
    assert store.run_counts(campaign) == {"ok": 1, "failed": 1, "cancelled": 1, "pending": 3}
    assert store.reopen(campaign, [Outcome.LAB_ERROR], unrun=["cell-stopped"]) == 0
    again = [run for run in store.record(campaign).runs if run.state == "pending"]
    assert [run.unrun for run in again] == [None, None, None]
    assert [len(run.earlier) for run in again] == [1, 0, 0], "what was tried before stays in the record"


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.LAB_ERROR])
def test_no_run_goes_back_in_a_cancelled_campaign(store: Store, outcome: Outcome) -> None:
    campaign = submit(store, runs=1)
    handle = started(store, campaign)
    store.set_state(campaign, CampaignState.CANCELLED)
    assert store.accept(handle, a_result(outcome, kind="x"), After(again=True)) is not None
    assert store.run_counts(campaign) == {outcome: 1}
    assert not store.has_open_runs(campaign)


def test_no_run_of_a_lost_attempt_goes_back_in_a_cancelled_campaign(store: Store) -> None:
    campaign = submit(store, runs=1)
    handle = started(store, campaign)
    store.set_state(campaign, CampaignState.CANCELLED)
    store.lose_attempts([handle.id], WORKER_LOST)
    store.cleaned(handle.id, again=True)
    assert store.run_counts(campaign) == {"lab-error": 1}
    assert store.leases() == ()


def test_labs_are_those_of_campaigns_each_with_its_newest(store: Store) -> None:
    assert store.labs() == {}
    submit(store)
    second, third = submit(store), submit(store, lab="other")
    assert store.labs() == {"lab": second, "other": third}


def test_the_latest_ends_are_those_of_attempts_that_brought_something_back(store: Store) -> None:
    campaign, other = submit(store, runs=5), submit(store, runs=1)
    ended(store, other, Outcome.OK)
    assert store.latest_ends(campaign, limit=9) == ()
    ended(store, campaign, Outcome.OK)
    ended(store, campaign, Outcome.CANCELLED, again=True)
    ended(store, campaign, Outcome.LAB_ERROR, again=True)
    ends = store.latest_ends(campaign, limit=9)
    assert len(ends) == 2
    assert ends[0] >= ends[1]
    assert store.latest_ends(campaign, limit=1) == ends[:1]


def test_the_contents_are_counted(store: Store) -> None:
    assert store.contents() == Contents(campaigns=0, runs=0, attempts=0, raw=0, raw_bytes=0, forgotten=0)
    campaign = submit(store)
    ended(store, campaign, Outcome.OK)
    ended(store, campaign, Outcome.FAILED)
    kept = store.contents()
    assert (kept.campaigns, kept.runs, kept.attempts, kept.raw, kept.forgotten) == (1, 3, 2, 2, 0)
    assert kept.raw_bytes > 0
    store.prune_raw(older_than=clock.now() + 1)
    left = store.contents()
    assert (left.raw, left.raw_bytes, left.forgotten) == (0, 0, 2)
