"""The domain of a VM as libvirt XML, and the ownership mark inside it. Pure: no connection, no file, no clock.

Elements and their meaning: https://libvirt.org/formatdomain.html. Domains are transient, so that nothing is left of a
VM that ended, and no inactive copy stays behind on the source of a migration.
"""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from labctl.errors import LabError
from labctl.model.lab import Accelerator, Host, Image, ImageKind
from labctl.model.nic import NIC_MODELS
from workers.hypervisors.base import OwnershipMark, VmRequest

OWNERSHIP = "urn:labctl:ownership:1"
"""XML namespace of the ownership mark in a domain's metadata."""

QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
"""XML namespace of libvirt's pass-through of QEMU arguments."""

CONSOLE = "labctl-console"
"""Name of the character device that keeps the last output of the guest's serial port in QEMU's memory."""

CONSOLE_BYTES = 32 * 1024
"""How much of it is kept; QEMU wants a power of two."""

AGENT_PORT = "org.qemu.guest_agent.0"
"""Name of the virtio serial port on which the guest agent listens."""

EMULATED = {
    "virtio": "virtio",
    "e1000": "e1000",
    "e1000e": "e1000e",
    "igb": "igb",
    "rtl8139": "rtl8139",
    "vmxnet3": "vmxnet3",
}
"""NIC models that QEMU emulates, with libvirt's name for each.

The table is closed on purpose: libvirt takes other spellings of virtio too (`virtio-net-pci`), and then drops options
without a word."""

QEMU_DEVICES = {
    "virtio-net-pci": "virtio",
    "virtio-net-pci-non-transitional": "virtio",
    "virtio-net-pci-transitional": "virtio",
    "e1000": "e1000",
    "e1000-82540em": "e1000",
    "e1000e": "e1000e",
    "igb": "igb",
    "rtl8139": "rtl8139",
    "vmxnet3": "vmxnet3",
}
"""QEMU's device types with the NIC model that each is."""

TCG_CPU = "qemu64"
"""CPU model under TCG: the same on every machine, whatever its processor, so that any pair of hosts can migrate."""

TCG_FEATURES = ("rdrand",)
"""What TCG adds to it. Without a source of entropy a guest's first program that asks for random numbers (iperf3's client
does) waits for seconds until the kernel has gathered some; QEMU emulates RDRAND on every machine."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """A writable qcow2 layer of one VM over a disk image that is never written to. Path on the host."""

    path: str


def domain_xml(request: VmRequest, host: Host, accelerator: Accelerator, *, overlay: Overlay | None = None) -> str:
    """The domain that the request asks for on this host.

    `accelerator` is what the host really has, not `auto`. An image of kind `disk` needs its `overlay`.
    Raises `LabError` (`nic-unsupported`) for a NIC that KVM can't give, or can't give with these options.
    """
    check_nic(request, host, accelerator)
    domain = etree.Element("domain", type="kvm" if accelerator is Accelerator.KVM else "qemu", nsmap={"qemu": QEMU})
    _text(domain, "name", request.name)
    _text(domain, "uuid", request.uuid)
    etree.SubElement(domain, "metadata").append(mark_element(request.mark))
    _text(domain, "memory", str(-(-request.shape.memory // 1024)), unit="KiB")
    _text(domain, "vcpu", str(request.shape.vcpus), placement="static")
    domain.append(_boot(request))
    features = etree.SubElement(domain, "features")
    etree.SubElement(features, "acpi")
    etree.SubElement(features, "apic")
    domain.append(_cpu(accelerator))
    domain.append(_clock())
    for event, action in (("on_poweroff", "destroy"), ("on_reboot", "destroy"), ("on_crash", "destroy")):
        _text(domain, event, action)
    domain.append(_devices(request, overlay))
    domain.append(_console())
    return etree.tostring(domain, encoding="unicode", pretty_print=True)


def check_nic(request: VmRequest, host: Host, accelerator: Accelerator) -> None:
    """Raise `LabError` (`nic-unsupported`) for what can't be given as asked: libvirt drops options silently."""
    shape = request.shape
    model = NIC_MODELS.get(shape.nic_model)
    why = ""
    if model is None or (shape.nic_model not in EMULATED and not model.passthrough):
        why = f"the models on KVM are {', '.join(EMULATED)}, vt-d and sr-iov"
    elif model.passthrough and not request.passthrough:
        why = "no device of the host is named to be passed through"
    elif shape.queues > 1 and not model.multiqueue:
        why = f"it has one queue pair, {shape.queues} are asked for"
    elif shape.vhost is not None and not model.vhost:
        why = "vhost is a back end of virtio only"
    elif shape.vhost and accelerator is Accelerator.TCG:
        why = "under software emulation libvirt leaves vhost out without a word"
    if why:
        raise LabError(
            f"Host {host.name} can't give {request.name} a {shape.nic_model} adapter as asked.",
            kind="nic-unsupported",
            why=why[0].upper() + why[1:] + ".",
            todo="Take this combination out of the campaign, or name the device in the lab file.",
            host=host.name,
        )


def kernel_command_line(image: Image, request: VmRequest) -> str:
    """The command line of a directly booted kernel: the image's own, and what the probe guest sets itself up with."""
    words = [image.command_line] if image.command_line else []
    words += ["console=ttyS0", f"labctl.hostname={request.name}"]
    if request.address is not None:
        words.append(f"labctl.address={request.address}")
    if request.shape.mtu is not None:
        words.append(f"labctl.mtu={request.shape.mtu}")
    return " ".join(words)


def mark_element(mark: OwnershipMark) -> etree._Element:
    """The ownership mark as an element of the domain's metadata."""
    element = etree.Element(f"{{{OWNERSHIP}}}mark", nsmap={"labctl": OWNERSHIP})
    for name in ("lab", "campaign", "run", "attempt", "role", "store"):
        element.set(name, str(getattr(mark, name)))
    return element


def read_mark(text: str) -> OwnershipMark | None:
    """The ownership mark in a domain's XML, or in its metadata alone; None when it has none that can be read."""
    try:
        root = etree.fromstring(text, _parser())
        tag = f"{{{OWNERSHIP}}}mark"
        # libvirt hands a single metadata element back without its prefix, but with its namespace
        element = root if root.tag in (tag, "mark") else root.find(f"metadata/{tag}")
        if element is None:
            return None
        said = {str(name): str(value) for name, value in element.attrib.items()}
        return OwnershipMark(
            lab=said["lab"],
            campaign=int(said["campaign"]),
            run=int(said["run"]),
            attempt=int(said["attempt"]),
            role=said["role"],
            store=said["store"],
        )
    except (etree.XMLSyntaxError, KeyError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class DomainReading:
    """What a live domain's XML says. `alias` is libvirt's name of the adapter, by which QEMU knows its device too."""

    nic_model: str
    nic_mac: str
    nic_driver: str
    nic_queues: int
    nic_alias: str
    machine: str
    domain_type: str
    cpu_model: str
    vcpus: int
    memory_bytes: int


def read_domain(text: str) -> DomainReading:
    """What the XML of a live domain of ours says."""
    root = etree.fromstring(text, _parser())
    interface = root.find("devices/interface")
    passed = root.find("devices/hostdev[@type='pci']")
    adapter = interface if interface is not None else passed
    driver = interface.find("driver") if interface is not None else None
    model = _attribute(interface, "model", "type")
    return DomainReading(
        nic_model=_nic_name(interface, model) if adapter is not None else "",
        nic_mac=_attribute(interface, "mac", "address").lower(),
        nic_driver="" if driver is None else driver.get("name", ""),
        nic_queues=1 if driver is None else int(driver.get("queues", "1")),
        nic_alias=_attribute(adapter, "alias", "name"),
        machine=_attribute(root, "os/type", "machine"),
        domain_type=root.get("type", ""),
        cpu_model=root.findtext("cpu/model", ""),
        vcpus=int(root.findtext("vcpu", "0")),
        memory_bytes=int(root.findtext("memory", "0")) * 1024,
    )


def read_macs(text: str) -> tuple[str, ...]:
    """The MAC addresses of all adapters of a domain, anybody's, in lower case."""
    found = etree.fromstring(text, _parser()).iterfind("devices/interface/mac")
    return tuple(mac.get("address", "").lower() for mac in found)


def volume_xml(name: str, *, base: str, base_format: str, capacity: int) -> str:
    """A qcow2 volume over the image `base`, for libvirt's storage interface. Capacity in bytes."""
    volume = etree.Element("volume")
    _text(volume, "name", name)
    _text(volume, "capacity", str(capacity), unit="bytes")
    target = etree.SubElement(volume, "target")
    etree.SubElement(target, "format", type="qcow2")
    backing = etree.SubElement(volume, "backingStore")
    _text(backing, "path", base)
    etree.SubElement(backing, "format", type=base_format)
    return etree.tostring(volume, encoding="unicode")


def volume_format(text: str) -> str:
    """The format of a volume, from its XML."""
    return _attribute(etree.fromstring(text, _parser()), "target/format", "type") or "raw"


def pool_xml(name: str, directory: str) -> str:
    """A storage pool over a directory."""
    pool = etree.Element("pool", type="dir")
    _text(pool, "name", name)
    _text(etree.SubElement(pool, "target"), "path", directory)
    return etree.tostring(pool, encoding="unicode")


def _boot(request: VmRequest) -> etree._Element:
    image = request.image
    boot = etree.Element("os")
    _text(boot, "type", "hvm", arch="x86_64", machine=request.shape.machine_type)
    if image.kind is ImageKind.KERNEL:
        _text(boot, "kernel", image.kernel)
        if image.initrd:
            _text(boot, "initrd", image.initrd)
        _text(boot, "cmdline", kernel_command_line(image, request))
    else:
        etree.SubElement(boot, "boot", dev="hd")
    etree.SubElement(boot, "bootmenu", enable="no")
    return boot


def _cpu(accelerator: Accelerator) -> etree._Element:
    if accelerator is Accelerator.KVM:
        return etree.Element("cpu", mode="host-model", check="partial")
    cpu = etree.Element("cpu", mode="custom", match="exact", check="none")
    _text(cpu, "model", TCG_CPU, fallback="forbid")
    for name in TCG_FEATURES:
        etree.SubElement(cpu, "feature", policy="require", name=name)
    return cpu


def _clock() -> etree._Element:
    clock = etree.Element("clock", offset="utc")
    etree.SubElement(clock, "timer", name="rtc", tickpolicy="catchup")
    etree.SubElement(clock, "timer", name="pit", tickpolicy="delay")
    etree.SubElement(clock, "timer", name="hpet", present="no")
    return clock


def _devices(request: VmRequest, overlay: Overlay | None) -> etree._Element:
    devices = etree.Element("devices")
    etree.SubElement(devices, "controller", type="usb", model="none")
    if overlay is not None:
        devices.append(_disk(overlay))
    devices.append(_adapter(request))
    channel = etree.SubElement(devices, "channel", type="unix")
    etree.SubElement(channel, "target", type="virtio", name=AGENT_PORT)
    etree.SubElement(devices, "memballoon", model="none")
    return devices


def _disk(overlay: Overlay) -> etree._Element:
    disk = etree.Element("disk", type="file", device="disk")
    etree.SubElement(disk, "driver", name="qemu", type="qcow2", cache="none", discard="unmap")
    etree.SubElement(disk, "source", file=overlay.path)
    etree.SubElement(disk, "target", dev="vda", bus="virtio")
    return disk


def _adapter(request: VmRequest) -> etree._Element:
    if request.shape.nic_model == "vt-d":
        device = etree.Element("hostdev", mode="subsystem", type="pci", managed="yes")
        etree.SubElement(device, "source").append(_pci_address(request.passthrough))
        etree.SubElement(device, "rom", enabled="no")
        return device
    if request.shape.nic_model == "sr-iov":
        function = etree.Element("interface", type="hostdev", managed="yes")
        etree.SubElement(function, "mac", address=request.mac)
        etree.SubElement(function, "source").append(_pci_address(request.passthrough, type="pci"))
        etree.SubElement(function, "rom", enabled="no")
        return function
    interface = etree.Element("interface", type="bridge")
    etree.SubElement(interface, "mac", address=request.mac)
    etree.SubElement(interface, "source", bridge=request.network.bridge)
    etree.SubElement(interface, "model", type=EMULATED[request.shape.nic_model])
    driver: dict[str, str] = {}
    if request.shape.vhost is not None:
        driver["name"] = "vhost" if request.shape.vhost else "qemu"
    if request.shape.queues > 1:
        driver["queues"] = str(request.shape.queues)
    if driver:
        etree.SubElement(interface, "driver", driver)
    etree.SubElement(interface, "rom", enabled="no")
    return interface


def _pci_address(address: str, **attributes: str) -> etree._Element:
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    element = etree.Element("address", attributes)
    for name, digits in (("domain", domain), ("bus", bus), ("slot", slot), ("function", function)):
        element.set(name, f"0x{digits}")
    return element


def _console() -> etree._Element:
    """A serial port whose last output stays in QEMU, where a guest that never boots can be asked why.

    libvirt has no words for a ring buffer, so it is given to QEMU as arguments.
    """
    commands = etree.Element(f"{{{QEMU}}}commandline")
    for value in (
        "-chardev",
        f"ringbuf,id={CONSOLE},size={CONSOLE_BYTES}",
        "-device",
        f"isa-serial,chardev={CONSOLE},index=0",
    ):
        etree.SubElement(commands, f"{{{QEMU}}}arg", value=value)
    return commands


def _nic_name(interface: etree._Element | None, model: str) -> str:
    if interface is None:
        return "vt-d"
    if interface.get("type") == "hostdev":
        return "sr-iov"
    return next((name for name, word in EMULATED.items() if word == model), model)


def _attribute(parent: etree._Element | None, path: str, name: str) -> str:
    found = None if parent is None else parent.find(path)
    return "" if found is None else found.get(name, "")


def _text(parent: etree._Element, tag: str, text: str, **attributes: str) -> None:
    element = etree.SubElement(parent, tag, attributes)
    element.text = text


def _parser() -> etree.XMLParser:
    """A parser that resolves no entity and opens no file."""
    return etree.XMLParser(resolve_entities=False, no_network=True)
