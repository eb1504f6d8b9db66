"""What labctl needs in a vCenter and doesn't have: privileges, on the objects where they are missing, and the objects.

Privileges are named as roles list them (`VirtualMachine.Inventory.Create`). Source: vSphere Security, "Required Privileges
for Common Tasks"; each method of the vSphere Web Services API says which it requires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyVmomi import vmodl

from labctl.errors import LabError
from labctl.model.lab import ChannelKind, Customisation, Image, ImageKind, Lab
from workers.hypervisors.base import Lack
from workers.hypervisors.vsphere import storage
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import property_of
from workers.hypervisors.vsphere.places import HostPlace, Places

T = TypeVar("T")

FOLDER = (
    "VirtualMachine.Inventory.Delete",
    "VirtualMachine.Config.AddRemoveDevice",
    "VirtualMachine.Config.EditDevice",
    "VirtualMachine.Config.CPUCount",
    "VirtualMachine.Config.Memory",
    "VirtualMachine.Config.Settings",
    "VirtualMachine.Config.Annotation",
    "VirtualMachine.Config.AdvancedConfig",
    "VirtualMachine.Interact.PowerOn",
    "VirtualMachine.Interact.PowerOff",
    "VirtualMachine.Interact.Suspend",
    "VirtualMachine.Interact.AnswerQuestion",
)
"""On the folder for VMs, for each VM in it."""

FOLDER_TEMPLATE = ("VirtualMachine.Inventory.CreateFromExisting",)
FOLDER_ISO = ("VirtualMachine.Inventory.Create", "VirtualMachine.Interact.SetCDMedia")
FOLDER_TOOLS = (
    "VirtualMachine.GuestOperations.Execute",
    "VirtualMachine.GuestOperations.Modify",
    "VirtualMachine.GuestOperations.Query",
)
FOLDER_CUSTOMISED = ("VirtualMachine.Provisioning.Customize",)
FOLDER_MIGRATING = ("Resource.HotMigrate",)
FOLDER_PASSTHROUGH = ("VirtualMachine.Config.Resource", "VirtualMachine.Config.HostUSBDevice")
TEMPLATE = ("VirtualMachine.Provisioning.DeployTemplate",)
TEMPLATE_VM = ("VirtualMachine.Provisioning.Clone",)
POOL = ("Resource.AssignVMToPool",)
DATASTORE = ("Datastore.AllocateSpace", "Datastore.Browse", "Datastore.FileManagement")
NETWORK = ("Network.Assign",)
CLUSTER_PIN = ("Host.Inventory.EditCluster",)


def lacks(lab: Lab, places: Places, host: str) -> tuple[Lack, ...]:
    """All that is missing for work on a host, at once. Starts and changes nothing.

    Raises `LabError` only when the vCenter can't be talked to, or its user not logged in.
    """
    found: list[Lack] = []

    def part(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except LabError as error:
            if error.kind in ("tls-untrusted", "vcenter-login", "secret-unavailable"):
                raise
            found.append(Lack(what=f"{error.what} {error.why}".strip(), todo=error.todo))
            return None

    places.refresh(host)
    place, row = places.look(host, ("runtime.connectionState", "runtime.inMaintenanceMode"))
    found += _state(host, str(row["runtime.connectionState"]), maintenance=bool(row["runtime.inMaintenanceMode"]))
    needed: dict[Any, tuple[str, set[str]]] = {}

    def need(ref: Any, name: str, *privileges: str) -> None:  # noqa: ANN401
        needed.setdefault(ref, (name, set()))[1].update(privileges)

    images = [image for image in lab.images.values() if image.template or image.iso]
    folder = part(lambda: places.folder(host))
    if folder is not None:
        need(folder.ref, f"folder {folder.path}", *_on_folder(lab, host, images))
    pool = part(lambda: places.pool(host))
    if pool is not None:
        need(pool.ref, f"resource pool {pool.path}", *POOL)
    datastore = part(lambda: places.datastore(host))
    if datastore is not None:
        need(datastore.ref, f"datastore {datastore.name}", *DATASTORE)
    for network in lab.networks.values():
        group = part(lambda network=network: places.network(host, network))  # type: ignore[misc]
        if group is not None:
            need(group.ref, f"network {group.path}", *NETWORK)
    for image in images:
        if image.template:
            template = part(lambda image=image: storage.find_template(place, image))  # type: ignore[misc]
            if template is not None:
                is_template = property_of(place.session, template.ref, "config.template")
                need(template.ref, f"template {image.template}", *(TEMPLATE if is_template else TEMPLATE_VM))
    if place.session.vcenter.pin:
        need(place.compute, f"the cluster of host {host}", *CLUSTER_PIN)
    return (*found, *_missing(place, needed))


def _state(host: str, connection: str, *, maintenance: bool) -> list[Lack]:
    if connection != "connected":
        return [
            Lack(what=f"Host {host} is {connection} in the inventory of its vCenter.", todo="Connect it again there.")
        ]
    if maintenance:
        return [Lack(what=f"Host {host} is in maintenance mode.", todo="Let it leave maintenance mode in vCenter.")]
    return []


def _on_folder(lab: Lab, host: str, images: list[Image]) -> tuple[str, ...]:
    """What is needed of the VMs in the folder, by what the lab has them do."""
    parts = (
        (FOLDER, True),
        (FOLDER_TEMPLATE, any(image.kind is ImageKind.TEMPLATE for image in images)),
        (FOLDER_ISO, any(image.kind is ImageKind.ISO for image in images)),
        (FOLDER_TOOLS, any(image.channel is ChannelKind.VMTOOLS for image in images)),
        (FOLDER_CUSTOMISED, any(image.customisation is Customisation.GUEST_OS for image in images)),
        (FOLDER_MIGRATING, any(host in pair for pair in lab.migration_pairs)),
        (FOLDER_PASSTHROUGH, bool(lab.hosts[host].devices or lab.hosts[host].virtual_functions)),
    )
    return tuple(privilege for privileges, wanted in parts if wanted for privilege in privileges)


def _missing(place: HostPlace, needed: dict[Any, tuple[str, set[str]]]) -> list[Lack]:
    """The privileges that the session doesn't have, by one call for all objects. A host that stands alone has no such
    question to answer: then nothing is known to be missing."""
    if not needed:
        return []
    session = place.session
    every = sorted({privilege for _, privileges in needed.values() for privilege in privileges})
    try:
        answers = _ask(session, list(needed), every)
    except (vmodl.fault.NotSupported, vmodl.fault.MethodNotFound):
        return []
    lacking = []
    for answer in answers:
        name, privileges = needed[answer.entity]
        granted = {one.privId for one in answer.privAvailability if one.isGranted}
        missing = sorted(privileges - granted)
        if missing:
            lacking.append(
                Lack(
                    what=f"{session.vcenter.login.user} lacks {', '.join(missing)} on {name}.",
                    todo="Give the user a role with that there, with propagation to what is in it.",
                )
            )
    return lacking


def _ask(session: Session, entities: list[Any], privileges: list[str]) -> list[Any]:
    manager = session.content.authorizationManager
    key = session.content.sessionManager.currentSession.key
    return list(manager.HasPrivilegeOnEntities(entity=entities, sessionId=key, privId=privileges))
