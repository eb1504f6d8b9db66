"""The promises of the store: one lease, one claim, one accepted result, whoever asks and however often."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from labctl.errors import AttemptCancelled, LabError, SpecError
from labctl.model.campaign import PlannedCell
from labctl.model.order import RunOrder
from labctl.model.outcome import CampaignState, Outcome, Purpose, RunState
from labctl.model.result import AttemptResult
from labctl.store import (
    MESSAGE_LOST,
    WORKER_LOST,
    After,
    AttemptHandle,
    AttemptStart,
    Store,
    VmRecord,
    open_store,
    sqlite_url,
)
from labctl.store.engines import make_engine
from labctl.store.place import parse_url
from labctl.store.tables import metadata
from tests.values import a_campaign, a_cell, a_lab, a_result, an_order

ONE = frozenset({"host:a", "machine:one"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def submit(store: Store, *, replicates: int = 2) -> int:
    cells = [
        PlannedCell(cell=a_cell(nic_model="virtio")),
        PlannedCell(cell=a_cell(nic_model="vt-d"), reason="no device"),
        PlannedCell(cell=a_cell(nic_model="e1000")),
    ]
    return store.submit(
        a_campaign(),
        a_lab(),
        campaign_text="campaign: small\n",
        lab_text="lab: lab\n",
        versions={"labctl": "0"},
        cells=cells,
        order=[(position, 1 + at, Purpose.MEASURE) for at in range(replicates) for position in (1, 0)],
    )


def start(store: Store, campaign: int, *, resources: frozenset[str] = ONE) -> AttemptHandle:
    run = store.pending_runs(campaign, limit=1)[0]
    handle = start_run(store, run.id, resources)
    assert handle is not None
    return handle


def start_run(
    store: Store, run_id: int, resources: frozenset[str], *, lab: str = "lab", order: RunOrder | None = None
) -> AttemptHandle | None:
    """Start one attempt."""
    asked = AttemptStart(run_id=run_id, order=order or an_order(), resources=resources, estimate=10.0)
    (handle,) = store.start_attempts(lab, [asked])
    return handle


def accept(store: Store, handle: AttemptHandle, result: AttemptResult, *, again: bool) -> bool:
    """Hand a result in."""
    return store.accept(handle, result, After(again=again)) is not None


def started_and_claimed(store: Store, campaign: int, **more: frozenset[str]) -> AttemptHandle:
    handle = start(store, campaign, **more)
    assert store.claim(handle, worker="w:1") is not None
    return handle


def test_migrations_make_the_tables_of_the_code(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    engine = make_engine(parse_url(sqlite_url(tmp_path)))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


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


def test_the_store_is_one_and_the_same_when_opened_again(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    campaign = submit(first)
    first.close()
    second = open_store(tmp_path)
    assert second.identity == first.identity
    assert second.newest_campaign() == campaign
    second.close()


def test_the_version_changes_when_somebody_writes_and_only_then(store: Store, tmp_path: Path) -> None:
    before = store.version()
    assert store.version() == before
    store.campaigns()
    assert store.version() == before, "reading is no change"
    other = open_store(tmp_path)
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


def vm_for(handle: AttemptHandle, campaign: int, uuid: str, shape: str = "s") -> dict[str, object]:
    return {
        "uuid": uuid, "name": f"labctl-{uuid}", "lab": "lab", "host": "a", "campaign_id": campaign, "run_id": 1,
        "attempt_id": handle.id, "role": "sender", "mac": "52:54:00:00:00:01", "shape": shape, "state": "live",
    }  # fmt: skip


def test_no_two_living_vms_have_one_address(store: Store) -> None:
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


def _compete(state: Path, campaign: int, won: multiprocessing.Queue[int]) -> None:
    store = open_store(state)
    for _ in range(40):
        run = store.pending_runs(campaign, limit=1)
        if not run:
            break
        handle = start_run(store, run[0].id, ONE, lab="lab")
        if handle is None:
            time.sleep(0.005)
            continue
        claimed = store.claim(handle, worker="w:1")
        assert claimed is not None
        assert len(store.leases("lab")) == len(ONE)
        assert accept(store, handle, a_result(), again=False)
        won.put(run[0].id)
    store.close()


@pytest.mark.services
def test_processes_that_compete_share_the_runs_and_never_a_host(store: Store, tmp_path: Path) -> None:
    campaign = submit(store, replicates=15)
    won: multiprocessing.Queue[int] = multiprocessing.get_context("spawn").Queue()
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_compete, args=(tmp_path, campaign, won)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0, "no process saw `database is locked` or a lease that it did not take"
    done = [won.get(timeout=5) for _ in range(store.run_counts(campaign).get("ok", 0))]
    assert len(done) == len(set(done)) > 0
    assert store.leases("lab") == ()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 65536)


@pytest.mark.services
def test_a_full_disk_is_said_and_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "labctl-test", str(disk)], check=True)
    try:
        store = open_store(disk)
        campaign = submit(store)
        handle = started_and_claimed(store, campaign)
        fill(disk / "filler")
        noise = random.Random(1).randbytes(400_000)
        with pytest.raises(LabError, match="could not be written"):
            accept(store, handle, a_result(raw=noise), again=False)
        (disk / "filler").unlink()
        assert accept(store, handle, a_result(raw=noise), again=False)
        assert store.run_counts(campaign) == {"ok": 1, "pending": 3}
        store.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        shutil.rmtree(disk)


def test_a_state_directory_named_relatively_is_one_store_for_processes_in_other_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = sqlite_url(Path("state"))
    first = open_store(Path("state"))
    monkeypatch.chdir("/")
    second = open_store(Path("ignored"), url=url)
    assert second.identity == first.identity
    first.close()
    second.close()
