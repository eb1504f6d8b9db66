"""NIC models: one vocabulary for all hypervisors, with what each can do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Hypervisor(StrEnum):
    """What drives the VMs of a host."""

    KVM = "kvm"
    VSPHERE = "vsphere"
    HYPERV = "hyperv"


@dataclass(frozen=True, kw_only=True)
class NicModel:
    """What is known of an adapter before anything is started.

    `linux_drivers` are the names that `ethtool -i` may give in a Linux guest; `pci_ids` the `vendor:device` pairs that
    the guest may see. Both are what verification compares with; empty means that nothing is known and nothing compared.
    `offloads` are the short ethtool names that can be switched in a Linux guest, `windows_offloads` the names that can be
    in a Windows guest; None means that this is not known. In Windows an adapter is known by its plug and play id, which
    begins with `windows_pnp` where it is no PCI device, and people by `windows_name`.
    """

    name: str
    hypervisors: frozenset[Hypervisor]
    what: str
    linux_drivers: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    migratable: bool = True
    migrates_on: frozenset[Hypervisor] = frozenset()
    """Those that migrate it all the same. Hyper-V moves the traffic to the synthetic path for as long as that takes."""
    passthrough: bool = False
    multiqueue: bool = False
    vhost: bool = False
    offloads: frozenset[str] | None = None
    windows_offloads: frozenset[str] | None = None
    windows_pnp: str = ""
    windows_name: str = ""


_KVM = frozenset({Hypervisor.KVM})
_VSPHERE = frozenset({Hypervisor.VSPHERE})
_HYPERV = frozenset({Hypervisor.HYPERV})

NIC_MODELS: dict[str, NicModel] = {
    model.name: model
    for model in (
        NicModel(
            name="virtio",
            hypervisors=_KVM,
            what="paravirtual virtio-net",
            linux_drivers=("virtio_net",),
            pci_ids=("1af4:1000", "1af4:1041"),
            multiqueue=True,
            vhost=True,
            offloads=frozenset({"tx", "rx", "sg", "tso", "gso", "gro"}),
            windows_name="Red Hat VirtIO Ethernet Adapter",
        ),
        NicModel(
            name="e1000",
            hypervisors=_KVM | _VSPHERE,
            what="emulated Intel 82540EM/82545EM, 1 Gbit/s nominal",
            linux_drivers=("e1000",),
            pci_ids=("8086:100e", "8086:100f", "8086:1004"),
            offloads=frozenset({"rx", "tx", "sg", "tso", "gso", "gro", "rxvlan", "txvlan"}),
            windows_name="Intel(R) PRO/1000 MT Network Connection",
        ),
        NicModel(
            name="e1000e",
            hypervisors=_KVM | _VSPHERE,
            what="emulated Intel 82574L, 1 Gbit/s nominal",
            linux_drivers=("e1000e",),
            pci_ids=("8086:10d3",),
            offloads=frozenset({"rx", "tx", "sg", "tso", "gso", "gro", "rxvlan", "txvlan"}),
            windows_name="Intel(R) 82574L Gigabit Network Connection",
        ),
        NicModel(
            name="igb",
            hypervisors=_KVM,
            what="emulated Intel 82576, 1 Gbit/s nominal, QEMU 8.0 or newer",
            linux_drivers=("igb",),
            pci_ids=("8086:10c9",),
            multiqueue=False,
            offloads=frozenset({"rx", "tx", "sg", "tso", "gso", "gro", "rxvlan", "txvlan"}),
        ),
        NicModel(
            name="rtl8139",
            hypervisors=_KVM,
            what="emulated Realtek 8139C+, 100 Mbit/s nominal",
            linux_drivers=("8139cp", "8139too"),
            pci_ids=("10ec:8139",),
            offloads=frozenset({"rx", "tx", "sg", "gso", "gro", "rxvlan", "txvlan"}),
        ),
        NicModel(
            name="vmxnet3",
            hypervisors=_KVM | _VSPHERE,
            what="paravirtual VMware vmxnet3 (QEMU emulates it too)",
            linux_drivers=("vmxnet3",),
            pci_ids=("15ad:07b0",),
            offloads=frozenset({"rx", "tx", "sg", "tso", "gso", "gro", "lro", "rxvlan", "txvlan"}),
            windows_name="vmxnet3 Ethernet Adapter",
        ),
        NicModel(name="vmxnet2", hypervisors=_VSPHERE, what="enhanced vmxnet, deprecated", linux_drivers=("vmxnet",)),
        NicModel(
            name="pcnet32",
            hypervisors=_VSPHERE,
            what="emulated AMD PCnet",
            linux_drivers=("pcnet32",),
            pci_ids=("1022:2000",),
            windows_name="AMD PCNET Family PCI Ethernet Adapter",
        ),
        NicModel(
            name="vt-d",
            hypervisors=_KVM | _VSPHERE | _HYPERV,
            what="a physical adapter given to the VM (PCI passthrough, DirectPath I/O, discrete device assignment)",
            migratable=False,
            passthrough=True,
        ),
        NicModel(
            name="sr-iov",
            hypervisors=_KVM | _VSPHERE | _HYPERV,
            what="a virtual function of a physical adapter",
            migratable=False,
            migrates_on=_HYPERV,
            passthrough=True,
        ),
        NicModel(
            name="synthetic",
            hypervisors=_HYPERV,
            what="paravirtual Hyper-V adapter over VMBus",
            linux_drivers=("hv_netvsc",),
            windows_offloads=frozenset({"lso", "checksum", "rss", "rsc"}),
            windows_pnp="VMBUS\\{F8615163-DF3E-46C5-913F-F2D2F965ED0E}",
            windows_name="Microsoft Hyper-V Network Adapter",
        ),
        NicModel(
            name="legacy",
            hypervisors=_HYPERV,
            what="emulated DEC 21140, generation 1 only",
            linux_drivers=("tulip",),
            pci_ids=("1011:0009",),
            windows_offloads=frozenset(),
            windows_name="Intel 21140-Based PCI Fast Ethernet Adapter (Emulated)",
        ),
    )
}
"""All NIC models by their name, the closed list that a campaign may name."""
