"""The promises of the store: one lease, one claim, one accepted result, whoever asks and however often."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from labctl import clock
from labctl.errors import AttemptCancelled, LabError, SpecError
from labctl.model.outcome import CampaignState, Outcome, RunState
from labctl.store import MESSAGE_LOST, WORKER_LOST, After, Store, VmRecord, open_store
from tests.store.steps import ONE, accept, start, start_run, started_and_claimed, submit, vm_for
from tests.values import a_campaign, a_lab, a_result, an_order


def test_a_campaign_keeps_its_cells_runs_and_order(store: Store) -> None:
    campaign = submit(store)
    record = store.record(campaign)
    assert [cell.levels["nic_model"] for cell in record.cells] == ["virtio", "vt-d", "e1000"]
    assert [cell.reason for cell in record.cells] == ["", "no device", ""]
    by_id = {cell.id: cell.levels["nic_model"] for cell in record.cells}
    assert [(by_id[run.cell], run.replicate) for run in record.runs] == [
        ("e1000", 1), ("virtio", 1), ("e1000", 2), ("virtio", 2),
    ]  # fmt: skip
    assert store.head(campaign).campaign == a_campaign()
    assert store.head(campaign).lab == a_lab()


def test_the_version_changes_when_somebody_writes_and_only_then(store: Store, url: str, tmp_path: Path) -> None:
    before = store.version()
    assert store.version() == before
    store.campaigns()
    assert store.version() == before, "reading is no change"
    other = open_store(tmp_path, url=url)
    submit(other)
    other.close()
    changed = store.version()
    assert changed != before
    submit(store)
    assert store.version() != changed, "one's own writes count too"


def test_a_lost_message_costs_a_run_no_try_and_both_kinds_of_loss_are_told(store: Store) -> None:
    campaign = submit(store)
    handle = start(store, campaign)
    assert store.lose_attempts([handle.id], MESSAGE_LOST) == (handle.id,)
    store.cleaned(handle.id, again=True)
    assert store.pending_runs(campaign, limit=1)[0].attempts == 0
    assert store.tries(handle.id)[1] == 0
    second = started_and_claimed(store, campaign)
    assert store.lose_attempts([second.id], WORKER_LOST) == (second.id,)
    store.cleaned(second.id, again=False)
    run = next(run for run in store.record(campaign).runs if run.attempts)
    assert run.result is not None
    assert (run.result.detail.outcome, run.result.detail.kind) == (Outcome.LAB_ERROR, "worker-lost")
    assert [result.detail.kind for result in run.earlier] == ["message-lost"]


def test_a_run_that_was_cancelled_goes_back_to_its_place(store: Store) -> None:
    campaign = submit(store)
    first = store.pending_runs(campaign, limit=9)[0]
    accept(store, started_and_claimed(store, campaign), a_result(Outcome.CANCELLED), again=True)
    assert store.pending_runs(campaign, limit=9)[0].id == first.id


def test_hosts_stay_leased_while_a_vm_of_an_ended_attempt_may_be_there(store: Store) -> None:
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    low, high = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.19")
    values = vm_for(handle, campaign, "1")
    store.record_vm(lambda address: VmRecord(**values, address=f"{address}/24"), first=low, last=high, after=0)
    assert accept(store, handle, a_result(), again=False)
    assert {line.resource for line in store.leases("lab")} == ONE
    assert store.lost_attempts(lab="lab") == (handle.id,)
    store.change_vm("1", state="gone")
    store.cleaned(handle.id, again=True)
    assert store.leases("lab") == ()
    assert store.run_counts(campaign) == {"ok": 1, "pending": 3}, "its result stays"


@pytest.mark.usefixtures("real_stores")
@pytest.mark.parametrize("durable", [True, False])
def test_the_record_of_a_vm_is_on_the_disk_before_the_vm_is_made(tmp_path: Path, durable: bool) -> None:
    """With the record all that was written before it, because SQLite's log is one file. Others cost no such wait."""
    levels: list[int] = []

    def note(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            (level,) = connection.connection.cursor().execute("PRAGMA synchronous").fetchone()
            levels.append(level)

    store = open_store(tmp_path)
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    low, high = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.16")
    values = vm_for(handle, campaign, "1")
    event.listen(Engine, "before_cursor_execute", note)
    try:
        for error in (False, True):
            with pytest.raises(LabError) if error else nullcontext():
                store.record_vm(
                    lambda address: VmRecord(**values, address=f"{address}/24"),
                    first=low, last=high, after=0, durable=durable,
                )  # fmt: skip
            store.set_priority(campaign, 1)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        store.close()
    normal, full = 1, 2
    assert levels == [full if durable else normal, normal, normal]


def test_an_attempt_that_was_given_up_gets_no_vm_any_more(store: Store) -> None:
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    store.lose_attempts([handle.id], WORKER_LOST)
    low, high = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.19")
    values = vm_for(handle, campaign, "1")
    with pytest.raises(AttemptCancelled):
        store.record_vm(lambda address: VmRecord(**values, address=f"{address}/24"), first=low, last=high, after=0)
    with pytest.raises(AttemptCancelled):
        store.take_parked(campaign, host="a", role="sender", shape="s", attempt_id=handle.id)


def test_an_unknown_campaign_is_the_users_mistake(store: Store) -> None:
    with pytest.raises(SpecError, match="no campaign 77"):
        store.head(77)


def test_a_leased_machine_is_leased_to_nobody_else(store: Store) -> None:
    campaign = submit(store)
    start(store, campaign)
    other = store.pending_runs(campaign, limit=1)[0]
    taken = start_run(store, other.id, frozenset({"host:b", "machine:one"}), lab="lab")
    assert taken is None
    assert store.pending_runs(campaign, limit=1)[0] == other, "a refused run stays where it was"
    assert {line.resource for line in store.leases("lab")} == ONE, "nothing is leased by halves"
    assert start_run(store, other.id, frozenset({"host:b"}), lab="lab", order=an_order("b")) is not None


def test_hosts_of_one_name_in_two_labs_are_two_hosts(store: Store) -> None:
    campaign = submit(store)
    start(store, campaign)
    other = store.pending_runs(campaign, limit=1)[0]
    assert start_run(store, other.id, ONE, lab="elsewhere") is not None


def test_a_message_that_comes_twice_is_claimed_once(store: Store) -> None:
    handle = start(store, submit(store))
    first = store.claim(handle, worker="w:1")
    assert first is not None
    assert first.order == an_order()
    assert store.claim(handle, worker="w:2") is None


def test_a_wrong_token_claims_nothing(store: Store) -> None:
    handle = start(store, submit(store))
    assert store.claim(replace(handle, token="0" * 32), worker="w:1") is None


def test_a_run_gets_one_result(store: Store) -> None:
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    assert accept(store, handle, a_result(), again=False)
    assert not accept(store, handle, a_result(Outcome.FAILED), again=False)
    run = next(run for run in store.record(campaign).runs if run.result)
    assert run.result is not None
    assert run.result.detail.outcome is Outcome.OK
    assert run.state == RunState.DONE
    assert store.leases("lab") == ()
    assert [output.content for output in store.raw(handle.id)] == [b"raw"]


def test_raw_output_survives_to_the_byte(store: Store) -> None:
    handle = started_and_claimed(store, submit(store))
    content = bytes(range(256)) * 4096
    accept(store, handle, a_result(raw=content), again=False)
    assert store.raw(handle.id)[0].content == content


def test_a_run_that_goes_back_is_tried_after_those_that_were_not(store: Store) -> None:
    campaign = submit(store)
    first = store.pending_runs(campaign, limit=9)[0]
    handle = started_and_claimed(store, campaign)
    accept(store, handle, a_result(Outcome.LAB_ERROR, kind="boot-timeout"), again=True)
    waiting = store.pending_runs(campaign, limit=9)
    assert waiting[-1].id == first.id
    assert waiting[-1].attempts == 1
    record = next(run for run in store.record(campaign).runs if run.id == first.id)
    assert record.result is None
    assert [result.detail.kind for result in record.earlier] == ["boot-timeout"]


def test_a_lost_attempt_keeps_its_hosts_until_they_are_clean_and_its_result_is_refused(store: Store) -> None:
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    assert store.lose_attempts([handle.id], WORKER_LOST) == (handle.id,)
    assert store.lose_attempts([handle.id], WORKER_LOST) == (), "only once"
    assert "void" in store.heartbeat(handle, phase="transfer")
    assert not accept(store, handle, a_result(), again=False)
    assert {line.resource for line in store.leases("lab")} == ONE
    assert store.lost_attempts(lab="lab") == (handle.id,)
    store.cleaned(handle.id, again=True)
    assert store.leases("lab") == ()
    assert store.run_counts(campaign) == {"pending": 4}


def test_a_cleaning_that_is_said_late_or_twice_leaves_a_newer_attempt_alone(store: Store) -> None:
    campaign = submit(store)
    first = started_and_claimed(store, campaign)
    run = next(run.id for run in store.record(campaign).runs if run.attempts)
    store.lose_attempts([first.id], MESSAGE_LOST)
    store.cleaned(first.id, again=True)
    second = start_run(store, run, ONE)
    assert second is not None
    store.cleaned(first.id, again=True)
    store.cleaned(first.id, again=False)
    assert store.run_counts(campaign) == {"active": 1, "pending": 3}
    assert store.claim(second, worker="w:1") is not None
    assert {line.attempt_id for line in store.leases()} == {second.id}


@pytest.mark.parametrize("step", [-86400.0 * 365, 86400.0 * 365])
def test_s5_a_clock_that_is_set_keeps_no_run_waiting(
    store: Store, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = submit(store, replicates=1)
    before = clock.now()
    handle = started_and_claimed(store, campaign)
    after = After(again=True, not_before=before + a_campaign().longest_back_off)
    assert store.accept(handle, a_result(Outcome.LAB_ERROR), after) is not None
    assert store.next_not_before(campaign) == before + a_campaign().longest_back_off
    assert len(store.pending_runs(campaign, limit=9)) == 1, "it waits"
    monkeypatch.setattr(clock, "now", lambda: before + step)
    assert len(store.pending_runs(campaign, limit=9)) == 2
    assert store.next_not_before(campaign) is None


def test_no_run_waits_longer_than_the_longest_back_off_of_its_campaign(store: Store) -> None:
    campaign = submit(store, replicates=1)
    handle = started_and_claimed(store, campaign)
    store.accept(handle, a_result(Outcome.LAB_ERROR), After(again=True, not_before=clock.now() + 1e9))
    assert store.next_not_before(campaign) is None
    assert len(store.pending_runs(campaign, limit=9)) == 2


def test_every_heartbeat_is_another_sign_of_life(store: Store) -> None:
    handle = started_and_claimed(store, submit(store))
    (before,) = store.signs()
    assert store.heartbeat(handle, phase="transfer") == ""
    (after,) = store.signs()
    assert after.beats > before.beats
    assert store.active_attempts()[0].phase == "transfer"


def test_an_interrupted_campaign_tells_its_attempts_and_starts_no_others(store: Store) -> None:
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    store.set_state(campaign, CampaignState.PAUSED, stop_attempts=True)
    assert "interrupted" in store.heartbeat(handle, phase="place")
    run = store.pending_runs(campaign, limit=1)[0]
    assert start_run(store, run.id, frozenset({"host:b"}), lab="lab", order=an_order("b")) is None


def test_no_two_living_vms_have_one_address(store: Store) -> None:
    """L12, M17: MAC addresses are made from these."""
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    first, last = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.19")

    def record(number: int) -> VmRecord:
        values = vm_for(handle, campaign, str(number))
        return store.record_vm(
            lambda address: VmRecord(**values, address=f"{address}/24"), first=first, last=last, after=number * 7
        )

    given = [record(number) for number in range(4)]
    assert len({vm.address for vm in given}) == 4
    with pytest.raises(LabError, match="No free guest address"):
        record(4)
    store.change_vm("2", state="gone")
    assert record(5).address == given[2].address


def test_no_two_living_vms_without_an_address_have_one_mac(store: Store) -> None:
    """L12, M17: on networks with DHCP."""
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)

    def record(number: int) -> VmRecord:
        values = vm_for(handle, campaign, str(number))
        return store.record_vm_without_address(
            lambda serial: VmRecord(**(values | {"mac": f"02:00:00:00:00:0{serial}"}), address=""),
            serials=4,
            after=number * 4,
        )

    given = [record(number) for number in range(4)]
    assert len({vm.mac for vm in given}) == 4
    store.change_vm("1", address="192.0.2.7/24")
    found = store.vm("1")
    assert found is not None
    assert (found.address, found.mac) == ("192.0.2.7/24", given[1].mac)
    with pytest.raises(LabError, match="No free MAC address"):
        record(4)
    store.change_vm("2", state="gone")
    assert record(5).mac == given[2].mac
    store.lose_attempts([handle.id], WORKER_LOST)
    with pytest.raises(AttemptCancelled):
        record(6)


def test_a_parked_vm_is_taken_once_and_only_when_it_fits(store: Store) -> None:
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    values = vm_for(handle, campaign, "1")
    low, high = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.19")
    store.record_vm(lambda address: VmRecord(**values, address=f"{address}/24"), first=low, last=high, after=0)
    store.change_vm("1", state="parked", migrated=True)
    take = {"host": "a", "role": "sender", "shape": "s", "attempt_id": handle.id}
    assert store.take_parked(campaign, **(take | {"shape": "other"})) is None
    taken = store.take_parked(campaign, **take)
    assert taken is not None
    assert (taken.state, taken.migrations) == ("live", 1)
    assert store.take_parked(campaign, **take) is None


def test_idle_vms_are_those_that_no_attempt_in_progress_uses(store: Store) -> None:
    campaign = submit(store)
    handle = started_and_claimed(store, campaign)
    low, high = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.19")
    for name in ("1", "2"):
        values = vm_for(handle, campaign, name)
        store.record_vm(lambda address, v=values: VmRecord(**v, address=f"{address}/24"), first=low, last=high, after=0)
    store.change_vm("2", state="parked")
    assert [vm.uuid for vm in store.idle_vms(campaign)] == ["2"]
    accept(store, handle, a_result(), again=False)
    assert {vm.uuid for vm in store.idle_vms(campaign)} == {"1", "2"}
    store.change_vm("1", state="gone")
    assert [vm.uuid for vm in store.idle_vms(campaign)] == ["2"]
