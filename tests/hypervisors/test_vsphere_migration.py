"""vMotion on a simulated vCenter, where it takes its time, is queued, fails, is forgotten, and ends in the wrong place."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from labctl.model.lab import Host, Lab
from labctl.model.nic import Hypervisor
from labctl.model.result import MigrationSample
from tests.contracts.endpoints import until
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.hypervisors.vsphere_guests import done, named, somebody, vsphere_lab
from tests.simulators.vcsim import HOSTS, Datastore, VcSim, vcsim
from workers.guard import Guard
from workers.hypervisors.base import MigrationOutcome, Vm
from workers.hypervisors.vsphere.driver import VsphereDriver
from workers.hypervisors.vsphere.inventory import Row, properties
from workers.hypervisors.vsphere.relocation import home_of, relocation

pytestmark = pytest.mark.services

ALONE = "esx3.lab.test"


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    """A cluster of two hosts, and one that stands alone with a datastore of its own."""
    stores = (Datastore(name="shared", hosts=HOSTS), Datastore(name="alone", hosts=(ALONE,)))
    with vcsim(standalone=(ALONE,), datastores=stores) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again afterwards."""
    yield running
    running.heal()
    running.pace()
    for name in HOSTS:
        running.host(name, vmotion=True, incompatible=False, maintenance=False)


@pytest.fixture
def guests(vc: VcSim) -> Iterator[Guests]:
    with guests_of(lab_with_three(vc)) as made:
        yield made


def lab_with_three(vc: VcSim, **vcenter: Any) -> Lab:
    """Hosts `a` and `b` of the cluster, and `c`, that stands alone."""
    lab = vsphere_lab(vc)
    alone = Host(
        name="c", hypervisor=Hypervisor.VSPHERE, uri="", machine="c", vcenter="vc", inventory=ALONE, datastore="alone"
    )
    return replace(
        lab,
        hosts={**lab.hosts, "c": alone},
        migration_pairs=lab.migration_pairs | {("a", "c")},
        vcenters={"vc": replace(lab.vcenters["vc"], **vcenter)},
    )


def in_background(guests: Guests, vm: Vm, destination: str, **order: Any) -> tuple[threading.Thread, list[Any]]:
    """A migration in a thread of its own, and where its outcome will be."""
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(guests.driver.migrate(vm, destination, an_order(**order))))
    thread.start()
    return thread, outcomes


def relocating(vc: VcSim, count: int = 1) -> None:
    """Wait until the vCenter has been asked for so many relocations since the start."""
    until(lambda: vc.calls().get("RelocateVM_Task", 0) >= count, "a relocation")


def asked(vc: VcSim) -> int:
    return vc.calls().get("RelocateVM_Task", 0)


class TestArrival:
    def test_v5_it_says_what_vcenter_tells_and_nothing_else(self, vc: VcSim, guests: Guests) -> None:
        """V5, V6: times of the task, a percentage on the way, the stop that the log tells; of memory and passes nothing."""
        vc.pace(seconds=1.0)
        vm = guests.create()
        told: list[MigrationSample] = []
        before = time.time()
        outcome = guests.driver.migrate(vm, "b", an_order(), on_sample=told.append)
        assert outcome.completed, outcome
        assert before <= outcome.started <= outcome.ended <= time.time()
        assert outcome.total_ms is not None
        assert 900 < outcome.total_ms < 3000
        assert outcome.queued_ms is not None
        assert "TaskInfo" in outcome.stats_source
        assert "vmware.log" in outcome.stats_source
        assert (outcome.downtime_ms, outcome.no_downtime) == (0, ""), "nothing runs in this VM that would stand still"
        assert (outcome.bytes_moved, outcome.iterations, outcome.setup_ms) == (None, None, None)
        assert tuple(told) == outcome.samples
        percents = [sample.percent for sample in told]
        assert percents == sorted(percents)  # type: ignore[type-var]
        assert len(set(percents)) > 2
        assert {sample.memory_total for sample in told} == {None}
        assert guests.driver.locate(vm) == "b"
        assert guests.driver.incidents(vm, since=before) == ()

    def test_v7_pool_and_datastore_are_the_destinations(self, vc: VcSim, guests: Guests) -> None:
        """V7: from a cluster to a host that stands alone and has another datastore: all of host, pool, datastore is said."""
        vm = guests.create()
        outcome = guests.driver.migrate(vm, "c", an_order())
        assert outcome.completed, outcome
        session = somebody(vc)
        machine = named(session, vim.VirtualMachine, vm.name)
        (row,) = properties(session, (machine,), ("resourcePool", "datastore", "runtime.host", "parent"))
        host = named(session, vim.HostSystem, ALONE)
        assert row["runtime.host"] == host
        assert row["resourcePool"] == host.parent.resourcePool
        assert [store.name for store in row["datastore"]] == ["alone"]
        session.close()

    def test_v7_files_stay_where_both_hosts_see_them(self) -> None:
        """V7: said all the same, because a vCenter that is not told a datastore chooses one."""
        here, there, pool = vim.Datastore("datastore-1"), vim.Datastore("datastore-2"), vim.ResourcePool("pool-2")
        target = Target(vim.HostSystem("host-2"), pool, there)
        stays = relocation(target, files=here, reachable=True, folder=None)  # type: ignore[arg-type]
        moves = relocation(target, files=here, reachable=False, folder=None)  # type: ignore[arg-type]
        assert (stays.host, stays.pool, stays.datastore) == (target.at.host, pool, here)
        assert (moves.host, moves.pool, moves.datastore) == (target.at.host, pool, there)
        assert stays.folder is None

    def test_v7_the_datastore_of_a_cd_image_is_not_taken_for_the_vms(self) -> None:
        """V7: a VM names all datastores that it uses, in any order."""
        images, own = (Row(vim.Datastore(name), {"name": name.replace("/", "%2f")}) for name in ("iso", "ssd/1"))
        assert home_of("[ssd/1] labctl-x/labctl-x.vmx", [images, own]) == own.ref
        assert home_of("[gone] labctl-x/labctl-x.vmx", [images, own]) is None
        assert home_of("", [images, own]) is None

    def test_v2_a_lost_answer_is_no_second_vmotion(self, vc: VcSim, guests: Guests) -> None:
        """V2: the task that had begun is found and watched."""
        vm = guests.create()
        before = asked(vc)
        vc.cut_reply("RelocateVM_Task")
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert outcome.completed, outcome
        assert asked(vc) == before + 1

    def test_v6_a_log_that_can_not_be_read_is_said_to_be_so(self, vc: VcSim, guests: Guests) -> None:
        """V6: NULL when logs are not reachable, with where the downtime would be."""
        vm = guests.create()
        log = log_of(vc, vm)
        log.unlink(missing_ok=True)
        log.symlink_to("/nowhere/vmware.log")
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert outcome.completed
        assert outcome.downtime_ms is None
        assert "404" in outcome.no_downtime
        assert "Checkpoint_Unstun" in outcome.no_downtime
        assert "vmware.log" not in outcome.stats_source


class TestTurns:
    def test_v5_what_waits_in_vcenters_queue_is_told_apart(self, vc: VcSim, guests: Guests) -> None:
        """V5: surplus is queued, not refused; the time in the queue is no part of the vMotion's."""
        vc.pace(seconds=1.0, at_once=1)
        vm = guests.create()
        session = somebody(vc)
        template = named(session, vim.VirtualMachine, "windows-template")
        spec = vim.vm.RelocateSpec(host=named(session, vim.HostSystem, HOSTS[1]))
        task = template.RelocateVM_Task(spec)
        outcome = guests.driver.migrate(vm, "b", an_order())
        done(session, task)
        session.close()
        assert outcome.completed, outcome
        assert outcome.queued_ms is not None
        assert outcome.queued_ms > 300
        assert outcome.total_ms is not None
        assert outcome.total_ms < 2000

    def test_v5_no_more_vmotions_at_once_than_the_lab_allows(self, vc: VcSim, guests: Guests) -> None:
        """V5: by threads of this process."""
        vc.pace(seconds=0.5)
        vms = [guests.create() for _ in range(2)]
        begun = [in_background(guests, vm, "b") for vm in vms]
        spans = []
        for thread, outcomes in begun:
            thread.join(30)
            assert outcomes[0].completed, outcomes
            spans.append((outcomes[0].started, outcomes[0].ended))
        (_, end), (start, _) = sorted(spans)
        assert end <= start

    def test_v5_vmotions_of_other_processes_count(self, vc: VcSim, guests: Guests) -> None:
        """V5: seen by the tasks on VMs of labctl that vCenter has in progress."""
        vc.pace(seconds=1.0)
        theirs, ours = guests.create(), guests.create()
        session = somebody(vc)
        machine = named(session, vim.VirtualMachine, theirs.name)
        task = machine.RelocateVM_Task(vim.vm.RelocateSpec(host=named(session, vim.HostSystem, HOSTS[1])))
        outcome = guests.driver.migrate(ours, "b", an_order())
        done(session, task)
        assert outcome.completed, outcome
        assert outcome.started >= task.info.completeTime.timestamp() - 0.1
        session.close()

    def test_a_turn_that_never_comes_is_no_result(self, vc: VcSim, guests: Guests) -> None:
        vc.pace(seconds=30.0)
        theirs, ours = guests.create(), guests.create()
        session = somebody(vc)
        machine = named(session, vim.VirtualMachine, theirs.name)
        task = machine.RelocateVM_Task(vim.vm.RelocateSpec(host=named(session, vim.HostSystem, HOSTS[1])))
        outcome = guests.driver.migrate(ours, "b", an_order(deadline=0.5))
        task.CancelTask()
        assert (outcome.completed, outcome.error_kind) == (False, "refused")
        assert "No turn" in outcome.error
        until(lambda: task.info.state == "error", "the end of the other")
        session.close()


class TestInterruption:
    def test_at_the_deadline_it_is_cancelled_and_the_vm_is_where_it_was(self, vc: VcSim, guests: Guests) -> None:
        vc.pace(seconds=60.0)
        vm = guests.create()
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=1.0))
        assert (outcome.completed, outcome.error_kind) == (False, "deadline")
        assert "cancelled" in outcome.error
        assert guests.driver.locate(vm) == "a"
        assert outcome.samples
        before = time.time() - 60
        assert guests.driver.incidents(vm, since=before) == (), "its own failure is no incident"

    def test_a_cancel_ends_it(self, vc: VcSim, guests: Guests) -> None:
        vc.pace(seconds=60.0)
        vm = guests.create()
        before = asked(vc)
        thread, outcomes = in_background(guests, vm, "b")
        relocating(vc, before + 1)
        guests.guard.stop("the user said so")
        thread.join(30)
        assert (outcomes[0].completed, outcomes[0].error_kind) == (False, "cancelled")
        assert VsphereDriver(guests.lab, store="", guard=Guard()).locate(vm) == "a"

    def test_one_that_was_done_before_it_could_be_cancelled_is_done(self, vc: VcSim, guests: Guests) -> None:
        vc.pace(seconds=1.0)
        vm = guests.create()
        vc.fail("CancelTask", "NotSupported")
        outcome = guests.driver.migrate(vm, "b", an_order(deadline=0.3))
        assert outcome.completed, outcome
        assert guests.driver.locate(vm) == "b"


class TestFailure:
    def test_one_that_fails_on_its_way_leaves_the_vm_where_it_was(self, vc: VcSim, guests: Guests) -> None:
        vm = guests.create()
        vc.fail_task("RelocateVM_Task", "MigrationFault", at=0.5, seconds=1.0)
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "failed")
        assert "MigrationFault" in outcome.error
        assert guests.driver.locate(vm) == "a"

    def test_one_that_vcenter_does_not_begin_is_refused(self, vc: VcSim, guests: Guests) -> None:
        vm = guests.create()
        vc.fail("RelocateVM_Task", "NoPermission")
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "refused")
        assert "lacks a privilege" in outcome.error

    def test_a_right_that_is_missing_is_named(self, vc: VcSim, guests: Guests) -> None:
        vm = guests.create()
        vc.lack({"Resource.HotMigrate": ["*"]})
        try:
            outcome = guests.driver.migrate(vm, "b", an_order())
        finally:
            vc.lack({})
        assert (outcome.completed, outcome.error_kind) == (False, "refused")
        assert "Resource.HotMigrate" in outcome.error

    def test_v7_what_vcenter_has_against_it_is_told_before_anything_is_begun(self, vc: VcSim, guests: Guests) -> None:
        """V7: CheckRelocate_Task, with all that speaks against it."""
        vm = guests.create()
        before = asked(vc)
        vc.host(HOSTS[1], incompatible=True, vmotion=False)
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "refused")
        assert "CpuIncompatible" in outcome.error
        assert "VMotionNotConfigured" in outcome.error
        assert asked(vc) == before

    @pytest.mark.parametrize(
        ("setting", "word"),
        [
            ({"bandwidth": 10**9}, "bandwidth"),
            ({"auto_converge": True}, "auto_converge"),
            ({"post_copy": True}, "post_copy"),
        ],
    )
    def test_what_vsphere_has_no_way_to_do_is_refused(self, vc: VcSim, guests: Guests, setting: Any, word: str) -> None:
        vm = guests.create()
        before = asked(vc)
        outcome = guests.driver.migrate(vm, "b", an_order(**setting))
        assert (outcome.completed, outcome.error_kind) == (False, "refused")
        assert word in outcome.error
        assert asked(vc) == before

    def test_a_vm_that_vanishes_on_its_way_is_told(self, vc: VcSim, guests: Guests) -> None:
        vc.pace(seconds=2.0)
        vm = guests.create()
        before = asked(vc)
        thread, outcomes = in_background(guests, vm, "b")
        relocating(vc, before + 1)
        vc.remove(vm.name)
        thread.join(60)
        assert (outcomes[0].completed, outcomes[0].error_kind) in [(False, "failed"), (False, "refused")]
        assert "no longer in vCenter" in outcomes[0].error


class TestRestart:
    def test_v1_a_vmotion_that_vcenter_forgot_is_seen_to_arrive(self, vc: VcSim, guests: Guests) -> None:
        """V1: vCenter restarted in mid-vMotion; on the hosts it goes on. What is told of it then are events."""
        vc.pace(seconds=2.0)
        vm = guests.create()
        before = asked(vc)
        since = time.time()
        thread, outcomes = in_background(guests, vm, "b")
        relocating(vc, before + 1)
        vc.restart(closed=0.3)
        thread.join(60)
        outcome: MigrationOutcome = outcomes[0]
        assert outcome.completed, outcome
        assert outcome.total_ms is not None
        assert 1500 < outcome.total_ms < 4000
        assert "events" in outcome.stats_source
        assert guests.driver.locate(vm) == "b"
        assert asked(vc) == before + 1
        assert guests.driver.incidents(vm, since=since) == ()

    def test_v1_one_that_vcenter_forgot_and_that_does_not_arrive_ends_at_its_deadline(
        self, vc: VcSim, guests: Guests
    ) -> None:
        """V1: nothing waits for ever for a task that is gone."""
        vc.pace(seconds=6.0)
        vm = guests.create()
        before = asked(vc)
        thread, outcomes = in_background(guests, vm, "b", deadline=2.0)
        relocating(vc, before + 1)
        vc.restart()
        thread.join(60)
        assert (outcomes[0].completed, outcomes[0].error_kind) == (False, "deadline")
        until(lambda: guests.driver.locate(vm) == "b", "its end on the hosts")

    def test_v1_a_vcenter_that_is_silent_at_the_deadline_is_waited_for_and_asked_to_cancel(
        self, vc: VcSim, guests: Guests, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """V1: the deadline of an attempt does not depend on a server that answers."""
        monkeypatch.setattr("workers.hypervisors.vsphere.tls.CALL_SECONDS", 0.5)
        vc.pace(seconds=60.0)
        vm = guests.create()
        before = asked(vc)
        thread, outcomes = in_background(guests, vm, "b", deadline=2.0)
        relocating(vc, before + 1)
        vc.hang("*")
        thread.join(2.5)
        assert thread.is_alive(), "it waits although its deadline is over"
        vc.heal()
        thread.join(60)
        assert (outcomes[0].completed, outcomes[0].error_kind) == (False, "deadline")
        assert guests.driver.locate(vm) == "a"


class Target:
    """As much of a `VmPlace` as a relocation reads."""

    def __init__(self, host: Any, pool: Any, datastore: Any) -> None:
        self.at = type("At", (), {"host": host})
        self.pool = pool
        self.datastore = datastore


def log_of(vc: VcSim, vm: Vm) -> Path:
    """Where the log of a VM is, as a file of this machine."""
    return vc.ca_file.parent / "datastores" / "shared" / vm.name / "vmware.log"
