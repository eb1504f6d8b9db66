"""What is true of a host, as its libvirt says, and which accelerator its guests get."""

from __future__ import annotations

import os
from collections.abc import Mapping

import libvirt
from lxml import etree

from labctl.model.lab import Accelerator, Host, Lab
from labctl.model.result import Fact
from workers.hypervisors.kvm import vm
from workers.hypervisors.kvm.connection import Connections, lab_error
from workers.locallab import accelerator


def host_facts(connections: Connections, lab: Lab, host: str) -> Mapping[str, Fact]:
    """Facts of a host. Counters of CPU time are seconds since it started, over all CPUs; sizes are bytes.

    The kernel's version is not libvirt's to know: it is there for the hosts of an embedded lab only.
    """

    def ask(connection: libvirt.virConnect) -> dict[str, Fact]:
        capabilities = etree.fromstring(connection.getCapabilities())
        info = connection.getInfo()
        busy, idle = _cpu_seconds(connection)
        memory = connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)
        running = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        ours = sum(vm.mark_of(domain) is not None for domain in running)
        return {
            "hostname": connection.getHostname(),
            "host.uuid": capabilities.findtext("host/uuid", ""),
            "libvirt.version": _version(connection.getLibVersion()),
            "qemu.version": _version(connection.getVersion()),
            "cpu.model": capabilities.findtext("host/cpu/model", ""),
            "cpu.vendor": capabilities.findtext("host/cpu/vendor", ""),
            "cpu.architecture": info[0],
            "cpu.mhz": info[3],
            "cpu.count": info[2],
            "cpu.sockets": info[5],
            "cpu.cores_per_socket": info[6],
            "cpu.threads_per_core": info[7],
            "cpu.busy_seconds": busy,
            "cpu.idle_seconds": idle,
            "memory.bytes": memory["total"] * 1024,
            "memory.free_bytes": memory["free"] * 1024,
            "vms.running": len(running),
            "vms.ours": ours,
            "vms.foreign": len(running) - ours,
        }

    try:
        facts = connections.read(host, ask)
    except libvirt.libvirtError as error:
        raise lab_error(host, f"The facts of host {host} can't be read.", error) from error
    if lab.embedded is not None:
        facts["kernel.version"] = os.uname().release
        facts["load.1min"] = os.getloadavg()[0]
    return facts


def host_uuid(connection: libvirt.virConnect) -> str:
    """The UUID by which libvirt tells hosts apart."""
    return str(etree.fromstring(connection.getCapabilities()).findtext("host/uuid", ""))


def offers_kvm(connection: libvirt.virConnect) -> bool:
    """Whether libvirt says that 64-bit guests can run under KVM. That is no proof that they do."""
    capabilities = etree.fromstring(connection.getCapabilities())
    return bool(capabilities.xpath("guest/arch[@name='x86_64']/domain[@type='kvm']"))


def declared_accelerator(lab: Lab, host: Host) -> Accelerator:
    """The accelerator that the lab file names, or that the embedded lab has found; `auto` when neither says.

    Raises `LabError` (`lab-down`) when an embedded lab that should know it is not up.
    """
    if host.accelerator is not Accelerator.AUTO or lab.embedded is None:
        return host.accelerator
    return accelerator.read(lab)


def _cpu_seconds(connection: libvirt.virConnect) -> tuple[float, float]:
    nanoseconds = connection.getCPUStats(libvirt.VIR_NODE_CPU_STATS_ALL_CPUS)
    busy = sum(nanoseconds.get(name, 0) for name in ("kernel", "user"))
    return busy / 1e9, nanoseconds.get("idle", 0) / 1e9


def _version(number: int) -> str:
    """libvirt's numbers: major * 1,000,000 + minor * 1,000 + release."""
    return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
