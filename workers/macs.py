"""MAC addresses of VMs: each hypervisor takes them from a range of its own, and no two VMs of a lab have one.

A free address in the store says nothing about VMs of other people: drivers look at what is there (`mac-taken`).
"""

from __future__ import annotations

from hashlib import sha256
from ipaddress import IPv4Address

from labctl.model.nic import Hypervisor

_RANGES: dict[Hypervisor, tuple[int, int]] = {
    Hypervisor.KVM: (0x525400_000000, 24),
    Hypervisor.VSPHERE: (0x005056_000000, 22),
    Hypervisor.HYPERV: (0x024C43_000000, 24),
}
"""First address of the range, and how many bits are free in it.

QEMU's own locally administered prefix; what VMware leaves to addresses that are set by hand, 00:50:56:00:00:00 to
00:50:56:3F:FF:FF (vSphere Networking, "Assign a Static MAC Address"); and locally administered addresses (IEEE 802,
clause 8.4) outside of the pools that Hyper-V hosts give out from, 00:15:5D.
"""


def serials(hypervisor: Hypervisor) -> int:
    """How many addresses there are."""
    return 1 << _RANGES[hypervisor][1]


def mac_of_address(hypervisor: Hypervisor, address: IPv4Address) -> str:
    """Of a VM with a static address: unique in a lab because guest addresses are."""
    return _mac(hypervisor, int(address))


def mac_of_serial(hypervisor: Hypervisor, serial: int, *, store: str) -> str:
    """Of a VM that gets its address by DHCP. Stores count from different places, so that two of them on one network are
    unlikely to meet."""
    return _mac(hypervisor, serial + int.from_bytes(sha256(store.encode()).digest()[:8]))


def _mac(hypervisor: Hypervisor, number: int) -> str:
    first, bits = _RANGES[hypervisor]
    digits = f"{first | (number & ((1 << bits) - 1)):012x}"
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2))
