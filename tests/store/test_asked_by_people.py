"""What the commands of people ask of the store: submitting once, changing states, sending runs back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from labctl import clock
from labctl.errors import SpecError
from labctl.model.campaign import PlannedCell
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, Purpose
from labctl.store import MESSAGE_LOST, WORKER_LOST, After, AttemptHandle, AttemptStart, Contents, Store
from labctl.store.engines import make_engine
from labctl.store.place import parse_url
from labctl.store.tables import campaigns
from tests.campaign.wall import Wall
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


def sent_at(store: Store, campaign: int, host: str, *, by: float | None = None) -> AttemptHandle:
    """The next run, sent."""
    run = store.pending_runs(campaign, limit=1)[0]
    resources = frozenset({f"host:{host}", f"machine:{host}"})
    asked = AttemptStart(run_id=run.id, order=an_order(), resources=resources, estimate=1.0, claim_by=by)
    (handle,) = store.start_attempts("lab", [asked])
    assert handle is not None
    return handle


def started(store: Store, campaign: int) -> AttemptHandle:
    handle = sent_at(store, campaign, "a")
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


NOT_ACTIVE = [CampaignState.PAUSED, CampaignState.STOPPED, CampaignState.CANCELLED]


@pytest.mark.parametrize("state", NOT_ACTIVE)
def test_what_nobody_has_begun_goes_back_with_the_change_of_state_and_what_was_begun_does_not(
    store: Store, state: CampaignState
) -> None:
    campaign = submit(store, runs=3)
    begun = started(store, campaign)
    (given,) = [queued.share for queued in store.queue()]
    sent = sent_at(store, campaign, "b")
    assert store.set_state(campaign, state)
    assert [(sign.attempt_id, sign.state) for sign in store.signs()] == [(begun.id, "claimed")]
    assert {line.resource for line in store.leases()} == {"host:a", "machine:a"}
    assert store.run_counts(campaign) == {"active": 1, "pending": 2}
    assert store.tries(sent.id)[1] == 0
    assert store.claim(sent, worker="w:1") is None, "its message comes late"
    assert store.set_state(campaign, CampaignState.ACTIVE)
    assert [queued.share for queued in store.queue()] == [given]
    assert store.claim(sent, worker="w:1") is None, "the token is void for good"
    assert store.claim(sent_at(store, campaign, "b"), worker="w:1") is not None


def test_an_attempt_whose_campaign_is_not_active_is_never_begun_but_given_back(store: Store, url: str) -> None:
    """A store in which the state was changed and the attempt left, as one of an older labctl may be."""
    campaign = submit(store, runs=1)
    sent = sent_at(store, campaign, "a")
    with make_engine(parse_url(url)).begin() as db:
        db.execute(update(campaigns).values(state=CampaignState.PAUSED))
    assert store.claim(AttemptHandle(id=sent.id, token="0" * 32), worker="w:1") is None
    assert [sign.attempt_id for sign in store.signs()] == [sent.id], "a message that is not its own changes nothing"
    assert store.claim(sent, worker="w:1") is None
    assert (store.signs(), store.leases(), store.run_counts(campaign)) == ((), (), {"pending": 1})
    assert store.tries(sent.id)[1] == 0


def test_an_attempt_is_not_begun_after_the_moment_that_was_set_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall(monkeypatch)
    campaign = submit(store, runs=2)
    in_time, late = (sent_at(store, campaign, host, by=wall.at + 5) for host in ("a", "b"))
    wall.pass_by(5)
    assert store.claim(in_time, worker="w:1") is not None
    wall.pass_by(1)
    assert store.claim(late, worker="w:1") is None
    assert {line.resource for line in store.leases()} == {"host:a", "machine:a"}
    assert store.run_counts(campaign) == {"active": 1, "pending": 1}


def test_a_cancelled_attempt_gives_back_what_its_campaign_was_given_for_it(store: Store) -> None:
    campaign = submit(store, runs=3)
    started(store, campaign)
    sent = sent_at(store, campaign, "b")
    assert [queued.share for queued in store.queue()] == [2.0]
    store.lose_attempts([sent.id], MESSAGE_LOST)
    assert [queued.share for queued in store.queue()] == [1.0]
    claimed = sent_at(store, campaign, "c")
    assert store.claim(claimed, worker="w:1") is not None
    store.lose_attempts([claimed.id], WORKER_LOST)
    assert [queued.share for queued in store.queue()] == [2.0], "it has used its hosts"


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
