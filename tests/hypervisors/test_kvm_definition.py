"""The XML of a VM: what is asked for is in it, what can't be given is refused, and libvirt takes it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import libvirt
import pytest
from lxml import etree

from labctl.errors import LabError
from labctl.model.lab import Accelerator, Image, ImageKind, Lab
from labctl.model.nic import NIC_MODELS, Hypervisor
from labctl.model.order import VmShape
from tests.values import a_lab
from workers.hypervisors.base import OwnershipMark, VmRequest
from workers.hypervisors.kvm import definition
from workers.hypervisors.kvm.definition import Overlay, domain_xml, read_domain, read_mark

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
LAB = a_lab()
HOST = LAB.hosts["a"]
HOSTILE = "a'b\"c<d>&e $(reboot) ]]> é"
KVM_MODELS = sorted(name for name, model in NIC_MODELS.items() if Hypervisor.KVM in model.hypervisors)


def a_request(*, image: Image | None = None, **shape: object) -> VmRequest:
    values = {
        "image": "probe",
        "nic_model": "virtio",
        "vcpus": 2,
        "memory": 192 * 2**20,
        "queues": 1,
        "machine_type": "q35",
    } | shape
    return VmRequest(
        name="labctl-lab-c1-r2-a3-sender",
        uuid="3f0c2f2e-8d2b-4b0e-9c1c-1f5b0f4e7a11",
        shape=VmShape(**values),  # type: ignore[arg-type]
        image=image or replace(LAB.images["probe"], command_line="quiet"),
        network=LAB.network(),
        address=IPv4Interface("198.18.0.20/24"),
        mac="52:54:00:12:34:56",
        mark=OwnershipMark(lab="lab", campaign=1, run=2, attempt=3, role="sender", store="s-1"),
        passthrough="0000:3b:02.1" if shape.get("nic_model") in ("vt-d", "sr-iov") else "",
    )


def parsed(request: VmRequest, accelerator: Accelerator = Accelerator.TCG) -> etree._Element:
    overlay = Overlay(path="/images/labctl-x.qcow2") if request.image.kind is ImageKind.DISK else None
    return etree.fromstring(domain_xml(request, HOST, accelerator, overlay=overlay))


def every_kind_of_request() -> list[tuple[VmRequest, Accelerator]]:
    disk = Image(name="debian", kind=ImageKind.DISK, disk="/images/debian.qcow2")
    plain = [
        a_request(nic_model=model, machine_type=machine, mtu=1400) for model in KVM_MODELS for machine in ("q35", "pc")
    ]
    return [
        *((request, Accelerator.TCG) for request in plain),
        (a_request(queues=4, vhost=False), Accelerator.TCG),
        (a_request(queues=4, vhost=True), Accelerator.KVM),
        (a_request(vhost=True), Accelerator.KVM),
        (a_request(image=disk), Accelerator.TCG),
        (replace(a_request(), address=None), Accelerator.KVM),
    ]


@pytest.mark.parametrize("model", sorted(definition.EMULATED))
def test_an_emulated_model_is_asked_for_by_libvirts_name(model: str) -> None:
    """L9, M15: a closed list, since libvirt drops options of other spellings."""
    interface = parsed(a_request(nic_model=model)).find("devices/interface")
    assert interface is not None
    assert interface.get("type") == "bridge"
    assert interface.find("model").get("type") == model
    assert interface.find("mac").get("address") == "52:54:00:12:34:56"
    assert interface.find("source").get("bridge") == "br0"
    assert interface.find("driver") is None, "options that nobody asked for"


def test_every_model_that_the_vocabulary_gives_kvm_has_a_definition() -> None:
    for model in KVM_MODELS:
        assert parsed(a_request(nic_model=model)) is not None


@pytest.mark.parametrize(
    ("shape", "accelerator", "attributes"),
    [
        ({"queues": 4}, Accelerator.TCG, {"queues": "4"}),
        ({"vhost": False}, Accelerator.TCG, {"name": "qemu"}),
        ({"vhost": True, "queues": 2}, Accelerator.KVM, {"name": "vhost", "queues": "2"}),
    ],
)
def test_back_end_and_queues_of_virtio(
    shape: dict[str, object], accelerator: Accelerator, attributes: dict[str, str]
) -> None:
    driver = parsed(a_request(**shape), accelerator).find("devices/interface/driver")
    assert driver is not None
    assert dict(driver.attrib) == attributes


@pytest.mark.parametrize(
    ("shape", "accelerator", "says"),
    [
        ({"nic_model": "synthetic"}, Accelerator.TCG, "virtio, e1000"),
        ({"nic_model": "virtio-net-pci"}, Accelerator.TCG, "virtio, e1000"),
        ({"nic_model": "e1000", "queues": 2}, Accelerator.TCG, "one queue pair"),
        ({"nic_model": "e1000", "vhost": True}, Accelerator.KVM, "virtio only"),
        ({"vhost": True}, Accelerator.TCG, "software emulation"),
    ],
)
def test_what_libvirt_would_drop_silently_is_refused(
    shape: dict[str, object], accelerator: Accelerator, says: str
) -> None:
    """L9, M15, M16: vhost under software emulation, queues of e1000."""
    with pytest.raises(LabError, match=says) as caught:
        domain_xml(a_request(**shape), HOST, accelerator)
    assert (caught.value.kind, caught.value.host) == ("nic-unsupported", "a")


def test_passthrough_without_a_device_is_refused() -> None:
    with pytest.raises(LabError, match="No device") as caught:
        domain_xml(replace(a_request(nic_model="vt-d"), passthrough=""), HOST, Accelerator.KVM)
    assert caught.value.kind == "nic-unsupported"


@pytest.mark.parametrize(("model", "path"), [("vt-d", "devices/hostdev"), ("sr-iov", "devices/interface")])
def test_a_passed_through_device_is_named_by_its_address(model: str, path: str) -> None:
    device = parsed(a_request(nic_model=model), Accelerator.KVM).find(path)
    assert device is not None
    assert device.get("managed") == "yes"
    address = device.find("source/address")
    assert [address.get(part) for part in ("domain", "bus", "slot", "function")] == ["0x0000", "0x3b", "0x02", "0x1"]


def test_a_kernel_gets_what_the_guest_sets_itself_up_with() -> None:
    words = parsed(a_request(mtu=9000)).findtext("os/cmdline", "").split()
    assert words[0] == "quiet"
    assert {"labctl.hostname=labctl-lab-c1-r2-a3-sender", "labctl.address=198.18.0.20/24", "labctl.mtu=9000"} <= set(
        words
    )


def test_a_kernel_gets_no_address_and_no_mtu_that_nobody_asked_for() -> None:
    text = parsed(replace(a_request(), address=None)).findtext("os/cmdline", "")
    assert "labctl.address" not in text
    assert "labctl.mtu" not in text


def test_memory_is_never_less_than_asked_for() -> None:
    assert parsed(a_request(memory=100_000_001)).findtext("memory") == str(100_000_001 // 1024 + 1)


def test_under_tcg_the_processor_is_the_same_on_every_machine() -> None:
    """L4: so that any two hosts can migrate."""
    domain = parsed(a_request())
    assert domain.findtext("cpu/model") == "qemu64"
    added = {feature.get("name"): feature.get("policy") for feature in domain.findall("cpu/feature")}
    assert added == {"rdrand": "require"}, (
        "a guest without a source of entropy makes the first transfer wait for seconds"
    )
    assert parsed(a_request(), Accelerator.KVM).find("cpu").get("mode") == "host-model"


def test_values_reach_xml_as_data() -> None:
    mark = OwnershipMark(lab=HOSTILE, campaign=1, run=2, attempt=3, role="sender", store=HOSTILE)
    image = replace(LAB.images["probe"], command_line=HOSTILE, kernel=f"/boot/{HOSTILE}")
    text = domain_xml(replace(a_request(image=image), mark=mark), HOST, Accelerator.TCG)
    assert read_mark(text) == mark
    assert etree.fromstring(text).findtext("os/kernel") == f"/boot/{HOSTILE}"
    assert etree.fromstring(text).findtext("os/cmdline", "").startswith(HOSTILE)


def test_the_mark_alone_is_read_as_libvirt_returns_it() -> None:
    mark = a_request().mark
    assert read_mark(etree.tostring(definition.mark_element(mark), encoding="unicode")) == mark


@pytest.mark.parametrize(
    "text",
    [
        "<domain/>",
        "not xml",
        "<domain><metadata><mark xmlns='urn:other:1' lab='l' campaign='1' run='1' attempt='1' role='r' store='s'/>"
        "</metadata></domain>",
        "<domain><metadata><mark xmlns='urn:labctl:ownership:1' lab='l' campaign='1' run='1' attempt='1' role='r'/>"
        "</metadata></domain>",
        "<domain><metadata><mark xmlns='urn:labctl:ownership:1' lab='l' campaign='x' run='1' attempt='1' role='r' "
        "store='s'/></metadata></domain>",
        "<domain><description><mark xmlns='urn:labctl:ownership:1' lab='l' campaign='1' run='1' attempt='1' role='r' "
        "store='s'/></description></domain>",
    ],
)
def test_what_is_no_complete_mark_is_none(text: str) -> None:
    assert read_mark(text) is None


@pytest.mark.parametrize("model", KVM_MODELS)
def test_a_definition_reads_back_as_the_model_that_was_asked_for(model: str) -> None:
    reading = read_domain(domain_xml(a_request(nic_model=model), HOST, Accelerator.KVM))
    assert (reading.nic_model, reading.vcpus, reading.memory_bytes) == (model, 2, 192 * 2**20)


@pytest.mark.skipif(not SCHEMA.exists(), reason="libvirt's schemas are not installed")
def test_every_definition_follows_libvirts_schema() -> None:
    schema = etree.RelaxNG(etree.parse(SCHEMA))
    for request, accelerator in every_kind_of_request():
        schema.assertValid(parsed(request, accelerator))


@pytest.mark.lab
def test_libvirt_takes_every_definition_even_where_no_such_device_exists(embedded_lab: Lab) -> None:
    connection = libvirt.open(embedded_lab.hosts["a"].uri)
    try:
        offers = connection.getCapabilities()
        for request, accelerator in every_kind_of_request():
            if accelerator is Accelerator.KVM and "domain type='kvm'" not in offers:
                continue
            overlay = Overlay(path="/none.qcow2") if request.image.kind is ImageKind.DISK else None
            text = domain_xml(request, HOST, accelerator, overlay=overlay)
            domain = connection.defineXMLFlags(text, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            try:
                inactive = domain.XMLDesc()
                assert read_mark(inactive) == request.mark
                assert read_domain(inactive).nic_model == request.shape.nic_model
            finally:
                domain.undefine()
    finally:
        connection.close()
