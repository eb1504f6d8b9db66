"""Which adapters a guest can have, and devices of the host that are given to it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.nic import NIC_MODELS, Hypervisor
from tests.hypervisors.guests import Guests, guests_of
from tests.hypervisors.vsphere_guests import vsphere_lab
from tests.simulators.vcsim import VcSim, vcsim
from workers.hypervisors.base import OwnershipMark
from workers.hypervisors.vsphere import definition, nic
from workers.hypervisors.vsphere.places import HostPlace

DEVICE, FUNCTION = "0000:3b:00.0", "0000:3b:10.1"
OTHER_LINUX = "otherLinux64Guest"


@pytest.fixture(scope="module")
def vc() -> Iterator[VcSim]:
    """A vCenter whose hosts have PCI devices to give away."""
    with vcsim(devices=(DEVICE,), functions=(FUNCTION,)) as made:
        yield made


@pytest.fixture
def guests(vc: VcSim) -> Iterator[Guests]:
    """VMs on it."""
    with guests_of(vsphere_lab(vc)) as made:
        yield made


def test_every_model_of_vsphere_has_a_device() -> None:
    assert set(definition.DEVICES) == {
        name for name, model in NIC_MODELS.items() if Hypervisor.VSPHERE in model.hypervisors
    }


@pytest.mark.services
@pytest.mark.parametrize(("model", "device"), [("vt-d", DEVICE), ("sr-iov", FUNCTION)])
def test_v9_a_device_of_the_host_is_given(guests: Guests, model: str, device: str) -> None:
    """V9: read back as what it is; its memory is reserved, since the device must find it."""
    request = guests.request(nic_model=model, passthrough=device)
    vm = guests.create(request=request)
    facts = guests.driver.read_back(vm)
    assert (facts["nic.model"], facts["nic.count"]) == (model, 1)
    assert facts["nic.mac"] == (request.mac if model == "sr-iov" else None)


@pytest.mark.services
@pytest.mark.parametrize("model", ["vt-d", "sr-iov"])
def test_a_device_that_the_host_does_not_offer_is_told_with_those_that_it_does(guests: Guests, model: str) -> None:
    with pytest.raises(LabError) as caught:
        guests.create(nic_model=model, passthrough="0000:99:00.0")
    assert (caught.value.kind, caught.value.host) == ("nic-unsupported", "a")
    assert (DEVICE if model == "vt-d" else FUNCTION) in caught.value.why


@pytest.mark.services
def test_passing_through_needs_a_device(guests: Guests) -> None:
    with pytest.raises(LabError) as caught:
        guests.create(nic_model="vt-d")
    assert caught.value.kind == "nic-unsupported"
    assert "hosts.a" in caught.value.todo


def test_memory_is_reserved_for_devices_only() -> None:
    for passthrough, reserved in ((DEVICE, True), ("", None)):
        request: Any = SimpleNamespace(
            name="labctl-x",
            uuid="u",
            passthrough=passthrough,
            shape=SimpleNamespace(vcpus=1, memory=192 * 2**20 + 1),
            image=SimpleNamespace(customisation=None),
            mark=_mark(),
        )
        spec = definition.config_spec(request)
        assert spec.memoryReservationLockedToMax is reserved
        assert spec.memoryMB == 193


@pytest.mark.parametrize(
    ("guest_id", "model", "fits"),
    [
        ("debian11_64Guest", "vmxnet3", True),
        ("debian11_64Guest", "pcnet32", False),
        (OTHER_LINUX, "vmxnet3", False),
        (OTHER_LINUX, "e1000", True),
        ("nobody-knows", "vmxnet3", True),
        ("", "vmxnet2", True),
        (OTHER_LINUX, "vt-d", True),
    ],
)
def test_v9_an_adapter_that_the_guest_type_cannot_have_is_refused(guest_id: str, model: str, fits: bool) -> None:
    """V9: by QueryConfigOptionEx, where it tells; the simulator tells nothing of adapters."""
    at, request = _place(_option()), _request(model)
    if fits:
        nic.check_guest(at, request, guest_id=guest_id, version="vmx-19")
        return
    with pytest.raises(LabError) as caught:
        nic.check_guest(at, request, guest_id=guest_id, version="vmx-19")
    assert (caught.value.kind, caught.value.host) == ("nic-unsupported", "a")
    assert guest_id in caught.value.why
    assert "vmx-19" in caught.value.why
    assert "e1000" in caught.value.why


@pytest.mark.parametrize("tells", [None, vmodl.fault.NotSupported(), vmodl.fault.InvalidArgument(), TypeError()])
def test_v9_where_the_vcenter_does_not_tell_nothing_is_refused(tells: object) -> None:
    """V9: an old or a simulated one."""
    nic.check_guest(_place(tells), _request("vmxnet2"), guest_id=OTHER_LINUX, version="")


def test_a_virtual_function_is_given_with_the_physical_one_that_it_is_of() -> None:
    offered = [_sriov("0000:3b:00.0", "vmnic4", virtual=False), _sriov("0000:3b:00.1", "vmnic5", virtual=False)]
    function = _sriov("0000:3b:10.1", "vmnic5", virtual=True)
    backing = nic.sriov_backing([*offered, function], function)
    assert backing.physicalFunctionBacking.id == "0000:3b:00.1"
    assert backing.virtualFunctionBacking.id == "0000:3b:10.1"
    assert (backing.virtualFunctionBacking.deviceId, backing.virtualFunctionBacking.vendorId) == ("ffed", -32634)
    whole = nic.sriov_backing(offered, offered[0])
    assert (whole.physicalFunctionBacking.id, whole.virtualFunctionBacking) == ("0000:3b:00.0", None)


def _sriov(address: str, pnic: str, *, virtual: bool) -> Any:
    device = vim.host.PciDevice(
        id=address,
        deviceId=-19,
        vendorId=-32634,
        deviceName="X540",
        vendorName="Intel",
        classId=0,
        bus=0,
        slot=0,
        function=0,
        subVendorId=0,
        subDeviceId=0,
    )
    return vim.vm.SriovInfo(
        name=address, configurationTag=[], pciDevice=device, systemId="s", virtualFunction=virtual, pnic=pnic
    )


def _option() -> Any:
    kinds = vim.vm.device
    return SimpleNamespace(
        guestOSDescriptor=[
            SimpleNamespace(
                id="debian11_64Guest",
                supportedEthernetCard=[kinds.VirtualVmxnet3, kinds.VirtualE1000, kinds.VirtualE1000e],
            ),
            SimpleNamespace(id=OTHER_LINUX, supportedEthernetCard=["vim.vm.device.VirtualE1000", "VirtualPCNet32"]),
        ]
    )


def _place(tells: object) -> HostPlace:
    """A host whose environment browser answers so."""

    def answer(*, spec: Any) -> Any:
        if isinstance(tells, Exception):
            raise tells
        assert spec.host is at.host
        return tells

    browser = SimpleNamespace(QueryConfigOptionEx=answer)
    row = SimpleNamespace(obj="compute", propSet=[SimpleNamespace(name="environmentBrowser", val=browser)])
    collector = SimpleNamespace(RetrievePropertiesEx=lambda **_: SimpleNamespace(objects=[row], token=None))
    session: Any = SimpleNamespace(content=SimpleNamespace(propertyCollector=collector))
    at = HostPlace(
        name="a",
        session=session,
        host=vim.HostSystem("host-1"),
        path="/a",
        compute=vim.ClusterComputeResource("domain-1"),
        datacenter=None,
        datacenter_path="dc",
    )
    return at


def _request(model: str) -> Any:
    return SimpleNamespace(name="labctl-x", shape=SimpleNamespace(nic_model=model), passthrough="")


def _mark() -> OwnershipMark:
    return OwnershipMark(lab="l", campaign=1, run=2, attempt=3, role="sender", store="s")
