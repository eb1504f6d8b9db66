"""What becomes of runs, cells, campaigns and hosts after an attempt, over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl import clock
from labctl.campaign import commands, judgement, stops
from labctl.errors import LabError
from labctl.model.campaign import Adaptive
from labctl.model.outcome import CampaignState, HostState, Outcome, OutcomeDetail
from labctl.model.result import AttemptResult
from labctl.store import WORKER_LOST, CampaignHead, HostRecord, Store, Trouble, open_store
from tests.campaign.byhand import begin, end, lab_of
from tests.campaign.outbox import submitted
from tests.report.records import reading, transfer
from tests.values import a_lab, a_result

MODELS = ("virtio", "e1000", "e1000e", "rtl8139", "igb", "vmxnet3")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def head(store: Store) -> CampaignHead:
    """Six cells, four runs each, on three hosts."""
    return submitted(store, lab_of("a", "b", "c"), factors={"nic_model": MODELS}, repeats=4, lab_error_retries=1)


def cells(store: Store, head: CampaignHead) -> list[str]:
    return [cell.id for cell in store.record(head.id).cells]


def host(store: Store, name: str) -> HostRecord:
    return next((record for record in store.hosts("lab") if record.host == name), HostRecord(lab="lab", host=name))


def told(store: Store) -> list[str]:
    return [event.kind for event in store.untold()]


def a_figure(bits_per_second: float) -> AttemptResult:
    """The result of a run that has measured this."""
    return AttemptResult(detail=OutcomeDetail(outcome=Outcome.OK), transfers=(transfer(1, reading(bits_per_second)),))


# Runs


def test_a_run_waits_out_its_back_off_and_longer_after_each_try(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    head = submitted(store, factors={"nic_model": ("virtio",)}, repeats=1, lab_error_retries=3, back_off=100.0)
    now = 1_000_000.0
    for waits in (100.0, 200.0, 400.0):
        monkeypatch.setattr(clock, "now", lambda now=now: now)
        end(store, head, "a", kind="boot-timeout")
        assert store.pending_runs(head.id, limit=1) == ()
        assert store.next_not_before(head.id) == now + waits
        now += waits
    monkeypatch.setattr(clock, "now", lambda: now)
    end(store, head, "a", kind="boot-timeout")
    assert store.run_counts(head.id) == {"lab-error": 1}


def test_s5_a_run_whose_back_off_a_clock_has_timed_that_was_ahead_does_not_wait_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a worker may be ahead of the engine's, or be set back: by an hour, as the night does."""
    head = submitted(store, factors={"nic_model": ("virtio",)}, repeats=1, lab_error_retries=2, back_off=10.0)
    now = 1_000_000.0
    monkeypatch.setattr(clock, "now", lambda: now)
    end(store, head, "a", kind="boot-timeout")
    assert store.pending_runs(head.id, limit=1) == ()
    for step in (3600.0, 60.0):
        monkeypatch.setattr(clock, "now", lambda step=step: now - step)
        assert store.pending_runs(head.id, limit=1)
        assert store.next_not_before(head.id) is None


def test_c3_a_run_that_kills_its_workers_ends_as_a_lab_error_with_the_cause_and_the_campaign_goes_on(
    store: Store,
) -> None:
    head = submitted(store, factors={"nic_model": ("virtio", "e1000")}, repeats=1, lab_error_retries=2)
    killer = cells(store, head)[0]
    for _ in range(3):
        lost = begin(store, head, "a", cell=killer)
        store.lose_attempts([lost.id], WORKER_LOST)
        judgement.cleaned(store, lost.id)
    ended = next(run for run in store.record(head.id).runs if run.cell == killer)
    assert ended.result is not None
    assert ended.result.detail == WORKER_LOST
    assert store.run_counts(head.id) == {"lab-error": 1, "pending": 1}
    assert store.state(head.id) is CampaignState.ACTIVE
    assert host(store, "a").strikes == 0, "a worker is not a host"


def test_a_lost_attempt_that_is_cleaned_twice_is_one_try(store: Store) -> None:
    head = submitted(store, factors={"nic_model": ("virtio",)}, repeats=1, lab_error_retries=1)
    lost = begin(store, head, "a")
    store.lose_attempts([lost.id], WORKER_LOST)
    for _ in range(2):
        judgement.cleaned(store, lost.id)
    assert [run.attempts for run in store.pending_runs(head.id, limit=9)] == [1]


def test_an_attempt_in_progress_can_not_be_cleaned(store: Store, head: CampaignHead) -> None:
    handle = begin(store, head, "a")
    judgement.cleaned(store, handle.id)
    assert judgement.accept(store, handle, a_result())


def test_what_follows_from_a_result_never_costs_the_result(
    store: Store, head: CampaignHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise LabError("The store could not be written.", kind="store")

    monkeypatch.setattr(judgement, "review", full)
    handle = begin(store, head, "a")
    assert judgement.accept(store, handle, a_result(Outcome.FAILED, kind="connection-lost"))
    assert store.run_counts(head.id)["failed"] == 1


def test_a_cell_that_is_not_known_well_enough_gets_another_run_with_its_last_result(store: Store) -> None:
    asked = Adaptive(maximum=5, within=0.01)
    head = submitted(store, lab_of("a"), factors={"nic_model": ("virtio",)}, repeats=2, adaptive=asked)
    for figure in (1e9, 2e9):
        handle = begin(store, head, "a")
        assert judgement.accept(store, handle, a_figure(figure))
    assert store.run_counts(head.id) == {"ok": 2, "pending": 1}


# Hosts


def test_s7_three_lab_errors_in_a_row_quarantine_a_host_and_no_other(store: Store, head: CampaignHead) -> None:
    """S7, L15: a libvirt that hangs is such an error."""
    for cell in cells(store, head)[:3]:
        end(store, head, "b", cell=cell, kind="host-unreachable", host="b")
    assert host(store, "b").state is HostState.QUARANTINED
    assert "It was host-unreachable." in host(store, "b").why
    assert host(store, "a").state is HostState.GOOD
    assert told(store) == ["quarantine"]
    judgement.review(store, head.id)
    assert told(store) == ["quarantine"], "one event each time it is quarantined"


@pytest.mark.parametrize("between", [Outcome.OK, Outcome.FAILED])
def test_a_result_in_between_forgives_a_host(store: Store, head: CampaignHead, between: Outcome) -> None:
    first, second, third, fourth = cells(store, head)[:4]
    end(store, head, "a", cell=first, kind="boot-timeout", host="a")
    end(store, head, "a", cell=second, kind="boot-timeout", host="a")
    end(store, head, "a", cell=third, outcome=between)
    end(store, head, "a", cell=fourth, kind="boot-timeout", host="a")
    assert (host(store, "a").state, host(store, "a").strikes) == (HostState.GOOD, 1)


def test_a_lab_error_without_a_host_is_counted_against_all_of_the_run(store: Store, head: CampaignHead) -> None:
    end(store, head, "a", "c", kind="client-hung")
    assert [host(store, name).strikes for name in "abc"] == [1, 0, 1]


def test_what_could_not_be_cleaned_is_counted_against_its_host(store: Store, head: CampaignHead) -> None:
    lost = begin(store, head, "a", "b")
    store.lose_attempts([lost.id], WORKER_LOST)
    error = LabError("Host b does not answer.", kind="host-unreachable", host="b")
    for _ in range(3):
        judgement.unclean(store, lost.id, "b", error)
    assert [host(store, name).state for name in "ab"] == [HostState.GOOD, HostState.QUARANTINED]
    assert told(store) == ["quarantine"]


# Cells


def test_a_cell_that_fails_the_same_way_on_two_hosts_is_stopped_and_said(store: Store, head: CampaignHead) -> None:
    bad, good = cells(store, head)[:2]
    end(store, head, "a", cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    assert store.cell_replicates(head.id, bad) == (4, 3)
    end(store, head, "b", cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    assert store.cell_replicates(head.id, bad) == (4, 0)
    assert store.cell_replicates(head.id, good) == (4, 4)
    unrun = [run.unrun for run in store.record(head.id).runs if run.cell == bad and run.unrun is not None]
    assert len(unrun) == 2
    assert unrun[0].kind == "cell-stopped"
    assert "2 attempts at it ended as failed (connection-lost), on a and b" in unrun[0].why
    assert told(store) == ["first-failure", "cell-stopped"]


def test_a_cell_with_a_figure_is_not_stopped(store: Store, head: CampaignHead) -> None:
    bad = cells(store, head)[0]
    end(store, head, "c", cell=bad, outcome=Outcome.OK)
    for name in "ab":
        end(store, head, name, cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    assert store.cell_replicates(head.id, bad) == (4, 1)


def test_a_cell_that_fails_in_two_ways_is_not_stopped(store: Store, head: CampaignHead) -> None:
    bad = cells(store, head)[0]
    end(store, head, "a", cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    end(store, head, "b", cell=bad, outcome=Outcome.FAILED, kind="migration-timeout")
    assert store.cell_replicates(head.id, bad) == (4, 2)


def test_a_cell_is_not_stopped_while_its_runs_have_tries_left(store: Store, head: CampaignHead) -> None:
    bad = cells(store, head)[0]
    end(store, head, "a", cell=bad, kind="boot-timeout", host="a")
    end(store, head, "b", cell=bad, kind="boot-timeout", host="b")
    assert store.cell_replicates(head.id, bad) == (4, 4), "two of its runs may still be cured by their second try"


def test_a_cell_is_stopped_when_the_tries_of_a_run_were_used_up_on_two_hosts(store: Store) -> None:
    head = submitted(store, lab_of("a", "b"), factors={"nic_model": ("virtio",)}, repeats=3, lab_error_retries=0)
    end(store, head, "a", kind="boot-timeout", host="a")
    assert store.run_counts(head.id) == {"lab-error": 1, "pending": 2}
    end(store, head, "b", kind="boot-timeout", host="b")
    assert store.run_counts(head.id) == {"lab-error": 2, "cancelled": 1}


def test_in_a_lab_with_one_host_no_cell_is_stopped(store: Store) -> None:
    head = submitted(store, lab_of("a"), factors={"nic_model": ("virtio",)}, repeats=4, lab_error_retries=0)
    for _ in range(3):
        end(store, head, "a", kind="nic-mismatch", host="a")
    assert store.run_counts(head.id) == {"lab-error": 3, "pending": 1}


def test_pairs_with_a_host_in_common_may_have_failed_because_of_it(store: Store, head: CampaignHead) -> None:
    bad = cells(store, head)[0]
    end(store, head, "a", "b", cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    end(store, head, "a", "c", cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    assert store.cell_replicates(head.id, bad) == (4, 2)
    end(store, head, "b", "c", cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    assert store.cell_replicates(head.id, bad) == (4, 0)


def test_runs_of_a_stopped_cell_that_were_sent_back_are_judged_anew(store: Store, head: CampaignHead) -> None:
    bad = cells(store, head)[0]
    for name in "ab":
        end(store, head, name, cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    commands.retry(store, head.id, [Outcome.FAILED], stopped=True)
    judgement.review(store, head.id)
    assert store.cell_replicates(head.id, bad) == (4, 4)
    for name in "ab":
        end(store, head, name, cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
    assert store.cell_replicates(head.id, bad) == (4, 0)
    assert told(store).count("cell-stopped") == 2


# Campaigns


def fail_alike(store: Store, head: CampaignHead, wanted: int, *, kind: str = "prepare-failed") -> None:
    """Two attempts at each of so many cells, on one host, that all ended the same way."""
    for cell in cells(store, head)[:wanted] * 2:
        end(store, head, "a", cell=cell, kind=kind)


def test_a_campaign_most_of_whose_cells_fail_alike_is_stopped_early_and_says_why(
    store: Store, head: CampaignHead
) -> None:
    fail_alike(store, head, 3)
    assert store.state(head.id) is CampaignState.ACTIVE, "three cells are too few to judge by"
    for _ in range(2):
        end(store, head, "a", cell=cells(store, head)[3], kind="prepare-failed")
    stopped = store.head(head.id)
    assert stopped.state is CampaignState.STOPPED
    assert stopped.why == (
        "4 of the 4 cells that were tried end as lab-error (prepare-failed), in all 8 attempts. "
        "The latest: It was prepare-failed."
    )
    assert told(store) == ["campaign-stopped"]
    assert store.run_counts(head.id) == {"pending": 24}, "its runs are there for when it is mended"


def test_attempts_in_progress_of_a_stopped_campaign_finish(store: Store, head: CampaignHead) -> None:
    running = begin(store, head, "c", cell=cells(store, head)[5])
    fail_alike(store, head, 4)
    assert store.state(head.id) is CampaignState.STOPPED
    assert judgement.accept(store, running, a_result())
    assert store.run_counts(head.id)["ok"] == 1


@pytest.mark.parametrize(("good", "state"), [(3, CampaignState.STOPPED), (4, CampaignState.ACTIVE)])
def test_half_of_the_cells_are_not_most(store: Store, good: int, state: CampaignState) -> None:
    head = submitted(store, lab_of("a", "b"), factors={"nic_model": MODELS, "streams": (1, 2)}, repeats=2)
    for cell in cells(store, head)[-good:]:
        end(store, head, "b", cell=cell, outcome=Outcome.OK)
    fail_alike(store, head, 4)
    assert store.state(head.id) is state


@pytest.mark.parametrize("kind", ["worker-lost", "host-unreachable"])
def test_what_says_nothing_about_cells_stops_no_campaign(store: Store, head: CampaignHead, kind: str) -> None:
    fail_alike(store, head, 5, kind=kind)
    assert store.state(head.id) is CampaignState.ACTIVE


def test_a_resumed_campaign_is_judged_by_what_happens_from_then_on(store: Store, head: CampaignHead) -> None:
    fail_alike(store, head, 4)
    commands.resume(store, head.id)
    judgement.review(store, head.id)
    assert store.state(head.id) is CampaignState.ACTIVE
    commands.resume(store, head.id)
    fail_alike(store, head, 4)
    assert store.state(head.id) is CampaignState.STOPPED
    assert told(store).count("campaign-stopped") == 2


@pytest.mark.parametrize("state", [CampaignState.PAUSED, CampaignState.CANCELLED])
def test_a_campaign_that_a_person_has_stopped_is_left_as_it_is(
    store: Store, head: CampaignHead, state: CampaignState
) -> None:
    handles = [begin(store, head, name, cell=cells(store, head)[at]) for at, name in enumerate("bc")]
    fail_alike(store, head, 3)
    store.set_state(head.id, state, why="lunch")
    for handle in handles:
        judgement.accept(store, handle, a_result(Outcome.LAB_ERROR, kind="prepare-failed"))
    assert (store.state(head.id), store.head(head.id).why) == (state, "lunch")


def test_the_review_makes_good_what_a_worker_that_died_has_left_undone(
    store: Store, head: CampaignHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dead:
        dead.setattr(judgement, "_follow_up", lambda *_: None)
        bad = cells(store, head)[0]
        for name in "ab":
            end(store, head, name, cell=bad, outcome=Outcome.FAILED, kind="connection-lost")
        for cell in cells(store, head)[1:4]:
            end(store, head, "c", cell=cell, kind="host-unreachable", host="c")
    assert told(store) == []
    for _ in range(2):
        judgement.review(store, head.id)
    assert sorted(told(store)) == ["cell-stopped", "first-failure", "quarantine"]
    assert store.cell_replicates(head.id, bad) == (4, 0)


def test_a_plain_machine_that_is_out_of_reach_stops_the_campaign_because_nothing_keeps_runs_off_it() -> None:
    from tests.campaign.test_policy import with_a_plain_machine

    gone = [
        Trouble(cell=cell, outcome=Outcome.LAB_ERROR, kind="channel-unreachable", hosts=frozenset({hosts}), attempts=2,
                recorded=0, latest=1)
        for cell in "vwxyz" for hosts in ("a+box",)
    ]  # fmt: skip
    assert stops.most_alike(gone, {}, with_a_plain_machine()) is not None
    assert stops.most_alike(gone, {}, a_lab()) is None
