"""One simulated VM on one host: a file there from the moment it is created until it is destroyed.

The file appears whole (it is written beside and then linked under its name, which fails when the name is taken) and
vanishes in one step, so that a process that dies at any line leaves a VM or none, never half of one.
"""

# A simulated VM must cost next to nothing, and pathlib costs more than the system calls it makes.
# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH123, PTH208

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Interface
from typing import Any

from labctl import clock
from labctl.errors import LabError
from labctl.model.lab import Accelerator, Host, ImageKind
from labctl.model.nic import NIC_MODELS
from labctl.model.order import VmShape
from labctl.model.result import Fact
from workers.hypervisors.base import OwnedVm, OwnershipMark, VmRequest
from workers.hypervisors.simulated.faults import FaultKind
from workers.hypervisors.simulated.world import World


@dataclass(frozen=True, kw_only=True)
class Presence:
    """A VM as its host has it."""

    host: str
    name: str
    uuid: str
    mac: str
    address: str
    shape: VmShape
    mark: OwnershipMark | None
    ready: float | None
    """When its guest answers, in seconds of `labctl.clock.monotonic`; None: it never does."""
    paused: bool = False


def create(world: World, host: Host, request: VmRequest) -> None:
    """Create and start the VM. Errors as `VmDriver.create` says; nothing of it is left on failure."""
    _check_nic(host, request)
    if find(world, host.name, request.name) is not None:
        raise _name_taken(world, host.name, request.name)
    if not _has_image(world, request):
        raise _not_created(
            host.name, request, f"The host has no image at {request.image.kernel or request.image.disk}."
        )
    world.spend(world.figures.create, host.name)
    _put(world, _new(world, host.name, request))


def find(world: World, host: str, name: str) -> Presence | None:
    """The VM of this name on the host; None when it has none."""
    try:
        with open(world.path(host, name), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    return _presence(host, name, content)


def end(world: World, presence: Presence) -> None:
    """End the VM. Whether it may be ended is the caller's to know. No error when it has ended already."""
    with suppress(FileNotFoundError):
        os.unlink(world.path(presence.host, presence.name))


def set_paused(world: World, presence: Presence, *, paused: bool) -> None:
    """Stop the virtual CPUs, or let them go on."""
    beside = _write_beside(world, replace(presence, paused=paused))
    os.replace(beside, world.path(presence.host, presence.name))


def move(world: World, presence: Presence, destination: str) -> bool:
    """Hand the VM over to another host, in one step. False when it has ended meanwhile."""
    os.makedirs(world.path(destination), exist_ok=True)
    try:
        os.rename(world.path(presence.host, presence.name), world.path(destination, presence.name))
    except FileNotFoundError:
        return False
    return True


def everything(world: World, host: str) -> tuple[Presence, ...]:
    """All VMs on the host, in the order of their names."""
    with suppress(FileNotFoundError):
        names = sorted(name for name in os.listdir(world.path(host)) if not name.startswith("."))
        found = (find(world, host, name) for name in names)
        return tuple(presence for presence in found if presence is not None)
    return ()


def owned(world: World, host: str) -> tuple[OwnedVm, ...]:
    """All VMs on the host that carry a mark."""
    return tuple(
        OwnedVm(name=one.name, uuid=one.uuid, host=host, active=True, mark=one.mark)
        for one in everything(world, host)
        if one.mark is not None
    )


def read_back(world: World, presence: Presence) -> Mapping[str, Fact]:
    """What was made, as a hypervisor would say it."""
    shape, host = presence.shape, world.host(presence.host)
    return {
        "host": presence.host,
        "nic.model": shape.nic_model,
        "nic.device": f"simulated-{shape.nic_model}",
        "nic.mac": presence.mac,
        "nic.backend": _backend(shape),
        "nic.queues": shape.queues,
        "machine": f"simulated-{shape.machine_type}",
        "accelerator": _accelerator(host),
        "vcpus": shape.vcpus,
        "memory_bytes": -(-shape.memory // 1024) * 1024,
        "simulated": True,
    }


def _new(world: World, host: str, request: VmRequest) -> Presence:
    seconds = world.figures.boot * world.like(0.1, "boot seconds", request.name) * world.slowness(host)
    boots = request.image.kind is not ImageKind.KERNEL or bool(request.image.initrd)
    if world.faults.changes(FaultKind.NEVER_BOOTS, "create", host, request.name):
        boots = False
    return Presence(
        host=host,
        name=request.name,
        uuid=request.uuid,
        mac=request.mac,
        address=str(request.address or ""),
        shape=request.shape,
        mark=request.mark,
        ready=clock.monotonic() + seconds if boots else None,
    )


def _put(world: World, presence: Presence) -> None:
    try:
        beside = _write_beside(world, presence)
    except FileNotFoundError:
        os.makedirs(world.path(presence.host), exist_ok=True)
        beside = _write_beside(world, presence)
    try:
        os.link(beside, world.path(presence.host, presence.name))
    except FileExistsError:
        raise _name_taken(world, presence.host, presence.name) from None
    finally:
        os.unlink(beside)


def _write_beside(world: World, presence: Presence) -> str:
    """The VM's file under a name that no VM has."""
    beside = world.path(presence.host, f".{presence.uuid}")
    with open(beside, "wb") as file:
        file.write(_content(presence))
    return beside


def _content(presence: Presence) -> bytes:
    values: dict[str, Any] = dict(vars(presence))
    del values["host"], values["name"]
    values["shape"] = vars(presence.shape) | {"offloads": dict(presence.shape.offloads)}
    values["mark"] = vars(presence.mark) if presence.mark is not None else None
    return json.dumps(values).encode()


def _presence(host: str, name: str, content: bytes) -> Presence:
    return replace(_read(content), host=host, name=name)


@lru_cache(maxsize=256)
def _read(content: bytes) -> Presence:
    values = json.loads(content)
    values["shape"] = VmShape(**values["shape"])
    if values["mark"] is not None:
        values["mark"] = OwnershipMark(**values["mark"])
    return Presence(host="", name="", **values)


def address_of(presence: Presence) -> str:
    """The VM's address on the test network, without its prefix length; empty when it has none."""
    return str(IPv4Interface(presence.address).ip) if presence.address else ""


def _has_image(world: World, request: VmRequest) -> bool:
    """Simulated hosts have exactly the files that the lab's images name."""
    asked = request.image
    return any((image.kernel, image.disk) == (asked.kernel, asked.disk) for image in world.lab.images.values())


def _accelerator(host: Host) -> str:
    return "tcg" if host.accelerator is Accelerator.TCG else "kvm"


def _backend(shape: VmShape) -> str:
    model = NIC_MODELS[shape.nic_model]
    if model.passthrough:
        return "hostdev"
    return "vhost" if model.vhost and shape.vhost is not False else "qemu"


def _check_nic(host: Host, request: VmRequest) -> None:
    """Raise `LabError` (`nic-unsupported`) for an adapter that a host of this kind can't give as asked."""
    shape = request.shape
    model = NIC_MODELS.get(shape.nic_model)
    why = ""
    if model is None or host.hypervisor not in model.hypervisors:
        why = f"It is no adapter of {host.hypervisor}."
    elif model.passthrough and not request.passthrough:
        why = "No device of the host is named to be passed through."
    elif shape.queues > 1 and not model.multiqueue:
        why = f"It has one queue pair, {shape.queues} are asked for."
    elif shape.vhost is not None and not model.vhost:
        why = "vhost is a back end of virtio only."
    elif shape.vhost and _accelerator(host) == "tcg":
        why = "There is no vhost under software emulation."
    if why:
        raise LabError(
            f"Host {host.name} can't give {request.name} a {shape.nic_model} adapter as asked.",
            kind="nic-unsupported",
            why=why,
            todo="Take this combination out of the campaign, or name the device in the lab file.",
            host=host.name,
        )


def _name_taken(world: World, host: str, name: str) -> LabError:
    presence = find(world, host, name)
    mark = presence.mark if presence is not None else None
    owner = f"it carries the mark of lab {mark.lab}, store {mark.store}" if mark else "it carries no mark of labctl"
    return LabError(
        f"Host {host} has a VM named {name} already; it was not touched.",
        kind="name-taken",
        why=f"Somebody else made it: {owner}.",
        todo="Rename or remove that VM.",
        host=host,
    )


def _not_created(host: str, request: VmRequest, why: str) -> LabError:
    return LabError(
        f"The VM {request.name} could not be created on host {host}.",
        kind="create-failed",
        why=why,
        todo=f"Check image {request.image.name} on the host.",
        host=host,
    )


def failed(what: str, host: str, *, kind: str = "command-failed") -> LabError:
    """The error of an operation that the world's faults let fail."""
    return LabError(
        what, kind=kind, why="The faults of this simulated lab say so.", todo="Nothing: nothing is real.", host=host
    )
