"""Offloads: what an adapter does in place of the system's network stack, by the names that each system gives them.

Linux's names are those of `ethtool -K`. Windows has no short names of its own; these are the words its administrators use.
"""

from __future__ import annotations

from dataclasses import dataclass

LINUX_OFFLOADS = ("rx", "tx", "sg", "tso", "gso", "gro", "lro", "rxvlan", "txvlan", "ufo")
"""Short names of offloads as `ethtool -K` takes them, in the order in which they are listed to people."""


@dataclass(frozen=True, kw_only=True)
class WindowsOffload:
    """One name of Windows. `linux` is what comes nearest to it on Linux, empty where nothing does."""

    name: str
    what: str
    linux: str = ""
    guests: bool = True
    """Whether adapters of VMs can have it; else it is one of physical adapters only."""
    system_wide: bool = False
    """Whether it is a setting of the system, for all its adapters."""


WINDOWS_OFFLOADS: dict[str, WindowsOffload] = {
    offload.name: offload
    for offload in (
        WindowsOffload(name="lso", what="large send offload, version 2, of IPv4 and IPv6", linux="tso"),
        WindowsOffload(name="lsov1", what="large send offload, version 1", linux="tso"),
        WindowsOffload(name="checksum", what="checksums of IPv4, TCP and UDP, both ways", linux="rx and tx"),
        WindowsOffload(name="rss", what="receive side scaling"),
        WindowsOffload(name="rsc", what="receive segment coalescing", linux="lro"),
        WindowsOffload(name="vmq", what="virtual machine queues", guests=False),
        WindowsOffload(name="chimney", what="TCP chimney, up to Windows Server 2016", system_wide=True),
    )
}
"""All offloads that labctl sets on Windows, by name."""

OFFLOAD = "offload."
"""Settings of this family act in the VMs."""
HOST_OFFLOAD = "host_offload."
"""Settings of this family act on the hosts of a run."""


def linux_names(offload: str) -> bool:
    """Whether this is a name of Linux: a short one, or a long one that only `ethtool -k` can judge."""
    return offload not in WINDOWS_OFFLOADS


def windows_names(linux_offload: str) -> str:
    """What comes nearest to an offload of Linux on Windows; empty where nothing is known to."""
    return next((each.name for each in WINDOWS_OFFLOADS.values() if linux_offload in each.linux.split(" and ")), "")
