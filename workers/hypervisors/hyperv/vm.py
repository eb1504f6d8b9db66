"""VMs on one host: create, find, pause, end, and read back what was really made.

What to try first on a real host: `set-guest-address.ps1` on a Windows and a Linux guest that have just booted. With which code
Hyper-V says that the guest doesn't answer yet differs from version to version; those that the script knows are tried again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from labctl.errors import LabError
from labctl.model.lab import Host
from labctl.model.result import Fact
from workers.guard import Deadline, Guard
from workers.hypervisors.base import NAME_PREFIX, OwnedVm, OwnershipMark, VmRequest
from workers.hypervisors.hyperv import definition, storage
from workers.hypervisors.hyperv.answers import Answer
from workers.hypervisors.hyperv.connection import Connections
from workers.powershell.base import Json, ScriptError

DESTROY_SECONDS = 120.0
"""Deadline for ending a VM: Hyper-V merges and closes its files before it returns."""

RETRY_SECONDS = 1.0
"""Between two looks at a guest that isn't up yet."""

_RUNNING = frozenset({"Running", "Paused", "Starting", "Resuming", "Pausing", "Suspending", "RunningCritical"})
"""States (`Microsoft.HyperV.PowerShell.VMState`) of a VM whose guest is in memory; one paused on purpose is among them."""

_CREATION_KINDS = frozenset({"name-taken", "mac-taken", "nic-unsupported"})
"""Errors of `create-vm.ps1` that `VmDriver.create` names as they are; the others are `create-failed`."""

_CREATION_TODO = {
    "name-taken": "Rename or remove that VM; one that an earlier campaign left goes when that campaign is resumed.",
    "mac-taken": "Give that VM another address, or the lab another `guest_range`: addresses are made from it.",
    "nic-unsupported": "Take this NIC model out of the campaign, or give the host a switch or device that has it.",
    "no-switch": "Give the switch one name on all hosts, and that name as `bridge` of the network in the lab file.",
    "no-disk": "Copy the image to that path on the host, or correct it in the lab file.",
}


@dataclass(frozen=True, kw_only=True)
class Presence:
    """A VM as found on a host. `running` also holds for one that was paused on purpose."""

    host: str
    id: str
    """Its VMId."""
    name: str
    running: bool
    paused: bool
    notes: definition.Notes | None

    @property
    def mark(self) -> OwnershipMark | None:
        """The ownership mark; None when it carries none."""
        return self.notes.mark if self.notes is not None else None


@dataclass(frozen=True, kw_only=True)
class GuestAddresses:
    """What is known of the addresses of a guest's adapter."""

    told: tuple[IPv4Address, ...]
    """By the guest, through the key-value exchange."""
    seen: tuple[IPv4Address, ...]
    """By the host's table of neighbours."""
    exchange: bool
    """Whether the guest's side of the key-value exchange answers."""

    @property
    def usable(self) -> IPv4Address | None:
        """The first address that isn't link-local; what the guest says goes first."""
        return next((address for address in self.told + self.seen if not address.is_link_local), None)

    @property
    def why_none(self) -> str:
        """Why there is no usable address, in a sentence."""
        if self.told or self.seen:
            return (
                f"It has the link-local address {(self.told + self.seen)[0]} only: no DHCP server has answered, or its "
                "adapter is in another VLAN."
            )
        if not self.exchange:
            return (
                "Its integration service for the key-value exchange doesn't answer (Windows: service vmickvpexchange; "
                "Linux: hv_kvp_daemon of the package hyperv-daemons or linux-cloud-tools), and the host has not seen its "
                "adapter's MAC address in its own table of neighbours either."
            )
        return "Its integration service answers, but its adapter has no IPv4 address yet."


@dataclass(frozen=True, kw_only=True)
class Made:
    """What is told of a VM when it was made: its VMId, and the address of its adapter, which a device brings along."""

    id: str
    mac: str


def create(connections: Connections, host: Host, request: VmRequest, guard: Guard, *, timeout: float) -> Made:
    """Create and start the VM. Errors as `VmDriver.create` says; nothing of it is left on failure.

    An image with guest customisation is waited for, because its address can only be set once it is up.
    """
    deadline = Deadline.after(timeout)
    definition.check(request, host)
    document = definition.document(request, host)
    try:
        # A job: copies of disks take long, and of a lost call nobody could tell whether its VM may still come about.
        answer = connections.finish(
            host.name, "create-vm", document, job=f"create-{request.uuid}", timeout=deadline.left, guard=guard
        )
        made = Made(id=answer.text("id"), mac=definition.common_mac(answer.text("mac")))
        addressing = definition.address_document(request, made.id)
        if addressing is not None:
            _set_address(connections, host, request, addressing, guard, deadline)
    except ScriptError as error:
        if error.kind == "job-lost":
            _remove_half_made(connections, host, request)
        raise _creation_error(host, request, error) from error
    except BaseException:
        _remove_half_made(connections, host, request)
        raise
    return made


def listing(connections: Connections, host: str) -> tuple[Presence, ...]:
    """All VMs of the host, whoever's they are."""
    return _presences(connections, host, [])


def find(connections: Connections, host: str, uuid: str, vm_id: str = "") -> Presence | None:
    """The VM of this UUID of ours on the host; None when it has none. `vm_id` is its VMId if that is known.

    One that is there but has lost its mark is found by its VMId only: it is then no longer ours to touch.
    """
    found = _presences(connections, host, [vm_id] if vm_id else [])
    return next((one for one in found if _is(one, uuid, vm_id)), None)


def end(connections: Connections, presence: Presence, uuid: str) -> None:
    """End and remove a VM with its folder, and see that both are gone. Whether it may be ended is the caller's to know."""
    _remove(connections, presence.host, uuid=uuid, vm_id=presence.id, name=presence.name)


def remove_folder(connections: Connections, host: str, uuid: str, name: str) -> None:
    """Remove the folder of a VM that is not on the host (any more), and a VM in it that never got as far as its mark. No
    error when there is none."""
    _remove(connections, host, uuid=uuid, vm_id="", name=name)


def pause(connections: Connections, host: str, vm_id: str) -> None:
    """Stop the virtual processors. No error when they are stopped."""
    connections.call(host, "switch-vm", {"id": vm_id, "paused": True})


def unpause(connections: Connections, host: str, vm_id: str) -> None:
    """Let the virtual processors go on. No error when they run."""
    connections.call(host, "switch-vm", {"id": vm_id, "paused": False})


def owned(connections: Connections, host: str) -> tuple[OwnedVm, ...]:
    """All VMs on the host that carry a mark, in the order of their names."""
    return tuple(
        OwnedVm(name=one.name, uuid=one.notes.uuid, host=host, active=one.running, mark=one.notes.mark)
        for one in sorted(listing(connections, host), key=lambda one: one.name)
        if one.notes is not None and one.name.startswith(NAME_PREFIX)
    )


def addresses(connections: Connections, host: str, vm_id: str, mac: str) -> GuestAddresses:
    """The addresses of the adapter with this MAC address."""
    answer = connections.call(host, "guest-addresses", {"id": vm_id, "mac": definition.plain_mac(mac)})
    return GuestAddresses(
        told=tuple(IPv4Address(text) for text in answer.texts("told")),
        seen=tuple(IPv4Address(text) for text in answer.texts("seen")),
        exchange=answer.flag("exchange"),
    )


def read_back(connections: Connections, host: str, vm_id: str) -> Mapping[str, Fact]:
    """What was really created, as Hyper-V says.

    `nic.model` is what carries the traffic: an adapter that was to use SR-IOV and doesn't is a synthetic one. How many
    queues it has is not for the host to say (`nic.queues` is None).
    """
    answer = connections.call(host, "read-vm", {"id": vm_id})
    adapters, devices = answer.items("adapters"), answer.items("devices")
    disks = answer.items("disks")
    facts: dict[str, Fact] = {
        "host": host,
        "vm.id": vm_id,
        "machine": f"generation {answer.whole('generation')}, version {answer.text('version')}",
        "accelerator": "hyper-v",
        "vcpus": answer.whole("vcpus"),
        "memory_bytes": answer.whole("memory"),
        "memory.dynamic": answer.flag("dynamicMemory"),
        "cpu.compatibility": answer.flag("compatibleCpu"),
        "heartbeat": answer.text("heartbeat"),
        "integration_services.version": answer.text("integrationServices"),
        "checkpoints": answer.whole("checkpoints"),
        "disk": disks[0].text("path") if disks else None,
        "disk.parent": disks[0].text("parent") if disks else None,
        "nic.queues": None,
    }
    if adapters:
        return facts | _adapter_facts(adapters[0])
    model = "vt-d" if devices else None
    location = devices[0].text("location") if devices else None
    return facts | {"nic.model": model, "nic.mac": None, "nic.backend": location}


def _adapter_facts(adapter: Answer) -> dict[str, Fact]:
    weight, usage = adapter.whole("iovWeight"), adapter.whole("iovUsage")
    model = "legacy" if adapter.flag("legacy") else ("sr-iov" if usage > 0 else "synthetic")
    return {
        "nic.model": model,
        "nic.legacy": adapter.flag("legacy"),
        "nic.mac": definition.common_mac(adapter.text("mac")),
        "nic.backend": f"virtual switch {adapter.text('switch')}",
        "nic.vlan": adapter.whole_or_none("vlan"),
        "nic.sriov_wanted": weight > 0,
        "nic.sriov_used": usage > 0,
        "nic.vmq_weight": adapter.whole("vmqWeight"),
        "nic.vmq_used": adapter.whole("vmqUsage") > 0,
        "nic.status": adapter.text("status"),
    }


def _presences(connections: Connections, host: str, ids: list[Json]) -> tuple[Presence, ...]:
    answer = connections.call(host, "list-vms", {"ids": ids})
    return tuple(
        Presence(
            host=host,
            id=vm.text("id"),
            name=vm.text("name"),
            running=vm.text("state") in _RUNNING,
            paused=vm.text("state") == "Paused",
            notes=definition.read_notes(vm.text("notes")),
        )
        for vm in answer.items("vms")
    )


def _is(presence: Presence, uuid: str, vm_id: str) -> bool:
    if vm_id:
        return presence.id.lower() == vm_id.lower()
    return presence.notes is not None and presence.notes.uuid == uuid


def _set_address(
    connections: Connections,
    host: Host,
    request: VmRequest,
    document: Mapping[str, Json],
    guard: Guard,
    deadline: Deadline,
) -> None:
    """Give the guest its static address as soon as it can be told."""
    try:
        while connections.call(host.name, "set-guest-address", document).text("state") != "done":
            guard.check()
            if deadline.passed:
                raise LabError(
                    f"The VM {request.name} could not be given the address {request.address} in time.",
                    kind="create-failed",
                    why="Its integration service for the key-value exchange did not answer: the guest has not booted, or "
                    "lacks it (Linux: hv_kvp_daemon of the package hyperv-daemons or linux-cloud-tools).",
                    todo=f"Add it to image {request.image.name}, or set `customisation: none` and use a network with DHCP.",
                    host=host.name,
                )
            time.sleep(min(RETRY_SECONDS, deadline.left))
    except ScriptError as error:
        raise LabError(
            f"The VM {request.name} could not be given the address {request.address}.",
            kind="create-failed",
            why=error.why or error.what,
            todo="Use a network with DHCP for this adapter.",
            host=host.name,
        ) from error


def _remove(connections: Connections, host: str, *, uuid: str, vm_id: str, name: str) -> None:
    folder = storage.folder_of(connections.host(host), uuid)
    document: dict[str, Json] = {"id": vm_id, "uuid": uuid, "name": name, "folder": folder}
    answer = connections.call(host, "remove-vm", document, timeout=DESTROY_SECONDS)
    left = [what for what, there in (("VM", answer.flag("present")), ("folder", answer.flag("folder"))) if there]
    if left:
        raise LabError(
            f"The {' and the '.join(left)} of VM {name or uuid} could not be removed from host {host}.",
            kind="destroy-failed",
            why="Hyper-V reported no error, but it is still there.",
            todo=f"Look for what holds a file open in {folder}, such as a backup or a virus scanner.",
            host=host,
        )


def _remove_half_made(connections: Connections, host: Host, request: VmRequest) -> None:
    """Remove what a failed creation left. Best effort: the error that is on its way says more than a second one."""
    try:
        presence = find(connections, host.name, request.uuid)
        if presence is None:
            remove_folder(connections, host.name, request.uuid, request.name)
        elif presence.mark == request.mark:
            end(connections, presence, request.uuid)
    except LabError:
        return


def _creation_error(host: Host, request: VmRequest, error: ScriptError) -> LabError:
    kind = error.kind if error.kind in _CREATION_KINDS else "create-failed"
    said = error.why or error.what
    what = f"The VM {request.name} could not be created on host {host.name}."
    why = said
    if kind == "name-taken":
        what = f"Host {host.name} has a VM named {request.name} already; it was not touched."
        notes = definition.read_notes(str(error.detail.get("notes", "")))
        owner = f"the mark of lab {notes.mark.lab}, store {notes.mark.store}" if notes else "no mark of labctl"
        why = f"Somebody else made it: it carries {owner}."
    elif kind == "mac-taken":
        what = f"Host {host.name} has a VM with the MAC address {request.mac} already. It was not touched."
    elif kind == "nic-unsupported":
        what = f"Host {host.name} can't give {request.name} a {request.shape.nic_model} adapter."
    missing = request.image.disk or request.image.iso
    if error.kind == "no-disk" and (hop := storage.second_hop(host, missing)):
        return LabError(what, kind=kind, why=why, todo=hop, host=host.name)
    fallback = f"Check image {request.image.name} and switch {request.network.bridge} on the host, and its free memory."
    return LabError(what, kind=kind, why=why, todo=_CREATION_TODO.get(error.kind, fallback), host=host.name)
