"""What the store tells the outcome policy: how attempts of cells ended, on which hosts, and what of it is forgiven."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.model.campaign import PlannedCell
from labctl.model.outcome import AttemptState, CampaignState, HostState, Outcome, OutcomeDetail, Purpose
from labctl.store import WORKER_LOST, After, AttemptHandle, AttemptStart, Event, Store, VmRecord
from tests.values import a_campaign, a_cell, a_lab, a_result, an_order

VIRTIO = a_cell(nic_model="virtio")
UNREACHABLE = OutcomeDetail(outcome=Outcome.LAB_ERROR, kind="host-unreachable", what="Host a does not answer.")


@pytest.fixture
def campaign(store: Store) -> int:
    return store.submit(
        a_campaign(),
        a_lab(),
        campaign_text="c",
        lab_text="l",
        versions={},
        cells=[PlannedCell(cell=VIRTIO)],
        order=[(0, replicate, Purpose.MEASURE) for replicate in range(1, 5)],
    )


def begin(store: Store, campaign: int, host: str = "a") -> AttemptHandle:
    run = store.pending_runs(campaign, limit=1)[0]
    asked = AttemptStart(run_id=run.id, order=an_order(host), resources=frozenset({f"host:{host}"}))
    (handle,) = store.start_attempts("lab", [asked])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    return handle


def end(store: Store, campaign: int, host: str, outcome: Outcome, kind: str, after: After | None = None) -> None:
    handle = begin(store, campaign, host)
    assert store.accept(handle, a_result(outcome, kind=kind), after or After()) is not None


def test_troubles_name_the_hosts_on_which_a_cell_ended_so_and_what_was_for_good(store: Store, campaign: int) -> None:
    end(store, campaign, "a", Outcome.LAB_ERROR, "boot-timeout", After(again=True))
    end(store, campaign, "b", Outcome.LAB_ERROR, "boot-timeout", After(blamed=("b",)))
    end(store, campaign, "a", Outcome.FAILED, "connection-lost")
    found = {(item.outcome, item.kind): item for item in store.troubles(campaign)}
    boots = found[Outcome.LAB_ERROR, "boot-timeout"]
    assert (boots.cell, boots.hosts, boots.attempts, boots.recorded) == (VIRTIO.id, {"a", "b"}, 2, 1)
    lost = found[Outcome.FAILED, "connection-lost"]
    assert lost.recorded == 1
    assert store.detail(lost.latest).kind == "connection-lost"


def test_what_was_before_runs_went_back_is_forgiven(store: Store, campaign: int) -> None:
    end(store, campaign, "a", Outcome.FAILED, "connection-lost")
    assert store.reopen(campaign, [Outcome.FAILED]) == 1
    assert store.troubles(campaign) == ()
    end(store, campaign, "b", Outcome.FAILED, "connection-lost")
    assert [item.hosts for item in store.troubles(campaign)] == [{"b"}]


@pytest.mark.parametrize(("ended", "troubles"), [(CampaignState.STOPPED, 0), (CampaignState.PAUSED, 1)])
def test_what_was_before_a_campaign_that_had_ended_went_on_is_forgiven(
    store: Store, campaign: int, ended: CampaignState, troubles: int
) -> None:
    end(store, campaign, "a", Outcome.FAILED, "connection-lost")
    store.set_state(campaign, ended)
    store.set_state(campaign, CampaignState.ACTIVE)
    assert len(store.troubles(campaign)) == troubles


def test_an_attempts_standing_says_whose_it_is_and_how_it_ended(store: Store, campaign: int) -> None:
    handle = begin(store, campaign)
    before = store.standing(handle.id)
    assert (before.campaign_id, before.cell, before.tries, before.hosts) == (campaign, VIRTIO.id, 1, ("a",))
    assert (before.state, before.outcome, before.campaign, before.lab) == (
        AttemptState.CLAIMED,
        None,
        a_campaign(),
        a_lab(),
    )
    store.lose_attempts([handle.id], WORKER_LOST)
    after = store.standing(handle.id)
    assert (after.state, after.outcome, after.kind) == (AttemptState.LOST, Outcome.LAB_ERROR, "worker-lost")


def test_a_token_is_held_until_the_attempt_is_given_up_whatever_people_ask_of_it(store: Store, campaign: int) -> None:
    handle = begin(store, campaign)
    store.set_state(campaign, CampaignState.PAUSED, stop_attempts=True)
    assert store.holds_token(handle)
    assert not store.holds_token(replace(handle, token="another"))
    assert store.knows_attempt(campaign, handle.id)
    assert not store.knows_attempt(campaign + 1, handle.id)
    store.lose_attempts([handle.id], WORKER_LOST)
    assert not store.holds_token(handle)


def test_a_host_is_quarantined_by_lab_errors_in_a_row_wherever_they_were_met(store: Store, campaign: int) -> None:
    after = After(blamed=("a",), check_at=1234.0)
    end(store, campaign, "a", Outcome.LAB_ERROR, "boot-timeout", after)
    assert store.blame("lab", UNREACHABLE, after) == ()
    assert store.blame("lab", UNREACHABLE, after) == ("a",)
    (host,) = store.hosts("lab")
    assert (host.state, host.strikes, host.next_check) == (HostState.QUARANTINED, 3, 1234.0)


def test_a_given_up_attempt_parks_no_vm(store: Store, campaign: int) -> None:
    handle = begin(store, campaign)
    assert not store.has_had_vms(handle.id)
    lab = a_lab()
    assert lab.network().guest_range is not None
    first, last = lab.network().guest_range
    made = [
        store.record_vm(
            lambda address, number=number: VmRecord(
                uuid=f"u{number}", name=f"labctl-{number}", lab="lab", host="a", campaign_id=campaign,
                run_id=1, attempt_id=handle.id, role="sender", mac="m", address=f"{address}/24", shape="{}", state="live",
            ),
            first=first, last=last, after=0,
        ).uuid
        for number in (1, 2)
    ]  # fmt: skip
    assert store.park_vm(made[0], handle.id)
    store.lose_attempts([handle.id], WORKER_LOST)
    assert not store.park_vm(made[1], handle.id)
    assert store.has_had_vms(handle.id)
    assert {record.uuid: record.state for record in store.live_vms("lab")} == {"u1": "parked", "u2": "live"}


def test_the_newest_campaign_of_a_name_is_found_whatever_became_of_it(store: Store, campaign: int) -> None:
    assert store.newest_of_name("lab", "small", Purpose.HEALTH) is None
    store.set_state(campaign, CampaignState.DONE)
    assert store.newest_of_name("lab", "small", Purpose.MEASURE) == campaign


def test_a_health_check_lets_no_host_in_that_a_person_has_taken_out(store: Store) -> None:
    store.set_host("lab", "a", HostState.OUT, why="its fan is broken")
    assert not store.set_host("lab", "a", HostState.GOOD, only_from=(HostState.QUARANTINED,))
    assert [(host.state, host.why) for host in store.hosts("lab")] == [(HostState.OUT, "its fan is broken")]
    assert store.set_host("lab", "a", HostState.GOOD)


def test_what_has_happened_since_an_event_is_read_in_order(store: Store) -> None:
    assert store.newest_event() == 0
    for key in ("a", "b", "c"):
        store.tell(Event(scope="lab-x", key=key, kind="host-back", what=key, at=1.0))
    first, *later = store.events_after(0)
    assert [event.key for event in (first, *later)] == ["a", "b", "c"]
    assert store.events_after(first.id, limit=1) == (later[0],)
    assert store.newest_event() == later[-1].id
    assert store.events_after(store.newest_event()) == ()


def test_an_event_is_known_by_its_scope_and_key(store: Store) -> None:
    store.tell(Event(scope="lab-x", key="k", kind="host-back", what="w", at=1.0))
    assert store.has_event("lab-x", "k")
    assert not store.has_event("lab-y", "k")


def test_a_record_holds_what_happened_in_the_campaign_and_meanwhile_in_its_lab(store: Store, campaign: int) -> None:
    submitted = store.head(campaign).submitted

    def happens(scope: str, key: str, after: float, campaign_id: int | None = None) -> None:
        at = submitted + after
        store.tell(Event(scope=scope, key=key, kind="quarantine", what=key, at=at, campaign_id=campaign_id))

    happens("lab-lab", "during", 10)
    happens("lab-lab", "before", -10)
    happens("lab-other", "elsewhere", 10)
    happens(f"campaign-{campaign}", "own", 5, campaign)
    assert [event.what for event in store.record(campaign).events] == ["own", "during"]
    store.set_state(campaign, CampaignState.DONE)
    happens("lab-lab", "afterwards", 10_000)
    happens(f"campaign-{campaign}", "late", 10_000, campaign)
    assert [event.what for event in store.record(campaign).events] == ["own", "late"]
