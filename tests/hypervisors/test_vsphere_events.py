"""What others did to a VM, told from what labctl did, by the history of vCenter."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyVmomi import vim

from labctl.errors import LabError
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.hypervisors.vsphere_guests import done, named, somebody, vsphere_lab
from tests.simulators.vcsim import CLUSTER, HOSTS, VcSim, vcsim
from workers.hypervisors.vsphere.events import CLOCK_SECONDS, VmEvent, judge, same_account

US = "VSPHERE.LOCAL\\labctl"
NOON = 1_796_040_000.0


def event(kind: str, *, user: str = "VSPHERE.LOCAL\\admin", at: float = NOON, host: str = "esx2") -> VmEvent:
    return VmEvent(kind=kind, at=at, user=user, host=host, message=f"{kind} happened")


def told(*events: VmEvent, own: Sequence[tuple[float, float]] = ()) -> tuple[str, ...]:
    return judge(events, us=US, own=own)


@pytest.mark.parametrize(
    ("kind", "user", "words"),
    [
        ("DrsVmMigratedEvent", "", "DRS moved it (host esx2), by vCenter itself"),
        ("VmMigratedEvent", "VSPHERE.LOCAL\\admin", "it was moved (host esx2), by VSPHERE.LOCAL\\admin"),
        ("VmRelocatedEvent", "admin@vsphere.local", "it was relocated"),
        ("VmRestartedOnAlternateHostEvent", "", "HA restarted it on another host"),
        ("com.vmware.vc.ha.VmRestartedByHAEvent", "", "HA restarted it"),
        ("VmReconfiguredEvent", "backup", "it was reconfigured"),
        ("VmRenamedEvent", "backup", "it was renamed"),
        ("VmPoweredOffEvent", "", "it was powered off"),
        ("VmFailedMigrateEvent", "backup", "somebody tried to move it"),
    ],
)
def test_v10_what_others_did_is_told_with_when_who_and_where(kind: str, user: str, words: str) -> None:
    """V10: DRS, HA and people."""
    (sentence,) = told(event(kind, user=user))
    assert sentence.startswith("At ")
    assert words in sentence
    assert f"{kind} happened" in sentence


def test_v10_what_labctl_did_is_no_incident() -> None:
    """V10: by the account of its session, however vCenter spells it."""
    for user in (US, "labctl@vsphere.local", "LABCTL@VSPHERE.LOCAL"):
        assert told(event("VmReconfiguredEvent", user=user), event("VmPoweredOffEvent", user=user)) == ()
    own = [(NOON - 10, NOON + 10)]
    assert told(event("VmMigratedEvent", user=US), event("VmFailedMigrateEvent", user=US), own=own) == ()


def test_v10_a_move_with_labctls_account_that_labctl_did_not_make_is_an_incident() -> None:
    """V10: accounts are shared. Moved by somebody else."""
    (sentence,) = told(event("VmMigratedEvent", user=US), own=[(NOON - 100, NOON - 50)])
    assert "labctl's own account, but not by labctl" in sentence


def test_v10_a_move_by_drs_while_labctl_moves_is_an_incident_all_the_same() -> None:
    """V10: only moves by labctl's account are labctl's."""
    assert told(event("DrsVmMigratedEvent", user=""), own=[(NOON - 10, NOON + 10)])


def test_events_that_change_nothing_are_no_incidents() -> None:
    assert told(event("VmMessageEvent"), event("VmAcquiredTicketEvent"), event("VmPoweredOnEvent", user="")) == ()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("VSPHERE.LOCAL\\Administrator", "administrator@vsphere.local", True),
        ("root", "root", True),
        ("VSPHERE.LOCAL\\labctl", "OTHER\\labctl", False),
        ("labctl", "labctl2", False),
        ("", "labctl", False),
    ],
)
def test_names_of_accounts(one: str, other: str, same: bool) -> None:
    assert same_account(one, other) is same


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    with vcsim() as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    yield running
    running.heal()


@pytest.fixture
def guests(vc: VcSim) -> Iterator[Guests]:
    with guests_of(vsphere_lab(vc)) as made:
        yield made


@pytest.mark.services
class TestHistory:
    def test_v10_a_vm_that_drs_moved_is_told_with_where_it_is_now(self, vc: VcSim, guests: Guests) -> None:
        """V10: DRS moves the VM in mid test; placement is read back besides."""
        vm = guests.create()
        since = time.time()
        assert guests.driver.incidents(vm, since=since) == ()
        vc.drs_move(vm.name, HOSTS[1])
        (sentence,) = guests.driver.incidents(vm, since=since)
        assert "DRS moved it (host esx2.lab.test)" in sentence
        assert guests.driver.locate(vm) == "b"

    def test_v10_what_somebody_did_by_hand_is_told_in_order(self, vc: VcSim, guests: Guests) -> None:
        """V10: moved and renamed by somebody else, one of them with labctl's own account."""
        vm = guests.create()
        since = time.time()
        session = somebody(vc)
        machine = named(session, vim.VirtualMachine, vm.name)
        spec = vim.vm.RelocateSpec(host=named(session, vim.HostSystem, HOSTS[1]))
        done(session, machine.RelocateVM_Task(spec))
        session.close()
        vc.rename(vm.name, "labctl-else")
        moved, renamed = guests.driver.incidents(vm, since=since)
        vc.rename("labctl-else", vm.name)
        assert "labctl's own account, but not by labctl" in moved
        assert "it was renamed" in renamed
        assert "by somebody@vsphere.local" in renamed

    def test_v10_what_was_before_is_not_told(self, vc: VcSim, guests: Guests) -> None:
        """V10: by the clock of vCenter, moved to the worker's."""
        vm = guests.create()
        vc.drs_move(vm.name, HOSTS[1])
        assert guests.driver.incidents(vm, since=time.time() + CLOCK_SECONDS + 0.1) == ()
        assert guests.driver.incidents(vm, since=time.time() - 60) != ()

    def test_v10_what_labctl_did_itself_is_not_told(self, guests: Guests) -> None:
        """V10: creating, migrating there and back, pausing."""
        since = time.time()
        vm = guests.create()
        assert guests.driver.migrate(vm, "b", an_order()).completed
        guests.driver.pause(vm)
        guests.driver.unpause(vm)
        assert guests.driver.migrate(vm, "a", an_order()).completed
        assert guests.driver.incidents(vm, since=since) == ()

    def test_who_can_not_be_asked_is_an_error_and_not_silence(self, vc: VcSim, guests: Guests) -> None:
        vm = guests.create()
        vc.fail("QueryEvents", "NoPermission")
        with pytest.raises(LabError):
            guests.driver.incidents(vm, since=time.time())


@pytest.mark.services
class TestPins:
    """Overrides of DRS. The simulated cluster has DRS switched on."""

    @pytest.fixture
    def pinned(self, vc: VcSim) -> Iterator[Guests]:
        """A lab that asks for overrides, in a cluster whose DRS moves VMs as it likes."""
        lab = vsphere_lab(vc)
        session = somebody(vc)
        cluster = named(session, vim.ClusterComputeResource, CLUSTER)
        automatic = vim.cluster.DrsConfigInfo(enabled=True, defaultVmBehavior="fullyAutomated")
        done(session, cluster.ReconfigureComputeResource_Task(vim.cluster.ConfigSpecEx(drsConfig=automatic), True))
        session.close()
        with guests_of(replace(lab, vcenters={"vc": replace(lab.vcenters["vc"], pin=True)})) as made:
            yield made

    def overrides(self, vc: VcSim) -> list[Any]:
        session = somebody(vc)
        cluster = named(session, vim.ClusterComputeResource, CLUSTER)
        found = list(cluster.configurationEx.drsVmConfig or [])
        session.close()
        return found

    def test_v10_drs_leaves_a_pinned_vm_alone_until_it_is_destroyed(self, vc: VcSim, pinned: Guests) -> None:
        """V10: an override for each VM, which goes with it."""
        vm = pinned.create()
        (override,) = self.overrides(vc)
        assert override.enabled is False
        facts = pinned.driver.read_back(vm)
        assert facts["drs.pinned"] is True
        assert "drs.problem" not in facts
        pinned.driver.destroy(vm)
        assert self.overrides(vc) == []

    def test_v10_without_the_right_the_vm_is_there_and_the_fact_says_why(self, vc: VcSim, pinned: Guests) -> None:
        """V10: no rights on the cluster are no error."""
        vc.fail("ReconfigureComputeResource_Task", "NoPermission", times=0)
        vm = pinned.create()
        facts = pinned.driver.read_back(vm)
        assert "may not change overrides of DRS" in str(facts["drs.problem"])
        pinned.driver.destroy(vm)

    def test_v2_an_override_whose_answer_was_lost_is_made_once(self, vc: VcSim, pinned: Guests) -> None:
        """V2: looked for before it is asked for again."""
        vc.cut_reply("ReconfigureComputeResource_Task")
        vm = pinned.create()
        assert len(self.overrides(vc)) == 1
        assert "drs.problem" not in pinned.driver.read_back(vm)

    def test_v10_a_vm_that_is_not_pinned_has_no_override(self, vc: VcSim, guests: Guests) -> None:
        """V10: the cluster's settings are changed only where the lab file says so."""
        before = vc.calls().get("ReconfigureComputeResource_Task", 0)
        vm = guests.create()
        assert "drs.pinned" not in guests.driver.read_back(vm)
        guests.driver.destroy(vm)
        assert vc.calls().get("ReconfigureComputeResource_Task", 0) == before
