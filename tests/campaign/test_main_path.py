"""The engine over a real store, with messages that are only counted: what is started, when, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.campaign import commands, judgement, scheduler
from labctl.errors import SpecError
from labctl.model.outcome import CampaignState, Outcome
from labctl.model.result import AttemptResult
from labctl.model.scenario import Scenario
from labctl.store import CampaignHead, Store, open_store
from tests.campaign.outbox import Outbox, carry_out, submitted
from tests.values import a_lab, a_result


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def work_off(store: Store, head: CampaignHead, results: dict[int, AttemptResult] | None = None) -> Outbox:
    """Carry out whatever is sent, until the campaign is done. `results` are by the number of the message."""
    outbox = Outbox()
    done = 0
    for _ in range(100):
        if head.id in scheduler.advance(store, outbox).ended:
            return outbox
        for handle in outbox.attempts[done:]:
            assert carry_out(store, handle, (results or {}).get(done, a_result()))
            done += 1
    raise AssertionError("the campaign did not end")


def test_one_machine_works_on_one_run_at_a_time(store: Store) -> None:
    submitted(store)
    outbox = Outbox()
    for _ in range(3):
        scheduler.advance(store, outbox)
    assert len(outbox.attempts) == 1, "both hosts are on one physical machine"


def test_two_machines_work_on_two_runs(store: Store) -> None:
    submitted(store, a_lab(machines=("one", "two")))
    scheduler.advance(store, Outbox())
    hosts = sorted(host for item in store.active_attempts() for host in item.hosts)
    assert hosts == ["a", "b"]


def test_advance_by_many_at_once_starts_each_run_once(store: Store, tmp_path: Path) -> None:
    submitted(store, a_lab(machines=("one", "two")), repeats=10)
    outboxes = [Outbox() for _ in range(4)]

    def hurry(outbox: Outbox) -> None:
        mine = open_store(tmp_path)
        for _ in range(5):
            scheduler.advance(mine, outbox)
        mine.close()

    threads = [threading.Thread(target=hurry, args=(outbox,)) for outbox in outboxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = [handle.id for outbox in outboxes for handle in outbox.attempts]
    assert len(sent) == len(set(sent)) == 2


def test_a_campaign_is_done_when_every_run_has_its_result(store: Store) -> None:
    head = submitted(store)
    work_off(store, head)
    assert store.run_counts(head.id) == {"ok": 4}
    assert store.state(head.id) is CampaignState.DONE


def test_every_block_has_every_cell_once(store: Store) -> None:
    head = submitted(store, factors={"nic_model": ("virtio", "e1000", "rtl8139")}, repeats=4)
    record = store.record(head.id)
    for block in range(4):
        runs = record.runs[block * 3 : block * 3 + 3]
        assert {run.replicate for run in runs} == {block + 1}
        assert len({run.cell for run in runs}) == 3
    orders = {tuple(run.cell for run in record.runs[block * 3 : block * 3 + 3]) for block in range(4)}
    assert len(orders) > 1, "blocks are in random order, not in one order repeated"


def test_not_applicable_cells_are_kept_with_their_reason_and_cost_nothing(store: Store) -> None:
    head = submitted(store, factors={"nic_model": ("virtio", "vt-d")})
    work_off(store, head)
    record = store.record(head.id)
    reasons = {cell.levels["nic_model"]: cell.reason for cell in record.cells}
    assert reasons["virtio"] == ""
    assert "vt-d" in reasons["vt-d"]
    assert len(record.runs) == 2


def test_a_campaign_that_can_run_nowhere_is_refused(store: Store) -> None:
    with pytest.raises(SpecError):
        submitted(store, factors={"nic_model": ("vt-d",)})
    assert store.newest_campaign() is None


def test_a_campaign_over_its_cap_is_refused(store: Store) -> None:
    with pytest.raises(SpecError, match="4"):
        submitted(store, max_runs=3)


def test_a_lab_error_is_tried_again_as_often_as_said_and_then_recorded(store: Store) -> None:
    head = submitted(store, factors={"nic_model": ("virtio",)}, repeats=1, lab_error_retries=2)
    broken = a_result(Outcome.LAB_ERROR, kind="boot-timeout")
    outbox = work_off(store, head, {0: broken, 1: broken, 2: broken})
    assert len(outbox.attempts) == 3
    run = store.record(head.id).runs[0]
    assert run.result is not None
    assert run.result.detail.outcome is Outcome.LAB_ERROR
    assert len(run.earlier) == 2


def test_a_lab_error_that_passes_leaves_a_figure(store: Store) -> None:
    head = submitted(store, factors={"nic_model": ("virtio",)}, repeats=1)
    work_off(store, head, {0: a_result(Outcome.LAB_ERROR, kind="boot-timeout")})
    assert store.run_counts(head.id) == {"ok": 1}


def test_a_failure_of_the_system_under_test_is_a_result_and_not_tried_again(store: Store) -> None:
    head = submitted(store, factors={"nic_model": ("virtio",)}, repeats=1)
    outbox = work_off(store, head, {0: a_result(Outcome.FAILED, kind="connection-lost")})
    assert len(outbox.attempts) == 1
    assert store.run_counts(head.id) == {"failed": 1}


def test_an_interrupted_campaign_goes_on_where_it_stopped(store: Store) -> None:
    head, outbox = submitted(store), Outbox()
    scheduler.advance(store, outbox)
    assert store.claim(outbox.attempts[0], worker="w:1") is not None
    commands.interrupt(store, head.id)
    assert scheduler.advance(store, outbox).started == 0
    assert judgement.accept(store, outbox.attempts[0], a_result(Outcome.CANCELLED, kind="cancelled"))
    assert store.run_counts(head.id) == {"pending": 4}, "a cancelled attempt costs its run nothing"
    commands.resume(store, head.id)
    work_off(store, head)
    assert store.run_counts(head.id) == {"ok": 4}


def test_cancelled_attempts_are_no_tries(store: Store) -> None:
    head = submitted(store, factors={"nic_model": ("virtio",)}, repeats=1, lab_error_retries=1)
    for _ in range(3):
        outbox = Outbox()
        scheduler.advance(store, outbox)
        carry_out(store, outbox.attempts[0], a_result(Outcome.CANCELLED, kind="cancelled"))
    work_off(store, head, {0: a_result(Outcome.LAB_ERROR, kind="x")})
    assert store.run_counts(head.id) == {"ok": 1}


def test_what_is_done_is_not_resumed(store: Store) -> None:
    head = submitted(store)
    work_off(store, head)
    with pytest.raises(SpecError, match="can't be resumed"):
        commands.resume(store, head.id)


def test_two_campaigns_on_one_lab_wait_for_each_other(store: Store) -> None:
    first, second = submitted(store), submitted(store)
    mine, theirs = Outbox(), Outbox()
    scheduler.advance(store, mine, only=first.id)
    scheduler.advance(store, theirs, only=second.id)
    assert len(mine.attempts) == 1
    assert theirs.attempts == []
    carry_out(store, mine.attempts[0], a_result())
    scheduler.advance(store, theirs, only=second.id)
    assert len(theirs.attempts) == 1


def test_a_two_host_run_leases_both_hosts(store: Store) -> None:
    lab = a_lab(machines=("one", "two"))
    submitted(store, lab, scenarios=(Scenario.CROSS_HOST,))
    outbox = Outbox()
    scheduler.advance(store, outbox)
    scheduler.advance(store, outbox)
    assert len(outbox.attempts) == 1
    assert {line.resource for line in store.leases(lab.name)} == {"host:a", "host:b", "machine:one", "machine:two"}
