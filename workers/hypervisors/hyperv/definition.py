"""A VM as a document for the script that makes it, and the ownership mark in its notes. Pure: nothing is asked or changed.

A VM of Hyper-V has three identities: its name (not unique, Hyper-V takes any number of VMs with one name), its VMId (given
by Hyper-V when it is made, kept when it moves) and our UUID, which the store has recorded before it is made. The notes
hold the third, and the VM is addressed by the second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from labctl.errors import LabError
from labctl.model.lab import Cloning, Customisation, GuestSystem, Host, ImageKind
from workers.hypervisors.base import OwnershipMark, VmRequest
from workers.hypervisors.hyperv import storage
from workers.powershell.base import Json

MODELS = ("synthetic", "legacy", "sr-iov", "vt-d")
"""NIC models that Hyper-V gives."""

MARK_PREFIX = "labctl-mark: "
"""What the line of the notes begins with that holds the mark."""


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What the notes of a VM of ours say: its UUID, and the mark."""

    uuid: str
    mark: OwnershipMark


def notes_text(request: VmRequest) -> str:
    """The notes of a VM: a sentence for people, and the mark as one line of JSON."""
    document = asdict(request.mark) | {"vm": request.uuid}
    return (
        f"Made by labctl for the lab {request.mark.lab}. It is removed when its measurement is done; please leave it, its "
        "name and these notes alone.\n" + MARK_PREFIX + json.dumps(document, sort_keys=True)
    )


def read_notes(text: str) -> Notes | None:
    """What the notes say; None for those of a VM that is not ours."""
    # The last one: the name of a lab stands before it, and holds what its author likes.
    line = next((line for line in reversed(text.splitlines()) if line.startswith(MARK_PREFIX)), "")
    try:
        document = json.loads(line[len(MARK_PREFIX) :])
        numbers = {name: int(document[name]) for name in ("campaign", "run", "attempt")}
        texts = {name: str(document[name]) for name in ("lab", "role", "store")}
        return Notes(uuid=str(document["vm"]), mark=OwnershipMark(**numbers, **texts))  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError):
        return None


def check(request: VmRequest, host: Host) -> None:
    """Raise `LabError` for what can't be made as asked: `nic-unsupported`, `create-failed`."""
    why = _against_nic(request)
    if why:
        raise LabError(
            f"Host {host.name} can't give {request.name} a {request.shape.nic_model} adapter as asked.",
            kind="nic-unsupported",
            why=why,
            todo="Take this combination out of the campaign, or give the image another generation.",
            host=host.name,
        )
    if request.image.kind not in (ImageKind.DISK, ImageKind.ISO):
        raise LabError(
            f"Image {request.image.name} can't be booted on Hyper-V.",
            kind="create-failed",
            why=f"It is of kind {request.image.kind}; Hyper-V boots images of kind disk and iso.",
            todo=f"Give images.{request.image.name} a `disk` (VHDX) or an `iso` in the lab file.",
            host=host.name,
        )


def document(request: VmRequest, host: Host) -> Mapping[str, Json]:
    """What `create-vm.ps1` is given. Memory in bytes; addresses of adapters without separators, as Hyper-V writes them."""
    image, shape, network = request.image, request.shape, request.network
    folder = storage.folder_of(host, request.uuid)
    disk: dict[str, Json] | None = None
    if image.kind is ImageKind.DISK:
        disk = {
            "parent": image.disk,
            "path": storage.disk_in(folder, image.disk),
            "differencing": image.clone is Cloning.LINKED,
        }
    return {
        "name": request.name,
        "uuid": request.uuid,
        "notes": notes_text(request),
        "folder": folder,
        "generation": image.generation,
        "vcpus": shape.vcpus,
        "memory": shape.memory,
        "disk": disk,
        "iso": image.iso if image.kind is ImageKind.ISO else "",
        "secureBoot": "windows" if image.system is GuestSystem.WINDOWS else "linux",
        "adapter": shape.nic_model,
        "switch": network.bridge,
        "vlan": network.vlan,
        "mac": plain_mac(request.mac),
        "device": request.passthrough if shape.nic_model == "vt-d" else "",
    }


def address_document(request: VmRequest, vm_id: str) -> Mapping[str, Json] | None:
    """What `set-guest-address.ps1` is given; None when the VM gets its address by itself."""
    if request.address is None or request.image.customisation is not Customisation.GUEST_OS:
        return None
    return {
        "vmId": vm_id,
        "mac": plain_mac(request.mac),
        "address": str(request.address.ip),
        "subnet": str(request.address.network.netmask),
    }


def plain_mac(mac: str) -> str:
    """A MAC address as Hyper-V writes it: `52540012AB34`."""
    return mac.replace(":", "").replace("-", "").upper()


def common_mac(mac: str) -> str:
    """A MAC address of Hyper-V as everybody else writes it: `52:54:00:12:ab:34`."""
    plain = plain_mac(mac).lower()
    return ":".join(plain[at : at + 2] for at in range(0, len(plain), 2))


def _against_nic(request: VmRequest) -> str:
    shape = request.shape
    if shape.nic_model not in MODELS:
        return f"The models on Hyper-V are {', '.join(MODELS)}."
    if shape.nic_model == "legacy" and request.image.generation != 1:
        return (
            f"Only VMs of generation 1 have an emulated adapter; image {request.image.name} is of generation "
            f"{request.image.generation}."
        )
    told = request.address is not None and request.image.customisation is Customisation.GUEST_OS
    if shape.nic_model in ("legacy", "vt-d") and told:
        return "Hyper-V tells a guest the static address of synthetic adapters only: this one needs DHCP."
    if shape.nic_model == "vt-d" and not request.passthrough:
        return "No device of the host is named to be assigned."
    if shape.queues > 1:
        return (
            f"How many queues an adapter has is for Hyper-V and the guest to agree on; {shape.queues} were asked for."
        )
    if shape.vhost is not None:
        return "vhost is a back end of KVM."
    return ""
