"""Whether VMs can be migrated from one host to another: asked before anything is made, of the lab file and of the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libvirt
from lxml import etree

from labctl.model.lab import Accelerator, Lab
from workers.channels.base import Channel, ChannelError
from workers.hypervisors.kvm.connection import Connections, lab_error, said
from workers.hypervisors.kvm.facts import declared_accelerator, host_uuid, offers_kvm

MIGRATION_PORT = 49152
"""The first port on which libvirt lets QEMU wait for a VM (`migration_port_min` of qemu.conf)."""

ANSWER_SECONDS = 5
"""How long the destination may take to answer the source: with a connection, or by refusing one."""


def check(connections: Connections, lab: Lab, source: str, destination: str, *, shell: Channel | None) -> str:
    """Why a VM can't be migrated between two hosts; empty when nothing speaks against it.

    `shell` leads to the source, from where the destination is tried; None: the lab gives no way to it.
    Raises `LabError` when one of the two can't be asked.
    """
    reason = check_inventory(lab, source, destination)
    if reason:
        return reason
    try:
        there, here = (_identity(connections, name) for name in (destination, source))
        if there["uuid"] == here["uuid"]:
            return f"Hosts {source} and {destination} have the same host UUID, so libvirt takes them for one: set host_uuid."
        if there["qemu"] < here["qemu"]:
            return f"Host {destination} has an older QEMU than host {source}."
        processor = processor_on(connections, lab, source, destination)
        reason = check_processor(connections, processor, destination, kind="kvm") if processor else ""
    except libvirt.libvirtError as error:
        raise lab_error(source, f"Hosts {source} and {destination} can't be compared.", error) from error
    if reason or shell is None:
        return reason
    return check_way(shell, source, destination, str(lab.hosts[destination].migration_address))


def check_inventory(lab: Lab, source: str, destination: str) -> str:
    """The part of `check` that the lab file answers."""
    if source == destination:
        return f"Source and destination are the same host, {source}."
    if (source, destination) not in lab.migration_pairs:
        return f"The lab has no migration path from host {source} to host {destination}."
    if lab.hosts[destination].migration_address is None:
        return f"Host {destination} has no migration address in the lab file."
    return ""


def processor_on(connections: Connections, lab: Lab, source: str, destination: str) -> str:
    """The processor that VMs get on the source, as XML; empty under software emulation, where it is the same everywhere."""
    declared = {declared_accelerator(lab, lab.hosts[name]) for name in (source, destination)}
    if Accelerator.TCG in declared:
        return ""
    if Accelerator.AUTO in declared and not all(connections.read(name, offers_kvm) for name in (source, destination)):
        return ""
    text = connections.read(source, lambda c: c.getDomainCapabilities(None, "x86_64", None, "kvm", 0))
    mode = etree.fromstring(text).find("cpu/mode[@name='host-model'][@supported='yes']")
    if mode is None:
        return ""
    mode.tag = "cpu"
    mode.attrib.clear()
    return etree.tostring(mode, encoding="unicode")


def check_processor(connections: Connections, processor: str, destination: str, *, kind: str) -> str:
    """Why a VM with this processor can't go on at the destination; empty when it can, or libvirt can't tell.

    `processor` is a `cpu` element as text, `kind` libvirt's word for the accelerator: `kvm` or `qemu`.
    """

    def compare(connection: libvirt.virConnect) -> int:
        flags = libvirt.VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE
        answer: int = connection.compareHypervisorCPU(None, "x86_64", None, kind, processor, flags)
        return answer

    try:
        connections.read(destination, compare)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_CPU_INCOMPATIBLE:
            return f"Host {destination} can't give a VM the processor that it has on its source: {said(error)}."
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
            raise
    return ""


def check_way(shell: Channel, source: str, destination: str, address: str, *, port: int = MIGRATION_PORT) -> str:
    """Why the source doesn't reach the destination's migration address; empty when it does, or can't be told.

    Between migrations nobody listens there, so a connection that is refused has reached its end.
    """
    command = ["env", "LC_ALL=C", "timeout", str(ANSWER_SECONDS), "bash", "-c", ': <>"/dev/tcp/$1/$2"', "labctl"]
    try:
        result = shell.run([*command, address, str(port)], timeout=2 * ANSWER_SECONDS)
    except ChannelError:
        return ""
    told = result.stderr.decode(errors="replace").strip().rpartition(": ")[2]
    if result.exit_code in (0, 126, 127) or told == "Connection refused":
        return ""
    why = f"no answer within {ANSWER_SECONDS} s" if result.exit_code == 124 else told or "it doesn't say why"
    return f"Host {source} doesn't reach port {port} of {address}, the migration address of host {destination}: {why}."


def _identity(connections: Connections, host: str) -> Mapping[str, Any]:
    return connections.read(host, lambda c: {"uuid": host_uuid(c), "qemu": c.getVersion()})
