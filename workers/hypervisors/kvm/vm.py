"""VMs on one host: create, find, pause, end, and read back what was really made."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import libvirt
import libvirt_qemu

from labctl.errors import LabError
from labctl.model.lab import Accelerator, Host, ImageKind
from labctl.model.result import Fact
from workers.guard import Deadline
from workers.hypervisors.base import OwnedVm, OwnershipMark, VmRequest
from workers.hypervisors.kvm import definition, storage
from workers.hypervisors.kvm.connection import Connections, lab_error, said

T = TypeVar("T")

DESTROY_SECONDS = 45.0
"""Deadline for ending a VM: libvirt itself waits 10 s for SIGTERM and then up to 30 s for SIGKILL."""

_UNDEFINE = (
    libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
    | libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
)

_COMING = (
    libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
    libvirt.VIR_DOMAIN_PAUSED_POSTCOPY,
)
"""Reasons of a paused domain that is not the VM, but its shell on one side of a migration."""


@dataclass(frozen=True, kw_only=True)
class Presence:
    """A domain as found on a host. `running` also holds for one that was paused on purpose."""

    host: str
    name: str
    running: bool
    paused: bool
    persistent: bool
    mark: OwnershipMark | None


def create(
    connections: Connections, host: Host, request: VmRequest, accelerator: Accelerator, *, timeout: float
) -> None:
    """Create and start the VM. Errors as `VmDriver.create` says; nothing of it is left on failure."""
    deadline = Deadline.after(timeout)
    definition.check_nic(request, host, accelerator)
    _refuse_taken_names(connections, host, request)
    try:
        overlay = None
        if request.image.kind is ImageKind.DISK:
            overlay = connections.write(
                host.name, lambda c: storage.make_overlay(c, request.image.disk, request.uuid), seconds=deadline.left
            )
        text = definition.domain_xml(request, host, accelerator, overlay=overlay)
        connections.write(host.name, lambda c: c.createXML(text, 0), seconds=deadline.left)
    except (libvirt.libvirtError, LabError) as error:
        _remove_half_made(connections, host, request)
        if isinstance(error, libvirt.libvirtError):
            raise _creation_error(connections, host, request, error) from error
        raise


def find(connections: Connections, host: str, uuid: str) -> Presence | None:
    """The domain of this UUID on the host; None when it has none."""

    def look(connection: libvirt.virConnect) -> Presence | None:
        try:
            domain = connection.lookupByUUIDString(uuid)
            state, reason = domain.state()
            paused = state == libvirt.VIR_DOMAIN_PAUSED
            return Presence(
                host=host,
                name=domain.name(),
                running=state in (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED)
                or (paused and reason not in _COMING),
                paused=paused,
                persistent=bool(domain.isPersistent()),
                mark=definition.read_mark(domain.XMLDesc()),
            )
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    return _reading(connections, host, look, f"Host {host} can't be asked for the VM {uuid}.")


def end(connections: Connections, presence: Presence, uuid: str) -> None:
    """End the domain and wait until its process is gone. Whether it may be ended is the caller's to know."""

    pid = process_id(connections.host(presence.host), presence.name)

    def kill(connection: libvirt.virConnect) -> None:
        domain = connection.lookupByUUIDString(uuid)
        if domain.isActive():
            domain.destroy()
        if presence.persistent:
            domain.undefineFlags(_UNDEFINE)

    try:
        connections.write(presence.host, kill, seconds=DESTROY_SECONDS)
    except libvirt.libvirtError as error:
        # It may end by itself at the same moment; what counts is whether it is there afterwards.
        if find(connections, presence.host, uuid) is not None:
            raise lab_error(
                presence.host,
                f"The VM {presence.name} on host {presence.host} could not be ended.",
                error,
                todo="Look for its QEMU process on the host; one that hangs in the kernel needs a reboot of the host.",
            ) from error
    deadline = Deadline.after(DESTROY_SECONDS)
    while find(connections, presence.host, uuid) is not None or (pid and _is_qemu_of(pid, uuid)):
        if deadline.passed:
            raise LabError(
                f"The VM {presence.name} is still there {DESTROY_SECONDS:.0f} s after it was ended.",
                kind="libvirt",
                todo="Look for its QEMU process on the host.",
                host=presence.host,
            )
        time.sleep(0.02)


def pause(connections: Connections, host: str, uuid: str) -> None:
    """Stop the virtual CPUs. No error when they are stopped."""
    _switch(connections, host, uuid, to=libvirt.VIR_DOMAIN_PAUSED, by=lambda domain: domain.suspend())


def unpause(connections: Connections, host: str, uuid: str) -> None:
    """Let the virtual CPUs go on. No error when they run."""
    _switch(connections, host, uuid, to=libvirt.VIR_DOMAIN_RUNNING, by=lambda domain: domain.resume())


def owned(connections: Connections, host: str) -> tuple[OwnedVm, ...]:
    """All domains on the host that carry a mark, in the order of their names."""

    def listing(connection: libvirt.virConnect) -> tuple[OwnedVm, ...]:
        found = (_owned(host, domain) for domain in connection.listAllDomains())
        return tuple(sorted((vm for vm in found if vm is not None), key=lambda vm: vm.name))

    return _reading(connections, host, listing, f"The VMs of host {host} can't be listed.")


def mark_of(domain: libvirt.virDomain) -> OwnershipMark | None:
    """The ownership mark of a domain; None when it has none, or is gone. Passes the library's other errors on."""
    try:
        return definition.read_mark(domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, definition.OWNERSHIP))
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN_METADATA, libvirt.VIR_ERR_NO_DOMAIN):
            return None
        raise


def read_back(connections: Connections, host: str, uuid: str) -> Mapping[str, Fact]:
    """What was really created, as libvirt, QEMU's own object tree and its command line (local hosts only) say."""

    def ask(connection: libvirt.virConnect) -> tuple[str, str, str, str, int]:
        domain = connection.lookupByUUIDString(uuid)
        text = domain.XMLDesc()
        alias = definition.read_domain(text).nic_alias
        return (
            domain.name(),
            text,
            _device_type(domain, alias),
            "kvm" if _monitor(domain, "query-kvm")["enabled"] else "tcg",
            len(_monitor(domain, "query-cpus-fast")),
        )

    name, text, device, accelerator, vcpus = _reading(
        connections, host, ask, f"The VM {uuid} on host {host} can't be read back."
    )
    said_by_xml = definition.read_domain(text)
    arguments = _arguments(connections.host(host), name, uuid)
    backend, queues = _backend(said_by_xml, arguments)
    return {
        "host": host,
        "nic.model": definition.QEMU_DEVICES.get(device, said_by_xml.nic_model),
        "nic.device": device,
        "nic.mac": said_by_xml.nic_mac,
        "nic.backend": backend,
        "nic.queues": queues,
        "machine": said_by_xml.machine,
        "cpu.model": said_by_xml.cpu_model,
        "accelerator": accelerator,
        "vcpus": vcpus,
        "memory_bytes": said_by_xml.memory_bytes,
        "domain_xml": text,
        "qemu_arguments": shlex.join(arguments) if arguments else None,
        "console_tail": console_tail(connections, host, uuid),
    }


def console_tail(connections: Connections, host: str, uuid: str, *, characters: int = 1500) -> str:
    """The last output of the guest's serial port; empty when there is none or it can't be read."""

    def ask(connection: libvirt.virConnect) -> str:
        domain = connection.lookupByUUIDString(uuid)
        text: str = _monitor(domain, "ringbuf-read", device=definition.CONSOLE, size=definition.CONSOLE_BYTES)
        return text

    try:
        text = connections.write(host, ask)
    except (libvirt.libvirtError, LabError):
        return ""
    return text.replace("\r", "")[-characters:].strip()


def process_id(host: Host, name: str) -> int | None:
    """The process of a running VM on a host whose libvirt is on this machine; None on others."""
    folder = _local_run_folder(host)
    if folder is None:
        return None
    try:
        return int((folder / "qemu" / f"{name}.pid").read_text())
    except (OSError, ValueError):
        return None


def _refuse_taken_names(connections: Connections, host: Host, request: VmRequest) -> None:
    """Refuse a name and a MAC address that a VM on the host has: libvirt takes the second of two equal addresses."""

    def look(connection: libvirt.virConnect) -> tuple[OwnershipMark | bool, str]:
        running = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        holder = next((domain.name() for domain in running if request.mac.lower() in _macs(domain)), "")
        try:
            return definition.read_mark(connection.lookupByName(request.name).XMLDesc()) or True, holder
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return False, holder
            raise

    found, holder = _reading(connections, host.name, look, f"Host {host.name} can't be asked for its VMs.")
    if found:
        raise _name_taken(host, request, found if isinstance(found, OwnershipMark) else None)
    if holder:
        raise LabError(
            f"Host {host.name} has a VM with the MAC address {request.mac} already: {holder}. It was not touched.",
            kind="mac-taken",
            why="Two adapters with one address on one network get each other's packets.",
            todo="Give that VM another address, or the lab another `guest_range`: addresses are made from it.",
            host=host.name,
        )


def _macs(domain: libvirt.virDomain) -> tuple[str, ...]:
    """The addresses of its adapters; none when it is gone since it was listed."""
    try:
        return definition.read_macs(domain.XMLDesc())
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return ()
        raise


def _name_taken(host: Host, request: VmRequest, mark: OwnershipMark | None) -> LabError:
    owner = f"it carries the mark of lab {mark.lab}, store {mark.store}, campaign {mark.campaign}" if mark else ""
    return LabError(
        f"Host {host.name} has a VM named {request.name} already; it was not touched.",
        kind="name-taken",
        why=f"Somebody else made it: {owner or 'it carries no mark of labctl'}.",
        todo="Rename or remove that VM; one that an earlier campaign left goes when that campaign is resumed.",
        host=host.name,
    )


def _remove_half_made(connections: Connections, host: Host, request: VmRequest) -> None:
    """Remove what a failed creation left. Best effort: the error that is on its way says more than a second one."""
    try:
        presence = find(connections, host.name, request.uuid)
        if presence is not None and presence.mark == request.mark:
            end(connections, presence, request.uuid)
        if request.image.kind is ImageKind.DISK:
            connections.write(host.name, lambda c: storage.remove_overlay(c, request.uuid))
    except (libvirt.libvirtError, LabError):
        return


def _creation_error(connections: Connections, host: Host, request: VmRequest, error: libvirt.libvirtError) -> LabError:
    text = said(error)
    if error.get_error_code() in (libvirt.VIR_ERR_DOM_EXIST, libvirt.VIR_ERR_OPERATION_FAILED) and "already" in text:
        presence = find(connections, host.name, request.uuid)
        return _name_taken(host, request, presence.mark if presence else None)
    model = request.shape.nic_model
    about_device = request.passthrough and ("PCI" in text or "passthrough" in text or request.passthrough in text)
    if "is not a valid device model name" in text or about_device:
        return lab_error(
            host.name,
            f"Host {host.name} can't give {request.name} a {model} adapter.",
            error,
            kind="nic-unsupported",
            todo="Take this NIC model out of the campaign, or give the host a QEMU or a device that has it.",
        )
    return lab_error(
        host.name,
        f"The VM {request.name} could not be created on host {host.name}.",
        error,
        kind="create-failed",
        todo=f"Check image {request.image.name} and bridge {request.network.bridge} on the host.",
    )


def _switch(
    connections: Connections, host: str, uuid: str, *, to: int, by: Callable[[libvirt.virDomain], object]
) -> None:
    def switch(connection: libvirt.virConnect) -> None:
        domain = connection.lookupByUUIDString(uuid)
        if domain.state()[0] != to:
            by(domain)

    try:
        connections.write(host, switch)
    except libvirt.libvirtError as error:
        raise lab_error(host, f"The VM {uuid} on host {host} could not be paused or go on.", error) from error


def _owned(host: str, domain: libvirt.virDomain) -> OwnedVm | None:
    """The domain as one of ours; None when it has no mark, or is gone since it was listed."""
    mark = mark_of(domain)
    if mark is None:
        return None
    try:
        return OwnedVm(
            name=domain.name(), uuid=domain.UUIDString(), host=host, active=bool(domain.isActive()), mark=mark
        )
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _monitor(domain: libvirt.virDomain, command: str, **arguments: object) -> Any:  # noqa: ANN401 - JSON
    """The answer of QEMU's own monitor (https://www.qemu.org/docs/master/interop/qemu-qmp-ref.html)."""
    text = json.dumps({"execute": command, "arguments": arguments})
    answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, text, 0))
    return answer["return"]


def _device_type(domain: libvirt.virDomain, alias: str) -> str:
    """The type of the adapter in QEMU's object tree; empty when it isn't there."""
    for entry in _monitor(domain, "qom-list", path="/machine/peripheral"):
        if entry["name"] == alias:
            return str(entry["type"]).removeprefix("child<").removesuffix(">")
    return ""


def _arguments(host: Host, name: str, uuid: str) -> tuple[str, ...]:
    """The command line of the VM's process on a local host; empty on others."""
    pid = process_id(host, name)
    return _command_line(pid) if pid and _is_qemu_of(pid, uuid) else ()


def _is_qemu_of(pid: int, uuid: str) -> bool:
    return uuid in _command_line(pid)


def _command_line(pid: int) -> tuple[str, ...]:
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(word.decode(errors="replace") for word in content.split(b"\0")[:-1])


def _backend(said_by_xml: definition.DomainReading, arguments: tuple[str, ...]) -> tuple[str | None, int]:
    """The back end of the adapter and its queue pairs: from QEMU's arguments when known, else from the XML."""
    if said_by_xml.nic_model in ("vt-d", "sr-iov"):
        return "hostdev", said_by_xml.nic_queues
    options = next((text for flag, text in pairwise(arguments) if flag == "-netdev"), "")
    if not options:
        return said_by_xml.nic_driver or None, said_by_xml.nic_queues
    try:
        netdev = json.loads(options)
        vhost, queues = bool(netdev.get("vhost")), str(netdev.get("fds", "")).count(":") + 1
    except ValueError:  # QEMU before 6.1 takes key=value
        pairs = dict(part.partition("=")[::2] for part in options.split(","))
        vhost, queues = pairs.get("vhost") == "on", pairs.get("fds", "").count(":") + 1
    return "vhost" if vhost else "qemu", queues


def _local_run_folder(host: Host) -> Path | None:
    """libvirt's folder of run-time state, when the URI names a socket on this machine."""
    parts = urlsplit(host.uri)
    _, _, transport = parts.scheme.partition("+")
    if parts.hostname or transport not in ("", "unix"):
        return None
    socket = parse_qs(parts.query).get("socket", ["/run/libvirt/libvirt-sock"])[0]
    return Path(socket).parent


def _reading(connections: Connections, host: str, call: Callable[[libvirt.virConnect], T], what: str) -> T:
    """A call that changes nothing, with the library's errors as `LabError`."""
    try:
        return connections.read(host, call)
    except libvirt.libvirtError as error:
        raise lab_error(host, what, error) from error
