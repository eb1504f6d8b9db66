"""What VMs are asked to be, and whose their configuration says that they are. No vCenter."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from types import SimpleNamespace
from typing import Any

import pytest
from pyVmomi import vim

from labctl.model.lab import Customisation, GuestSystem, Image, ImageKind, Network
from labctl.model.order import VmShape
from workers.hypervisors.base import OwnershipMark, VmRequest
from workers.hypervisors.vsphere import definition
from workers.hypervisors.vsphere.storage import split_path

UUID = "12345678-90ab-cdef-1234-567890abcdef"
REQUEST = VmRequest(
    name="labctl-lab-c3-r5-a1-sender",
    uuid=UUID,
    shape=VmShape(image="probe", nic_model="vmxnet3", vcpus=2, memory=192 * 2**20, queues=1, machine_type=""),
    image=Image(name="probe", kind=ImageKind.TEMPLATE, template="t", customisation=Customisation.GUESTINFO),
    network=Network(
        name="data", bridge="VM Network", guest_range=(IPv4Address("192.0.2.10"), IPv4Address("192.0.2.20"))
    ),
    address=IPv4Interface("192.0.2.10/24"),
    mac="00:50:56:00:00:0a",
    mark=OwnershipMark(lab="lab", campaign=3, run=5, attempt=7, role="sender", store="s"),
)


def options(values: dict[str, Any]) -> list[Any]:
    """An `extraConfig`."""
    return [vim.option.OptionValue(key=key, value=value) for key, value in values.items()]


def test_the_mark_is_read_as_it_was_written() -> None:
    written = options(definition.extra_config(REQUEST))
    assert definition.read_mark(written) == definition.Mark(owner=REQUEST.mark, name=REQUEST.name, uuid=UUID)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "no JSON", '{"lab": "x"}', json.dumps({"lab": "x", "campaign": "no number"}), 5, None],
)
def test_what_labctl_did_not_write_is_no_mark(text: Any) -> None:
    assert definition.read_mark([SimpleNamespace(key=definition.MARK, value=text)]) is None


def test_a_vm_without_options_has_no_mark() -> None:
    assert definition.read_mark(None) is definition.read_mark([]) is None
    assert definition.read_mark(options({"other": definition.extra_config(REQUEST)[definition.MARK]})) is None


def test_of_two_marks_the_last_holds() -> None:
    """A clone of one of ours has its template's, until it gets its own."""
    other = replace(REQUEST, uuid="another", mark=replace(REQUEST.mark, run=6))
    both = [*options(definition.extra_config(REQUEST)), *options(definition.extra_config(other))]
    mark = definition.read_mark(both)
    assert mark is not None
    assert (mark.uuid, mark.owner.run) == ("another", 6)


def test_a_guest_is_told_only_what_its_image_reads() -> None:
    assert set(definition.extra_config(REQUEST)) > {definition.MARK}
    silent = replace(REQUEST, image=replace(REQUEST.image, customisation=Customisation.NONE))
    assert set(definition.extra_config(silent)) == {definition.MARK}
    assert definition.extra_config(replace(REQUEST, address=None))["guestinfo.labctl.address"] == "dhcp"


def test_the_annotation_is_for_people() -> None:
    text = definition.annotation(REQUEST)
    assert text.startswith(definition.ANNOTATION)
    assert all(words in text for words in ("lab lab", "campaign 3", "run 5", "attempt 7", "sender"))


@pytest.mark.parametrize("name", ["labctl-x", "labctl-" + "y" * 56 + "-sender"])
def test_the_name_of_a_guest_is_what_its_system_takes(name: str) -> None:
    request = replace(REQUEST, name=name)
    linux = definition.guest_name(request)
    assert len(linux) <= 63
    assert name.startswith(linux)
    assert not linux.endswith("-")
    windows = definition.guest_name(replace(request, image=replace(REQUEST.image, system=GuestSystem.WINDOWS)))
    assert windows == "lc-1234567890ab"


def test_only_one_adapter_is_left_and_other_devices_stay() -> None:
    kinds = vim.vm.device
    own = [kinds.VirtualE1000(key=4000), kinds.VirtualVmxnet3(key=4001)]
    others = [kinds.VirtualDisk(key=2000), kinds.VirtualPCIPassthrough(key=13000)]
    network = kinds.VirtualEthernetCard.NetworkBackingInfo(deviceName="n")
    changes = definition.adapter_spec(REQUEST, network, [*own, *others]).deviceChange
    assert [(one.operation, one.device.key) for one in changes[:-1]] == [("remove", 4000), ("remove", 4001)]
    added = changes[-1]
    assert (added.operation, type(added.device).__name__) == ("add", definition.DEVICES["vmxnet3"])
    assert (added.device.addressType, added.device.macAddress) == ("manual", REQUEST.mac)
    assert added.device.backing is network


def test_a_vm_from_a_cd_image_has_a_drive_for_it_and_no_disk() -> None:
    image = Image(name="live", kind=ImageKind.ISO, iso="[iso] live/a.iso", guest_id="debian11_64Guest")
    spec = definition.iso_spec(replace(REQUEST, image=image), datastore="shared")
    assert (spec.name, spec.guestId, spec.files.vmPathName) == (REQUEST.name, "debian11_64Guest", "[shared]")
    controller, drive = (change.device for change in spec.deviceChange)
    assert drive.controllerKey == controller.key < 0, "keys of devices that are not there yet are negative"
    assert (drive.backing.fileName, drive.connectable.startConnected) == ("[iso] live/a.iso", True)


def test_a_guest_without_a_fixed_address_asks_for_one() -> None:
    image = replace(REQUEST.image, customisation=Customisation.GUEST_OS)
    spec = definition.customisation(replace(REQUEST, image=image, address=None), password="")
    assert isinstance(spec.nicSettingMap[0].adapter.ip, vim.vm.customization.DhcpIpGenerator)


def test_images_that_are_not_customised_have_no_specification() -> None:
    assert definition.customisation(REQUEST, password="") is None
    iso = Image(name="i", kind=ImageKind.ISO, iso="[d] i.iso", customisation=Customisation.GUEST_OS)
    assert definition.customisation(replace(REQUEST, image=iso), password="") is None


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("[shared] labctl-x/labctl-x.vmx", ("shared", "labctl-x")),
        ("[my store] a b/c/d.vmx", ("my store", "a b/c")),
        ("[shared] x.vmx", ("shared", "")),
    ],
)
def test_paths_on_datastores_have_parts(path: str, parts: tuple[str, str]) -> None:
    assert split_path(path) == parts
