"""The reaper, and cleaning: what labctl made and lost is removed, and nothing else, on simulated hosts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.campaign import commands, judgement
from labctl.cli.main import main
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, HostState, Outcome, OutcomeDetail
from labctl.model.result import AttemptResult
from labctl.store import WORKER_LOST, AttemptHandle, AttemptStart, CampaignHead, ClaimedAttempt, Store, open_store
from tests.campaign.byhand import on
from tests.simulated import a_simulated_lab, next_attempt, vms_left
from tests.values import a_campaign
from workers.cleaning import clean_campaign
from workers.guard import Guard
from workers.hypervisors.base import NAME_PREFIX, OwnershipMark, VmRequest
from workers.hypervisors.simulated.faults import Fault, FaultKind, write_faults
from workers.hypervisors.simulated.figures import Figures
from workers.leftovers import Whose
from workers.machines import Machines
from workers.placing import place, vm_of
from workers.reaping import find, reap


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return a_simulated_lab(tmp_path / "world", figures=Figures.instant())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def head(store: Store, lab: Lab) -> CampaignHead:
    settings = {"tool": "iperf", "seconds": 0.5, "interval": 0.1}
    campaign = a_campaign(settings=settings, warmups=0, repeats=4, back_off=0.0)
    return store.head(commands.submit(store, campaign, lab, campaign_text="c", lab_text="l"))


def claimed(store: Store, head: CampaignHead, *hosts: str, **changes: object) -> ClaimedAttempt:
    """An attempt of the campaign that a worker has just begun on hosts."""
    run = store.pending_runs(head.id, limit=1)[0]
    order = replace(on(*hosts), **changes)  # type: ignore[arg-type]
    names = frozenset(f"host:{host}" for host in hosts)
    (handle,) = store.start_attempts(head.lab.name, [AttemptStart(run_id=run.id, order=order, resources=names)])
    assert handle is not None
    found = store.claim(handle, worker="w:1")
    assert found is not None
    return found


def placed(store: Store, head: CampaignHead, *hosts: str, **changes: object) -> ClaimedAttempt:
    """The same, with its VMs up."""
    attempt = claimed(store, head, *hosts, **changes)
    place(attempt, Machines(head.lab, store=store.identity, guard=Guard()), store, Guard())
    return attempt


def lost(store: Store, head: CampaignHead, *hosts: str) -> ClaimedAttempt:
    """An attempt whose worker was killed when its VMs were up."""
    attempt = placed(store, head, *hosts)
    assert store.lose_attempts([attempt.id], WORKER_LOST) == (attempt.id,)
    return attempt


def make(
    lab: Lab, host: str, name: str, *, store: str, role: str = "sender", attempt: int = 1, campaign: int = 1
) -> str:
    """A VM that carries this mark, whoever knows of it."""
    shape = on(host).vm
    assert shape is not None
    mark = OwnershipMark(lab=lab.name, campaign=campaign, run=1, attempt=attempt, role=role, store=store)
    request = VmRequest(
        name=f"{NAME_PREFIX}{name}",
        uuid=f"uuid-{name}",
        shape=shape,
        image=lab.images["probe"],
        network=lab.network(),
        address=None,
        mac="52:54:00:00:00:01",
        mark=mark,
    )
    Machines(lab, store=store, guard=Guard()).driver(host).create(host, request, timeout=5)
    return request.name


def lose_host(lab: Lab, host: str) -> None:
    assert lab.simulated is not None
    write_faults(Path(lab.simulated.directory), [Fault(kind=FaultKind.HOST_LOST, host=host)])


def bring_back_all(lab: Lab) -> None:
    assert lab.simulated is not None
    write_faults(Path(lab.simulated.directory), [])


def whose(lab: Lab, store: Store) -> dict[str, Whose]:
    return {found.vm.name: found.whose for found in find(lab, store).vms}


# What is found and what becomes of it


def test_c5_vms_of_a_killed_worker_are_found_and_removed_and_its_hosts_are_free(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    attempt = lost(store, head, "a", "b")
    sight = find(lab, store)
    assert [found.vm.host for found in sight.left] == ["a", "b"]
    assert (sight.lost, sight.gone, sight.reported) == ((attempt.id,), (), ())
    assert len(vms_left(lab)) == 2, "looking changes nothing"
    reaped = reap(lab, store)
    assert (len(reaped.removed), reaped.freed, reaped.failed) == (2, (attempt.id,), ())
    assert vms_left(lab) == []
    assert store.leases(lab.name) == ()
    assert store.live_vms(lab.name) == ()
    assert [run.attempts for run in store.pending_runs(head.id, limit=99) if run.id == attempt.run_id] == [1]
    assert find(lab, store).clean


def test_vms_of_an_attempt_in_progress_are_left_alone(lab: Lab, store: Store, head: CampaignHead) -> None:
    placed(store, head, "a")
    assert set(whose(lab, store).values()) == {Whose.IN_USE}
    assert reap(lab, store).removed == ()
    clean_campaign(store, head.id)
    assert len(vms_left(lab)) == 2


def test_a_vm_that_labctl_did_not_make_or_has_no_record_of_is_never_touched(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    others = make(lab, "a", "others", store="another-store")
    unknown = make(lab, "a", "unknown", store=store.identity)
    elsewhere = replace(lab, name="elsewhere")
    make(elsewhere, "b", "of-another-lab", store=store.identity)
    assert lab.simulated is not None
    host = Path(lab.simulated.directory) / "hosts" / "a"
    (host / "labctl-unmarked").write_text(json.dumps(json.loads((host / others).read_text()) | {"mark": None}))
    before = vms_left(lab)
    assert whose(lab, store) == {
        others: Whose.ANOTHER_STORE,
        unknown: Whose.UNRECORDED,
        "labctl-of-another-lab": Whose.ANOTHER_LAB,
    }
    assert reap(lab, store).removed == ()
    assert vms_left(lab) == before
    assert len(before) == 4


def test_l5_a_vm_that_was_on_its_way_between_two_hosts_is_removed_from_both(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    attempt = lost(store, head, "a", "b")
    assert lab.simulated is not None
    hosts = Path(lab.simulated.directory) / "hosts"
    (on_a,) = (hosts / "a").iterdir()
    shutil.copy(on_a, hosts / "b" / on_a.name)
    sight = find(lab, store)
    assert sorted(found.vm.host for found in sight.left if found.vm.name == on_a.name) == ["a", "b"]
    assert reap(lab, store).freed == (attempt.id,)
    assert vms_left(lab) == []


def test_l5_a_vm_that_has_moved_before_its_worker_died_is_found_where_it_is(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    lost(store, head, "a")
    assert lab.simulated is not None
    hosts = Path(lab.simulated.directory) / "hosts"
    (hosts / "b").mkdir()
    moved, _ = sorted((hosts / "a").iterdir())
    moved.rename(hosts / "b" / moved.name)
    assert {found.vm.host for found in find(lab, store).left} == {"a", "b"}
    assert find(lab, store).gone == ()
    reap(lab, store)
    assert vms_left(lab) == []


def test_a_record_without_a_vm_is_closed_unless_an_attempt_is_about_to_create_it(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    attempt = placed(store, head, "a")
    for record in store.live_vms(lab.name):
        Machines(lab, store=store.identity, guard=Guard()).driver("a").destroy(vm_of(record))
    assert find(lab, store).gone == ()
    store.lose_attempts([attempt.id], WORKER_LOST)
    assert len(find(lab, store).gone) == 2
    assert len(reap(lab, store).gone) == 2
    assert store.live_vms(lab.name) == ()
    assert store.leases(lab.name) == ()


def test_a_vm_that_came_about_after_its_record_was_closed_is_removed(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    lost(store, head, "a")
    for record in store.live_vms(lab.name):
        store.change_vm(record.uuid, state="gone")
    assert len(find(lab, store).left) == 2
    assert len(reap(lab, store).removed) == 2
    assert vms_left(lab) == []


def test_a_probe_is_known_by_the_attempt_that_its_mark_names(lab: Lab, store: Store, head: CampaignHead) -> None:
    attempt = claimed(store, head, "a")
    ours = {"store": store.identity, "role": "probe", "campaign": head.id}
    probe = make(lab, "a", "probe-1", attempt=attempt.id, **ours)  # type: ignore[arg-type]
    unknown = make(lab, "a", "probe-2", attempt=attempt.id + 1, **ours)  # type: ignore[arg-type]
    assert whose(lab, store) == {probe: Whose.IN_USE, unknown: Whose.UNRECORDED}
    store.lose_attempts([attempt.id], WORKER_LOST)
    assert reap(lab, store).removed == (probe,)
    assert vms_left(lab) == [f"a/{unknown}"]


def parked(store: Store, head: CampaignHead) -> None:
    """Two VMs that wait for the next run."""
    attempt = placed(store, head, "a", reuse=True)
    for record in store.vms_of_attempt(attempt.id):
        Machines(head.lab, store=store.identity, guard=Guard()).driver("a").pause(vm_of(record))
        assert store.park_vm(record.uuid, attempt.id)
    done = AttemptResult(detail=OutcomeDetail(outcome=Outcome.OK))
    assert judgement.accept(store, AttemptHandle(id=attempt.id, token=attempt.token), done)


def test_parked_vms_are_kept_for_a_campaign_that_goes_on_and_removed_after_its_end(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    parked(store, head)
    assert set(whose(lab, store).values()) == {Whose.PARKED}
    reap(lab, store)
    clean_campaign(store, head.id)
    assert len(vms_left(lab)) == 2
    store.set_state(head.id, CampaignState.DONE)
    assert len(reap(lab, store).removed) == 2
    assert vms_left(lab) == []


def test_a_parked_vm_that_an_attempt_takes_meanwhile_is_not_removed(lab: Lab, store: Store, head: CampaignHead) -> None:
    parked(store, head)
    store.set_state(head.id, CampaignState.PAUSED)
    idle = store.idle_vms(head.id)
    store.set_state(head.id, CampaignState.ACTIVE)
    placed(store, head, "a", reuse=True)
    assert all(not store.take_idle(record.uuid) for record in idle)
    clean_campaign(store, head.id)
    assert len(vms_left(lab)) == 2


def test_cleaning_twice_at_once_or_late_is_harmless(lab: Lab, store: Store, head: CampaignHead) -> None:
    lost(store, head, "a")
    for _ in range(2):
        clean_campaign(store, head.id)
    next_attempt(store, head.id)
    placed(store, head, "b")
    clean_campaign(store, head.id)
    assert [entry.partition("/")[0] for entry in vms_left(lab)] == ["b", "b"]


# Hosts that don't answer


def test_a_host_that_does_not_answer_is_named_and_nothing_of_it_is_taken_for_gone(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    lost(store, head, "a", "b")
    lose_host(lab, "b")
    sight = find(lab, store)
    assert list(sight.unreachable) == ["b"]
    assert sight.gone == ()
    reaped = reap(lab, store)
    assert len(reaped.removed) == 1
    assert any("host b" in what for what in reaped.failed)
    assert [line.resource for line in store.leases(lab.name)] == ["host:a", "host:b"]
    bring_back_all(lab)
    assert reap(lab, store).failed == ()
    assert store.leases(lab.name) == ()


def test_a_host_that_can_not_be_cleaned_is_quarantined_and_keeps_no_other_host_waiting(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    attempt = lost(store, head, "a", "b")
    lose_host(lab, "b")
    for _ in range(3):
        clean_campaign(store, head.id)
    assert {record.host: record.state for record in store.hosts(lab.name)} == {"b": HostState.QUARANTINED}
    assert store.lost_attempts(lab=lab.name) == (attempt.id,)
    clean_campaign(store, head.id)
    assert store.leases(lab.name) == ()
    assert [run.id for run in store.pending_runs(head.id, limit=99) if run.id == attempt.run_id]
    assert len(store.live_vms(lab.name)) == 1, "what may still be on it is not forgotten"


def test_a_host_that_is_back_is_cleaned_before_anything_is_measured_on_it(
    lab: Lab, store: Store, head: CampaignHead
) -> None:
    lost(store, head, "a")
    lose_host(lab, "a")
    for _ in range(4):
        clean_campaign(store, head.id)
    assert store.leases(lab.name) == ()
    bring_back_all(lab)
    assert next_attempt(store, head.id).detail.outcome is Outcome.OK
    assert vms_left(lab) == []
    assert store.live_vms(lab.name) == ()


def test_an_attempt_does_not_measure_beside_a_vm_that_nobody_knows(lab: Lab, store: Store, head: CampaignHead) -> None:
    make(lab, "a", "unknown", store=store.identity, attempt=99)
    detail = next_attempt(store, head.id).detail
    assert (detail.outcome, detail.kind, detail.host) == (Outcome.LAB_ERROR, "leftovers", "a")


@pytest.mark.parametrize(("store_of", "kind"), [("another-store", "host-shared"), ("", "leftovers")])
def test_a_host_can_not_be_measured_while_anybody_uses_another_one_of_its_machine(
    store: Store, tmp_path: Path, store_of: str, kind: str
) -> None:
    apart = a_simulated_lab(tmp_path / "world", figures=Figures.instant())
    lab = replace(apart, hosts={name: replace(host, machine="one") for name, host in apart.hosts.items()})
    make(lab, "b", "theirs", store=store_of or store.identity, attempt=99)
    campaign = a_campaign(factors={"nic_model": ("virtio",)}, warmups=0)
    detail = next_attempt(store, commands.submit(store, campaign, lab, campaign_text="", lab_text="")).detail
    assert (detail.kind, detail.host) == (kind, "a")


# The command


def labctl(store_of: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--state", str(store_of / "state"), "reap", *arguments])


def test_the_command_lists_first_and_removes_only_when_asked(
    lab: Lab, store: Store, head: CampaignHead, tmp_path: Path
) -> None:
    lost(store, head, "a")
    listed = labctl(tmp_path, "--lab", lab.name, "--dry-run")
    assert listed.exit_code == 0, listed.output
    assert listed.output.count("would be removed") == 2
    assert len(vms_left(lab)) == 2
    done = labctl(tmp_path, "--all")
    assert done.exit_code == 0, done.output
    assert "2 VMs removed" in done.output
    assert vms_left(lab) == []
    assert "nothing is left behind" in labctl(tmp_path, "--all").output


def test_programs_get_the_same_facts(lab: Lab, store: Store, head: CampaignHead, tmp_path: Path) -> None:
    attempt = lost(store, head, "a")
    make(lab, "b", "others", store="another-store")
    (facts,) = json.loads(labctl(tmp_path, "--lab", lab.name, "--dry-run", "--json").output)
    assert facts["lab"] == lab.name
    assert [vm["attempt"] for vm in facts["left"]] == [attempt.id, attempt.id]
    assert [vm["whose"] for vm in facts["reported"]] == ["of another store"]
    assert facts["lost_attempts"] == [attempt.id]
    assert "removed" not in facts
    (facts,) = json.loads(labctl(tmp_path, "--lab", lab.name, "--json").output)
    assert len(facts["removed"]) == 2
    assert facts["freed_attempts"] == [attempt.id]


def test_what_could_not_be_looked_at_is_said_by_the_exit_code(
    lab: Lab, store: Store, head: CampaignHead, tmp_path: Path
) -> None:
    lost(store, head, "a")
    lose_host(lab, "a")
    for arguments in (["--dry-run"], []):
        ended = labctl(tmp_path, "--all", *arguments)
        assert ended.exit_code == 3
        assert "host a" in ended.output.lower()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs a lab"),
        (["--all", "--lab", "simulated"], "needs a lab"),
        (["--lab", "nowhere"], "no campaign was ever submitted for a lab of this name"),
    ],
)
def test_a_lab_has_to_be_named_that_is_known(
    head: CampaignHead, tmp_path: Path, arguments: list[str], said: str
) -> None:
    ended = labctl(tmp_path, *arguments)
    assert ended.exit_code == 2
    assert said in ended.stderr
