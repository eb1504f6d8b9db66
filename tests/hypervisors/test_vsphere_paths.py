"""What speaks against migrating between two hosts, before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyVmomi import vim

from labctl.errors import LabError
from labctl.model.lab import Lab, Network
from tests.hypervisors.vsphere_guests import driver_of, vsphere_lab
from tests.simulators.vcsim import HOSTS, Datastore, VcSim, vcsim
from workers.hypervisors.vsphere import paths
from workers.hypervisors.vsphere.inventory import Row

MODES = {"intel-nehalem": 2, "intel-broadwell": 6, "amd-zen": 7}


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    stores = (
        Datastore(name="shared"),
        Datastore(name="own-1", hosts=HOSTS[:1]),
        Datastore(name="own-2", hosts=HOSTS[1:]),
    )
    with vcsim(datastores=stores, portgroups=("doubled", "doubled")) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    yield running
    running.heal()
    for name in HOSTS:
        running.host(name, connection="connected", maintenance=False, vmotion=True)


def objection(vc: VcSim, **changes: Any) -> str:
    """What a driver says of the way from `a` to `b`."""
    driver = driver_of(vc, **changes)
    try:
        return driver.check_migration("a", "b")
    finally:
        driver.close()


@pytest.mark.services
class TestHosts:
    def test_v7_nothing_speaks_against_two_hosts_of_a_cluster(self, vc: VcSim) -> None:
        """V7: asked without a VM, and nothing is changed by it."""
        before = vc.calls()
        assert objection(vc) == ""
        changing = {name for name, count in vc.calls().items() if count > before.get(name, 0)}
        assert changing <= READING

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"connection": "disconnected"}, "Host b is disconnected"),
            ({"connection": "notResponding"}, "Host b is notResponding"),
            ({"maintenance": True}, "Host b is in maintenance mode"),
            ({"vmotion": False}, "Host b has no VMkernel adapter with vMotion enabled"),
        ],
    )
    def test_v7_a_host_that_can_not_take_vms_is_named(self, vc: VcSim, change: Any, words: str) -> None:
        """V7: connected, out of maintenance, vMotion enabled; of either side."""
        vc.host(HOSTS[1], **change)
        assert words in objection(vc)
        vc.host(HOSTS[1], connection="connected", maintenance=False, vmotion=True)
        vc.host(HOSTS[0], **change)
        assert words.replace("Host b", "Host a") in objection(vc)

    def test_v7_datastores_that_hosts_do_not_share_are_no_obstacle_to_vsphere(self, vc: VcSim) -> None:
        """V7: files move along (since vSphere 5.1), unless a host says that it can't do that."""
        lab = vsphere_lab(vc)
        hosts = {name: replace(lab.hosts[name], datastore=f"own-{at}") for at, name in enumerate("ab", start=1)}
        assert objection(vc, hosts=hosts) == ""

    def test_v7_a_datastore_that_is_not_there_is_said_to_be_so(self, vc: VcSim) -> None:
        """V7: the names of the lab file are looked up on both hosts."""
        lab = vsphere_lab(vc)
        hosts = {**lab.hosts, "b": replace(lab.hosts["b"], datastore="own-1")}
        assert "own-1" in objection(vc, hosts=hosts)

    @pytest.mark.parametrize(("bridge", "words"), [("nowhere", "no network nowhere"), ("doubled", "several networks")])
    def test_v7_both_hosts_must_have_the_one_port_group(self, vc: VcSim, bridge: str, words: str) -> None:
        """V7, V8: by name, and ambiguity is told."""
        network = Network(name="data", bridge=bridge, addressing="dhcp")
        assert words in objection(vc, networks={"data": network})

    def test_a_vcenter_that_does_not_answer_is_an_error_and_no_answer(self, vc: VcSim) -> None:
        lab = vsphere_lab(vc)
        vcenters = {"vc": replace(lab.vcenters["vc"], address="127.0.0.1:9")}
        with pytest.raises(LabError) as caught:
            objection(vc, vcenters=vcenters)
        assert caught.value.kind == "host-unreachable"


READING = {
    "CreateContainerView", "CurrentTime", "DestroyView", "Fetch", "Login", "Logout", "RetrievePropertiesEx",
    "RetrieveServiceContent",
}  # fmt: skip


class TestLab:
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        nowhere = SimpleNamespace(address="vc.example.com", user="u", password="p", ca_file=tmp_path / "ca.pem")
        return vsphere_lab(nowhere)  # type: ignore[arg-type]

    def test_what_the_lab_file_answers(self, lab: Lab) -> None:
        assert paths.check_inventory(lab, "a", "b") == ""
        assert "same host" in paths.check_inventory(lab, "a", "a")
        assert "no migration path" in paths.check_inventory(replace(lab, migration_pairs=frozenset()), "a", "b")

    def test_v7_two_vcenters_are_no_path(self, lab: Lab) -> None:
        """V7: both hosts in one vCenter."""
        apart = {**lab.hosts, "b": replace(lab.hosts["b"], vcenter="other")}
        assert "vCenter vc and host b by other" in paths.check_inventory(replace(lab, hosts=apart), "a", "b")


class TestProcessors:
    def compare(self, here: dict[str, Any], there: dict[str, Any]) -> str:
        return paths.processor_objection(MODES, "a", here, "b", there)

    def cpu(self, vendor: str = "intel", *, most: str = "", current: str = "") -> dict[str, Any]:
        return {
            "hardware.cpuPkg": [SimpleNamespace(vendor=vendor)],
            "summary.maxEVCModeKey": most or None,
            "summary.currentEVCModeKey": current or None,
        }

    def test_v7_makers_that_differ(self) -> None:
        """V7: CPU compatibility."""
        assert "different makers (amd, intel)" in self.compare(self.cpu("amd"), self.cpu("intel"))

    def test_v7_a_newer_source_than_destination(self) -> None:
        """V7: CPU compatibility."""
        newer, older = self.cpu(most="intel-broadwell"), self.cpu(most="intel-nehalem")
        assert "set an EVC mode" in self.compare(newer, older)
        assert self.compare(older, newer) == ""

    def test_v7_what_counts_is_the_mode_in_force(self) -> None:
        """V7: EVC."""
        baseline = self.cpu(most="intel-broadwell", current="intel-nehalem")
        older = self.cpu(most="intel-nehalem")
        assert self.compare(baseline, older) == ""
        assert "intel-broadwell" in self.compare(self.cpu(most="intel-broadwell"), baseline)

    def test_what_is_not_known_is_no_objection(self) -> None:
        assert self.compare({}, {}) == ""
        assert self.compare(self.cpu(most="intel-future"), self.cpu(most="intel-nehalem")) == ""


class TestAdapters:
    def adapters(self, *, selected: list[str], stack: str = "defaultTcpipStack") -> tuple[str, ...]:
        def nic(device: str, stack: str) -> Any:
            spec = vim.host.VirtualNic.Specification(netStackInstanceKey=stack)
            return vim.host.VirtualNic(device=device, key=f"key-{device}", portgroup="p", spec=spec)

        nics = [nic("vmk0", "defaultTcpipStack"), nic("vmk1", stack)]
        config = vim.host.VirtualNicManager.NetConfig(
            nicType="vmotion", multiSelectAllowed=True, candidateVnic=nics, selectedVnic=selected
        )
        other = vim.host.VirtualNicManager.NetConfig(
            nicType="management", multiSelectAllowed=True, candidateVnic=nics, selectedVnic=["key-vmk0"]
        )
        values = {"config.virtualNicManagerInfo.netConfig": [other, config], "config.network.vnic": nics}
        return paths.vmotion_adapters(Row(None, values))

    def test_v7_those_that_are_selected_for_vmotion(self) -> None:
        """V7: vMotion networks."""
        assert self.adapters(selected=[]) == ()
        assert self.adapters(selected=["key-vmk1"]) == ("vmk1",)

    def test_v7_those_of_the_tcpip_stack_for_vmotion_need_no_selection(self) -> None:
        """V7: vMotion networks, since vSphere 6.0."""
        assert self.adapters(selected=[], stack="vmotion") == ("vmk1",)
