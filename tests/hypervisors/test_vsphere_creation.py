"""How VMs come about on a simulated vCenter: the asked adapter, once, and nothing left of what fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest
from pyVmomi import vim

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Cloning, Customisation, GuestSystem, Image, ImageKind, Lab, Login, SecretRef
from tests.hypervisors.guests import Guests, guests_of
from tests.hypervisors.vsphere_guests import (
    PROBE,
    clone_by_hand,
    done,
    driver_of,
    machines,
    named,
    somebody,
    vcenter_of,
    vsphere_lab,
)
from tests.simulators.vcsim import HOSTS, LINUX, WINDOWS, Datastore, Template, VcSim, vcsim
from workers.guard import Deadline, Guard
from workers.hypervisors.base import Vm
from workers.hypervisors.vsphere import definition, tasks
from workers.hypervisors.vsphere.creation import Creation
from workers.hypervisors.vsphere.inventory import property_of
from workers.hypervisors.vsphere.turns import turn

pytestmark = pytest.mark.services

EMULATED = ("vmxnet3", "vmxnet2", "e1000", "e1000e", "pcnet32")
ISO = Image(name="live", kind=ImageKind.ISO, iso="[shared] live.iso", guest_id="debian11_64Guest")


@pytest.fixture(scope="module")
def running() -> Iterator[VcSim]:
    """One vCenter for the tests of this file."""
    with vcsim(
        datastores=(Datastore(name="shared"), Datastore(name="second")),
        portgroups=("dvpg",),
        folders=("labctl",),
        templates=(
            LINUX,
            WINDOWS,
            Template(name="bare", snapshot=""),
            Template(name="a-vm", is_vm=True),
        ),
    ) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again afterwards, with nothing in it that was not there before."""
    before = machines(somebody(running))
    yield running
    running.heal()
    assert machines(somebody(running)) == before


@pytest.fixture
def guests(vc: VcSim) -> Iterator[Guests]:
    """VMs on it."""
    with guests_of(vsphere_lab(vc)) as made:
        yield made


def of(vc: VcSim, **changes: Any) -> Lab:
    """The lab with changes."""
    return vsphere_lab(vc, **changes)


def ref_of(vc: VcSim, vm: Vm) -> Any:
    """The VM by hand."""
    return named(somebody(vc), vim.VirtualMachine, vm.name)


def extra_of(vc: VcSim, vm: Vm) -> Mapping[str, str]:
    """What its guest and labctl may read."""
    options = property_of(somebody(vc), ref_of(vc, vm), "config.extraConfig")
    return {option.key: option.value for option in options}


def adapters_of(vc: VcSim, vm: Vm) -> list[Any]:
    """Its adapters, as somebody else sees them."""
    return definition.adapters(property_of(somebody(vc), ref_of(vc, vm), "config.hardware.device"))


def refusal(guests: Guests, *, host: str = "a", image: Image | None = None, **shape: Any) -> LabError:
    """The error that a request ends with, after which nothing of it is there."""
    request = guests.request(image=image, **shape)
    with pytest.raises(LabError) as caught:
        guests.create(host, request)
    assert caught.value.host == host
    assert caught.value.todo
    assert request.name not in [vm.name for name in "ab" for vm in guests.driver.owned(name)]
    return caught.value


@pytest.mark.parametrize("model", EMULATED)
def test_v9_exactly_the_asked_adapter_is_there(vc: VcSim, guests: Guests, model: str) -> None:
    """V9: the device class is read back, the template's own adapter is gone."""
    request = guests.request(nic_model=model)
    vm = guests.create(request=request)
    (device,) = adapters_of(vc, vm)
    assert type(device).__name__ == definition.DEVICES[model]
    facts = guests.driver.read_back(vm)
    assert (facts["nic.model"], facts["nic.mac"], facts["nic.count"]) == (model, request.mac, 1)


def test_v13_the_address_is_set_by_hand_and_read_back(vc: VcSim, guests: Guests) -> None:
    """V13: not one that the vCenter made."""
    request = guests.request()
    vm = guests.create(request=request)
    (device,) = adapters_of(vc, vm)
    assert (device.addressType, device.macAddress) == ("manual", request.mac)


def test_v13_an_address_that_another_vm_has_is_refused_though_that_one_is_off(vc: VcSim, guests: Guests) -> None:
    """V13: duplicates are looked for among VMs that are powered off, too."""
    first = guests.create()
    session = somebody(vc)
    done(session, ref_of(vc, first).PowerOffVM_Task())
    second = replace(guests.request(), mac=first.mac.upper())
    with pytest.raises(LabError) as caught:
        guests.create(request=second)
    assert (caught.value.kind, caught.value.host) == ("mac-taken", "a")
    assert first.name in caught.value.what


def test_v13_a_vcenter_that_changes_the_adapter_is_found_out(guests: Guests, monkeypatch: pytest.MonkeyPatch) -> None:
    """V13: by reading it back after power-on; nothing is left."""
    given = definition.adapter

    def another(request: Any, backing: Any) -> Any:
        device = given(request, backing)
        device.macAddress = "00:50:56:00:00:01"
        return device

    monkeypatch.setattr(definition, "adapter", another)
    error = refusal(guests)
    assert error.kind == "nic-mismatch"
    assert "00:50:56:00:00:01" in error.what


@pytest.mark.parametrize(
    ("bridge", "kind"),
    [
        ("VM Network", vim.vm.device.VirtualEthernetCard.NetworkBackingInfo),
        ("dvpg", vim.vm.device.VirtualEthernetCard.DistributedVirtualPortBackingInfo),
        ("/dc1/network/dvpg", vim.vm.device.VirtualEthernetCard.DistributedVirtualPortBackingInfo),
    ],
)
def test_v8_the_backing_is_that_of_the_kind_of_network(vc: VcSim, bridge: str, kind: type[Any]) -> None:
    """V8: standard and distributed port groups."""
    lab = of(vc)
    with guests_of(replace(lab, networks={"data": replace(lab.network(), bridge=bridge)})) as guests:
        vm = guests.create()
        (device,) = adapters_of(vc, vm)
        assert isinstance(device.backing, kind)
        assert guests.driver.read_back(vm)["nic.network"] == bridge.rsplit("/", 1)[-1]


def test_it_is_marked_for_people_and_for_labctl(vc: VcSim, guests: Guests) -> None:
    request = guests.request()
    vm = guests.create(request=request)
    assert property_of(somebody(vc), ref_of(vc, vm), "config.annotation").startswith(
        "Made by labctl for lab vsphere-tests"
    )
    mark = definition.read_mark(property_of(somebody(vc), ref_of(vc, vm), "config.extraConfig"))
    assert mark == definition.Mark(owner=request.mark, name=vm.name, uuid=vm.uuid)


def test_its_guest_is_told_who_it_is(vc: VcSim, guests: Guests) -> None:
    request = guests.request()
    vm = guests.create(request=request)
    extra = extra_of(vc, vm)
    assert extra["guestinfo.labctl.address"] == str(request.address)
    assert extra["guestinfo.labctl.mac"] == request.mac
    assert extra["guestinfo.labctl.hostname"] == extra["guestinfo.labctl.name"] == vm.name


def test_it_is_where_the_lab_file_says(vc: VcSim) -> None:
    lab = of(vc)
    hosts = {name: replace(host, datastore="second") for name, host in lab.hosts.items()}
    vcenters = {"vc": replace(lab.vcenters["vc"], folder="labctl")}
    with guests_of(replace(lab, hosts=hosts, vcenters=vcenters)) as guests:
        vm = guests.create("b", vcpus=2, memory=256 * 2**20)
        ref = ref_of(vc, vm)
        assert ref.runtime.host.name == HOSTS[1]
        assert ref.parent.name == "labctl"
        facts = guests.driver.read_back(vm)
        assert str(facts["files"]).startswith(f"[second] {vm.name}/")
        assert (facts["vcpus"], facts["memory_bytes"], facts["accelerator"]) == (2, 256 * 2**20, "esxi")
        assert facts["cores_per_socket"] == 2
        assert str(facts["machine"]).startswith("vmx-")


def test_from_a_cd_image_it_has_no_disk(vc: VcSim, guests: Guests) -> None:
    vm = guests.create(request=guests.request(image=ISO, nic_model="e1000"))
    devices = property_of(somebody(vc), ref_of(vc, vm), "config.hardware.device")
    assert not [device for device in devices if isinstance(device, vim.vm.device.VirtualDisk)]
    (cdrom,) = [device for device in devices if isinstance(device, vim.vm.device.VirtualCdrom)]
    assert cdrom.backing.fileName == ISO.iso
    assert guests.driver.read_back(vm)["nic.model"] == "e1000"


def test_a_template_that_does_not_exist_is_told_with_the_nearest(guests: Guests) -> None:
    for template in ("linux-templat", "/dc1/vm/linux-templat", f"/dc1/elsewhere/{LINUX.name}"):
        error = refusal(guests, image=replace(PROBE, template=template))
        assert error.kind == "create-failed"
        assert LINUX.name in error.why
        assert "images.probe.template" in error.todo
    assert "no template" in refusal(guests, image=replace(PROBE, template="/dc1/vm")).what, "that is a folder"


def test_a_template_may_be_a_path_or_a_vm(guests: Guests) -> None:
    for template in (f"/dc1/vm/{LINUX.name}", f"vm/{LINUX.name}", "a-vm"):
        assert guests.create(request=guests.request(image=replace(PROBE, template=template)))


def test_a_template_is_looked_for_once_unless_it_has_gone_or_has_another_name(vc: VcSim, guests: Guests) -> None:
    session = somebody(vc)
    image = replace(PROBE, template="a-vm")
    guests.create(request=guests.request(image=image))
    before = vc.calls()["CreateContainerView"]
    guests.create(request=guests.request(image=image))
    assert vc.calls()["CreateContainerView"] == before + 1, "that of the places"
    ref = named(session, vim.VirtualMachine, "a-vm")
    done(session, ref.Rename_Task(newName="renamed"))
    try:
        assert "no template a-vm" in refusal(guests, image=image).what
    finally:
        done(session, ref.Rename_Task(newName="a-vm"))


def test_a_linked_clone_needs_a_snapshot(guests: Guests) -> None:
    bare = replace(PROBE, template="bare")
    assert "no snapshot" in refusal(guests, image=bare).what
    assert guests.create(request=guests.request(image=replace(bare, clone=Cloning.FULL)))


def test_a_foreign_vm_with_its_name_is_not_touched(vc: VcSim, guests: Guests) -> None:
    session = somebody(vc)
    request = guests.request()
    foreign = done(session, clone_by_hand(session, request.name))
    try:
        before = foreign.config.changeVersion, foreign.config.instanceUuid
        with pytest.raises(LabError) as caught:
            guests.driver.create("a", request, timeout=30)
        assert caught.value.kind == "name-taken"
        assert "no mark of labctl" in caught.value.why
        assert (foreign.config.changeVersion, foreign.config.instanceUuid) == before
    finally:
        done(session, foreign.Destroy_Task())


@pytest.mark.parametrize("method", ["CloneVM_Task", "ReconfigVM_Task", "PowerOnVM_Task"])
def test_v2_a_lost_reply_makes_exactly_one_vm(vc: VcSim, guests: Guests, method: str) -> None:
    """V2: the task that the lost call began is found and waited for."""
    before = vc.calls()
    vc.cut_reply(method)
    vm = guests.create()
    assert machines(somebody(vc)).count(vm.name) == 1
    assert vc.calls()[method] == before.get(method, 0) + 1
    assert guests.driver.locate(vm) == "a"


def test_v2_a_lost_reply_makes_exactly_one_vm_from_nothing(vc: VcSim, guests: Guests) -> None:
    """V2: CreateVM_Task."""
    before = vc.calls()
    vc.cut_reply("CreateVM_Task")
    vm = guests.create(request=guests.request(image=ISO))
    assert machines(somebody(vc)).count(vm.name) == 1
    assert vc.calls()["CreateVM_Task"] == before.get("CreateVM_Task", 0) + 1


def test_v2_a_creation_that_was_never_carried_out_is_asked_for_once_more(vc: VcSim, guests: Guests) -> None:
    """V2: when neither the VM nor a task that makes it is there."""
    before = vc.calls().get("CloneVM_Task", 0)
    vc.hang("CloneVM_Task")

    def cut() -> None:
        while vc.calls().get("CloneVM_Task", 0) == before:
            guests.guard.sleep(0.02)
        vc.heal()

    cutting = threading.Thread(target=cut)
    cutting.start()
    vm = guests.create()
    cutting.join()
    assert machines(somebody(vc)).count(vm.name) == 1
    assert vc.calls()["CloneVM_Task"] == before + 2


def test_v2_a_creation_that_is_carried_out_after_it_was_looked_for_makes_exactly_one_vm(
    vc: VcSim, guests: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V2: it is asked for once more, and the vCenter, which has it by then, refuses the second VM of the name."""
    look = tasks.recent
    looks: list[str] = []

    def too_early(session: Any, *, operation: str, **which: Any) -> Any:
        looks.append(operation)
        return () if len(looks) <= 2 else look(session, operation=operation, **which)

    find = Creation._by_name
    monkeypatch.setattr(tasks, "recent", too_early)
    monkeypatch.setattr(Creation, "_by_name", lambda self, place: None if len(looks) <= 2 else find(self, place))
    before = vc.calls().get("CloneVM_Task", 0)
    vc.cut_reply("CloneVM_Task")
    vm = guests.create()
    assert vc.calls()["CloneVM_Task"] == before + 2
    assert machines(somebody(vc)).count(vm.name) == 1
    assert guests.driver.locate(vm) == "a"


def test_v1_a_session_that_ends_on_the_way_makes_exactly_one_vm(vc: VcSim, guests: Guests) -> None:
    """V1: also at the call that creates, which is then made once more."""
    guests.create()
    for method in ("CloneVM_Task", "PowerOnVM_Task", "Fetch"):
        vc.fail(method, "NotAuthenticated")
        vm = guests.create()
        assert machines(somebody(vc)).count(vm.name) == 1


@pytest.mark.parametrize("method", ["CloneVM_Task", "ReconfigVM_Task", "PowerOnVM_Task"])
def test_a_task_that_fails_half_way_leaves_nothing(guests: Guests, vc: VcSim, method: str) -> None:
    vc.fail_task(method, "NoDiskSpace", seconds=0.1)
    error = refusal(guests)
    assert error.kind == "create-failed"
    assert "full" in error.todo


def test_a_full_datastore_is_told(guests: Guests, vc: VcSim) -> None:
    vc.fail_task("CloneVM_Task", "InsufficientStorageSpace", seconds=0.0)
    assert "datastore is full" in refusal(guests).todo


@pytest.mark.parametrize(
    ("privilege", "thing"),
    [
        ("VirtualMachine.Provisioning.DeployTemplate", LINUX.name),
        ("VirtualMachine.Config.AddRemoveDevice", "labctl-test"),
        ("VirtualMachine.Interact.PowerOn", "labctl-test"),
    ],
)
def test_rights_that_are_missing_are_told_and_leave_nothing(
    guests: Guests, vc: VcSim, privilege: str, thing: str
) -> None:
    vc.lack({privilege: ["*"]})
    try:
        error = refusal(guests)
    finally:
        vc.lack({})
    assert error.kind == "create-failed"
    assert f"lacks the privilege {privilege} on VirtualMachine {thing}" in error.why
    assert "role" in error.todo


def test_a_host_in_maintenance_mode_is_told(guests: Guests, vc: VcSim) -> None:
    session = somebody(vc)
    host = named(session, vim.HostSystem, HOSTS[0])
    done(session, host.EnterMaintenanceMode_Task(timeout=0, evacuatePoweredOffVms=False))
    try:
        error = refusal(guests)
    finally:
        done(session, host.ExitMaintenanceMode_Task(timeout=0))
    assert error.kind == "host-unreachable"
    assert "maintenance mode" in error.why


def test_a_creation_is_given_up_at_its_deadline_and_leaves_nothing(guests: Guests, vc: VcSim) -> None:
    vc.fail_task("CloneVM_Task", "NoDiskSpace", at=0.9, seconds=60.0)
    request = guests.request()
    with pytest.raises(LabError) as caught:
        guests.driver.create("a", request, timeout=0.5)
    assert caught.value.kind == "task-deadline"
    assert request.name not in machines(somebody(vc))


def test_a_creation_that_is_cancelled_leaves_nothing(guests: Guests, vc: VcSim) -> None:
    vc.fail_task("CloneVM_Task", "NoDiskSpace", at=0.9, seconds=60.0)
    guard = Guard()
    request = guests.request()
    driver = driver_of(vc, guard=guard)
    stopping = threading.Timer(0.3, lambda: guard.stop("enough"))
    stopping.start()
    with pytest.raises(AttemptCancelled):
        driver.create("a", request, timeout=60)
    stopping.join()
    assert request.name not in machines(somebody(vc))
    driver.close()


def test_clones_take_turns(vc: VcSim) -> None:
    """No more at once than the lab file says, in this process and as the vCenter tells of others."""
    session = somebody(vc)
    vc.fail_task("CloneVM_Task", "NoDiskSpace", at=0.9, seconds=60.0)
    others = clone_by_hand(session, "somebody-elses")

    def take(limit: int, operation: str = "VirtualMachine.clone") -> None:
        with turn(session, operation, limit=limit, names={LINUX.name}, deadline=Deadline.after(0.3), guard=Guard()):
            pass

    with pytest.raises(LabError) as caught:
        take(1)
    assert "clones_at_once" in caught.value.todo or "limits" in caught.value.todo
    tasks.cancel(session, others)
    take(1)
    with (
        turn(session, "x.y", limit=1, names=(), deadline=Deadline.after(5), guard=Guard()),
        pytest.raises(LabError),
    ):
        take(1, "x.y")


@pytest.mark.parametrize("system", list(GuestSystem))
def test_a_guest_is_customised_with_its_name_and_its_address(
    vc: VcSim, guests: Guests, system: GuestSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUEST", "secret of the guest\n")
    image = replace(
        PROBE,
        template=LINUX.name if system is GuestSystem.LINUX else WINDOWS.name,
        system=system,
        customisation=Customisation.GUEST_OS,
        login=Login(user="Administrator", password=SecretRef(scheme="env", locator="GUEST")),
    )
    before = vc.calls().get("CustomizeVM_Task", 0)
    guests.create(request=guests.request(image=image))
    assert vc.calls()["CustomizeVM_Task"] == before + 1
    request = replace(guests.request(image=image), address=IPv4Interface("192.0.2.9/23"))
    spec = definition.customisation(request, password="secret")
    (mapping,) = spec.nicSettingMap
    assert (mapping.macAddress, mapping.adapter.ip.ipAddress, mapping.adapter.subnetMask) == (
        request.mac,
        "192.0.2.9",
        "255.255.254.0",
    )
    if system is GuestSystem.WINDOWS:
        assert spec.identity.userData.computerName.name == definition.guest_name(request)
        assert len(definition.guest_name(request)) == 15
        assert spec.identity.guiUnattended.password.value == "secret"
    else:
        assert spec.identity.hostName.name == request.name


def test_pinned_vms_have_an_override(vc: VcSim) -> None:
    """V10: DRS leaves them where they are; without the right they are made all the same."""
    lab = of(vc, vcenters={"vc": replace(vcenter_of(vc), pin=True)})
    with guests_of(lab) as guests:
        vm = guests.create()
        compute = ref_of(vc, vm).runtime.host.parent
        overrides = {one.key: one.enabled for one in compute.configurationEx.drsVmConfig}
        assert overrides[ref_of(vc, vm)] is False
        vc.fail("ReconfigureComputeResource_Task", "NoPermission")
        assert guests.create()
