"""Which offloads can be switched where: in the guests of an image with a NIC model, and on a host."""

from __future__ import annotations

from labctl.model.lab import GuestSystem, Host, Image, Lab
from labctl.model.nic import Hypervisor, NicModel
from labctl.model.offloads import HOST_OFFLOAD, LINUX_OFFLOADS, WINDOWS_OFFLOADS, linux_names, windows_names
from labctl.model.settings import Level
from labctl.spec.values import DEFAULT


def not_in_guests(offload: str, model: NicModel, image: Image) -> str:
    """Why guests of this image have no such offload on such an adapter, in a sentence; empty when they may have it."""
    known = WINDOWS_OFFLOADS.get(offload)
    if known is not None and not known.guests:
        return f"adapters of VMs have no {offload} ({known.what}): it is set on hosts, by {HOST_OFFLOAD}{offload}"
    if image.system is GuestSystem.LINUX:
        if known is not None:
            return f"the image {image.name} is a Linux one, and {_only_windows(offload)}"
        able = model.offloads if offload in LINUX_OFFLOADS else None
    else:
        if known is None:
            return f"the image {image.name} is a Windows one, and {_only_linux(offload)}"
        able = None if known.system_wide else model.windows_offloads
    if able is not None and offload not in able:
        return f"{model.name} has no offload {offload} that can be switched"
    return ""


def not_on_host(offload: str, host: Host) -> str:
    """Why labctl can't switch an offload on a host, in a sentence; empty when it may try."""
    if host.hypervisor is Hypervisor.VSPHERE:
        return f"labctl changes no settings of ESXi hosts, and {host.name} is one"
    windows = host.hypervisor is Hypervisor.HYPERV
    if windows and host.winrm is None:
        return f"labctl reaches no settings of the host {host.name}: the lab file gives no `winrm` for it"
    if not windows and host.ssh is None:
        return f"labctl reaches no settings of the host {host.name}: the lab file gives no `ssh` for it"
    if windows and linux_names(offload):
        return f"the host {host.name} runs Windows, and {_only_linux(offload)}"
    if not windows and not linux_names(offload):
        return f"the host {host.name} runs Linux, and {_only_windows(offload)}"
    return ""


def hosts_with_offload(name: str, level: Level | None, lab: Lab) -> frozenset[str]:
    """Names of the hosts on which a setting `host_offload.NAME` can be set; all hosts when it is left as it is."""
    if level is None or level == DEFAULT:
        return frozenset(lab.hosts)
    offload = name.removeprefix(HOST_OFFLOAD)
    return frozenset(host.name for host in lab.hosts.values() if not not_on_host(offload, host))


def _only_windows(offload: str) -> str:
    known = WINDOWS_OFFLOADS[offload]
    nearest = f"; what comes nearest on Linux is {known.linux}" if known.linux else ""
    return f"{offload} ({known.what}) is an offload of Windows{nearest}"


def _only_linux(offload: str) -> str:
    near = windows_names(offload)
    nearest = f"; what comes nearest on Windows is {near}" if near else ""
    return f"{offload} is an offload of Linux{nearest}"
