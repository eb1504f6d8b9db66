"""What an ESXi host is, does, and lacks, as a simulated vCenter says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyVmomi import vim

from labctl.errors import LabError
from labctl.model.lab import ChannelKind, Cloning, Customisation, Image, ImageKind
from tests.hypervisors.guests import Guests, guests_of
from tests.hypervisors.vsphere_guests import PROBE, done, driver_of, named, somebody, vcenter_of, vsphere_lab
from tests.simulators.vcsim import HOSTS, LINUX, Datastore, Template, VcSim, vcsim
from workers.check import check_lab, check_members
from workers.hypervisors.vsphere import facts, load, rights

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    """One vCenter for the tests of this file."""
    with vcsim(
        datastores=(Datastore(name="shared"), Datastore(name="second")),
        portgroups=("dvpg",),
        templates=(LINUX, Template(name="bare", snapshot=""), Template(name="a-vm", is_vm=True)),
        machines=3,
    ) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again afterwards."""
    yield running
    running.heal()
    running.lack({})
    running.host(HOSTS[0], connection="connected", maintenance=False)


@pytest.fixture
def iso(vc: VcSim) -> Image:
    """A CD image that is on the shared datastore."""
    (vc.ca_file.parent / "datastores" / "shared" / "x.iso").write_bytes(b"x")
    return Image(name="live", kind=ImageKind.ISO, iso="[shared] x.iso", guest_id="debian11_64Guest")


@pytest.fixture
def guests(vc: VcSim) -> Iterator[Guests]:
    """VMs on it."""
    with guests_of(vsphere_lab(vc)) as made:
        yield made


def test_facts_of_a_host_say_what_it_is(vc: VcSim) -> None:
    driver = driver_of(vc)
    told = driver.host_facts("a")
    assert (told["hostname"], told["inventory.path"]) == (HOSTS[0], f"/dc1/host/cluster1/{HOSTS[0]}")
    assert str(told["esxi.build"]).isdigit()
    assert told["simulated"] is True
    assert (told["pnic.vmnic0.driver"], told["pnic.vmnic0.link_mbit"]) == ("nvmxnet3", 10000)
    assert (told["network.data.kind"], told["network.data.switch"]) == ("standard", "vSwitch0")
    assert (told["network.data.mtu"], told["network.data.uplinks"], told["network.data.vlan"]) == (1500, "vmnic0", 0)
    assert told["datastore.name"] == "shared"
    assert {"vcenter.version", "esxi.version", "cpu.model", "memory.bytes", "memory.free_bytes"} <= set(told)
    driver.close()


def test_facts_of_a_host_count_its_vms(vc: VcSim, guests: Guests) -> None:
    session = somebody(vc)
    before = guests.driver.host_facts("a")
    vm = guests.create()
    done(session, named(session, vim.VirtualMachine, "other-0").PowerOnVM_Task())
    try:
        told = {host: guests.driver.host_facts(host) for host in "ab"}
        assert sum(int(str(one["vms.foreign"])) for one in told.values()) == 1
        assert int(str(told["a"]["vms.ours"])) == int(str(before["vms.ours"])) + 1
        guests.driver.destroy(vm)
    finally:
        done(session, named(session, vim.VirtualMachine, "other-0").PowerOffVM_Task())


def test_a_distributed_port_group_is_told_as_one(vc: VcSim) -> None:
    lab = vsphere_lab(vc)
    driver = driver_of(vc, networks={"data": replace(lab.network(), bridge="dvpg")})
    told = driver.host_facts("a")
    assert (told["network.data.kind"], told["network.data.port_group"]) == ("distributed", "dvpg")
    driver.close()


def test_settings_of_a_distributed_port_group_are_read() -> None:
    """The simulator has none: ranges of a trunk, teaming, shaping."""
    ranges = [SimpleNamespace(start=1, end=5), SimpleNamespace(start=7, end=9)]
    assert facts._vlan(SimpleNamespace(vlanId=ranges)) == "1-5,7-9"
    assert facts._vlan(SimpleNamespace(vlanId=42)) == 42
    assert facts._vlan(None) is None
    assert facts._value(SimpleNamespace(value="loadbalance_ip")) == "loadbalance_ip"
    assert facts._value(None) is None


def test_facts_cost_the_same_however_many_vms_there_are(vc: VcSim) -> None:
    driver = driver_of(vc)
    driver.host_facts("a")
    before = sum(vc.calls().values())
    driver.host_facts("a")
    assert sum(vc.calls().values()) - before <= 8
    driver.close()


def test_the_load_is_what_the_vcenter_has_heard_of(vc: VcSim, guests: Guests) -> None:
    vm = guests.create()
    first = guests.driver.load("a")
    before = vc.calls()
    second = guests.driver.load("a")
    for seen in (first, second):
        assert 0 <= seen.cpu <= 1
        assert seen.network is not None
        assert seen.load is not None
    assert seen.running == frozenset({vm.uuid})
    after = vc.calls()
    assert sum(after.values()) - sum(before.values()) == 3
    guests.driver.pause(vm)
    assert guests.driver.load("a").running == frozenset()


def test_counters_that_a_vcenter_lacks_are_unknown(vc: VcSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_NETWORK", "no.such.counter")
    driver = driver_of(vc)
    assert driver.load("a").network is None
    monkeypatch.setattr(load, "_RUNNING", "no.such.counter")
    assert driver.load("a").load is None
    vc.fail("QueryPerf", "InvalidArgument")
    monkeypatch.undo()
    assert driver.load("a").network is None
    driver.close()


def test_a_lab_in_which_all_is_there_lacks_nothing(vc: VcSim) -> None:
    driver = driver_of(vc)
    assert driver.lacks("a") == driver.lacks("b") == ()
    driver.close()


def test_every_missing_privilege_is_told_on_the_object_where_it_is_missing(vc: VcSim) -> None:
    vc.lack(
        {
            "Datastore.FileManagement": ["shared"],
            "VirtualMachine.Interact.Suspend": ["vm"],
            "Network.Assign": ["VM Network"],
            "Resource.AssignVMToPool": ["Resources"],
            "VirtualMachine.Provisioning.DeployTemplate": [LINUX.name],
            "Resource.HotMigrate": ["*"],
            "Host.Config.Network": ["*"],
        }
    )
    driver = driver_of(vc)
    found = {lack.what: lack.todo for lack in driver.lacks("a")}
    driver.close()
    assert len(found) == 5
    for words in (
        "Datastore.FileManagement on datastore /dc1/datastore/shared",
        "Resource.HotMigrate, VirtualMachine.Interact.Suspend on folder /dc1/vm",
        "Network.Assign on network /dc1/network/VM Network",
        "Resource.AssignVMToPool on resource pool /dc1/host/cluster1/Resources",
        f"VirtualMachine.Provisioning.DeployTemplate on template {LINUX.name}",
    ):
        (what,) = [what for what in found if words in what]
        assert what.startswith(vc.user)
        assert found[what]


def test_only_what_the_lab_needs_is_asked_for(vc: VcSim) -> None:
    """A lab without migrations, with one image that is a VM and cloned by VMware Tools, needs other rights."""
    vc.lack({name: ["*"] for name in (*rights.FOLDER_MIGRATING, *rights.TEMPLATE, *rights.FOLDER_TOOLS)})
    lab = vsphere_lab(vc, migration_pairs=frozenset())
    driver = driver_of(vc, migration_pairs=frozenset(), images={"probe": replace(PROBE, template="a-vm")})
    assert driver.lacks("a") == ()
    driver.close()
    by_tools = replace(PROBE, template="a-vm", channel=ChannelKind.VMTOOLS)
    driver = driver_of(vc, migration_pairs=lab.migration_pairs, images={"probe": by_tools})
    (lack,) = driver.lacks("a")
    assert ", ".join(sorted(rights.FOLDER_TOOLS)) in lack.what
    driver.close()


@pytest.mark.parametrize("feature", ["iso", "customisation", "pin", "devices"])
def test_what_a_feature_needs_is_missing_only_where_it_is_used(vc: VcSim, iso: Image, feature: str) -> None:
    lab = vsphere_lab(vc)
    changes: dict[str, dict[str, Any]] = {
        "iso": {"images": {"live": iso}},
        "customisation": {"images": {"probe": replace(PROBE, customisation=Customisation.GUEST_OS)}},
        "pin": {"vcenters": {"vc": replace(vcenter_of(vc), pin=True)}},
        "devices": {"hosts": {**lab.hosts, "a": replace(lab.hosts["a"], devices=("0000:3b:00.0",))}},
    }
    privileges = {
        "iso": rights.FOLDER_ISO,
        "customisation": rights.FOLDER_CUSTOMISED,
        "pin": rights.CLUSTER_PIN,
        "devices": rights.FOLDER_PASSTHROUGH,
    }
    vc.lack({name: ["*"] for name in privileges[feature]})
    for driver, expected in ((driver_of(vc), 0), (driver_of(vc, **changes[feature]), 1)):
        found = driver.lacks("a")
        assert len(found) == expected
        assert all(name in lack.what for lack in found for name in privileges[feature])
        driver.close()


def test_a_cd_image_that_is_not_there_is_told(vc: VcSim, iso: Image) -> None:
    wrong = (
        ("[shared] y.iso", "no CD image"),
        ("[shared] nowhere/x.iso", "no CD image"),
        ("[nowhere] x.iso", "no datastore nowhere"),
    )
    for path, words in (("[shared] x.iso", ""), *wrong):
        driver = driver_of(vc, images={"live": replace(iso, iso=path)})
        found = driver.lacks("a")
        driver.close()
        assert [words in lack.what for lack in found] == [True] * bool(words)
        assert all("images.live.iso" in lack.todo for lack in found)


def test_one_esxi_host_clones_nothing(vc: VcSim, iso: Image) -> None:
    """The simulator is a vCenter; what it says that it is, is changed on its way."""
    for image, expected in ((PROBE, 1), (iso, 0)):
        driver = driver_of(vc, images={image.name: image})
        session = driver._connections.session("a")
        session.content.about.apiType = "HostAgent"
        found = driver.lacks("a")
        assert len(found) == expected
        assert all("can't clone" in lack.what for lack in found)
        driver.close()


def test_all_objects_that_are_missing_are_told_at_once(vc: VcSim) -> None:
    lab = vsphere_lab(vc)
    hosts = {**lab.hosts, "a": replace(lab.hosts["a"], datastore="nowhere", resource_pool="nopool")}
    networks = {"data": replace(lab.network(), bridge="nonet")}
    images = {"probe": replace(PROBE, template="notemplate"), "bare": replace(PROBE, name="bare", template="bare")}
    vcenters = {"vc": replace(lab.vcenters["vc"], folder="nofolder")}
    driver = driver_of(vc, hosts=hosts, networks=networks, images=images, vcenters=vcenters)
    told = [lack.what for lack in driver.lacks("a")]
    driver.close()
    for words in ("nowhere", "nopool", "nonet", "notemplate", "no snapshot", "nofolder"):
        assert [what for what in told if words in what], words
    assert len(told) == 6
    fully = replace(images["bare"], clone=Cloning.FULL)
    driver = driver_of(vc, images={"bare": fully})
    assert driver.lacks("a") == ()
    driver.close()


def test_a_host_that_cannot_be_used_now_is_told(vc: VcSim) -> None:
    driver = driver_of(vc)
    vc.host(HOSTS[0], maintenance=True)
    assert "maintenance mode" in driver.lacks("a")[0].what
    vc.host(HOSTS[0], maintenance=False, connection="disconnected")
    assert "disconnected" in driver.lacks("a")[0].what
    with pytest.raises(LabError) as caught:
        driver.create("a", Guests(vsphere_lab(vc)).request(), timeout=10)
    assert (caught.value.kind, caught.value.host) == ("host-unreachable", "a")
    assert "disconnected" in caught.value.why
    driver.close()


def test_a_vcenter_that_does_not_let_us_in_is_an_error_and_no_list(vc: VcSim, monkeypatch: pytest.MonkeyPatch) -> None:
    vcenter = replace(vcenter_of(vc), ca_file="", thumbprint="00" * 32)
    driver = driver_of(vc, vcenters={"vc": vcenter})
    for call in (driver.lacks, driver.host_facts, driver.owned, driver.load):
        with pytest.raises(LabError) as caught:
            call("a")
        assert (caught.value.kind, caught.value.host) == ("tls-untrusted", "a")
    driver.close()


def test_a_host_that_stands_alone_is_not_asked_for_rights(vc: VcSim) -> None:
    """ESXi itself has no such method."""
    vc.lack({"Datastore.Browse": ["*"]})
    vc.fail("HasPrivilegeOnEntities", "NotSupported")
    driver = driver_of(vc)
    assert driver.lacks("a") == ()
    driver.close()


def test_lab_check_of_a_vsphere_lab_shows_its_facts_and_its_migrations(vc: VcSim) -> None:
    lab: Any = vsphere_lab(vc)
    found = {(one.name, one.way): one for one in check_members(lab)}
    assert found["a", "hypervisor"].facts["simulated"] is True
    assert {way for _, way in found} == {"hypervisor", "migration to a", "migration to b"}
    assert check_lab(lab) == ()
