"""What labctl needs in a vCenter and doesn't have: privileges, on the objects where they are missing, and the objects.

Privileges are named as roles list them (`VirtualMachine.Inventory.Create`). Source: vSphere Security, "Required Privileges
for Common Tasks"; each method of the vSphere Web Services API says which it requires.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pyVmomi import vmodl

from labctl.errors import LabError
from labctl.model.lab import ChannelKind, Customisation, Image, ImageKind, Lab
from workers.hypervisors.base import Lack
from workers.hypervisors.vsphere import storage
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import Item, property_of
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
FOLDER_PASSTHROUGH = ("VirtualMachine.Config.Resource",)
TEMPLATE = ("VirtualMachine.Provisioning.DeployTemplate",)
TEMPLATE_VM = ("VirtualMachine.Provisioning.Clone",)
POOL = ("Resource.AssignVMToPool",)
DATASTORE = ("Datastore.AllocateSpace", "Datastore.Browse", "Datastore.FileManagement")
NETWORK = ("Network.Assign",)
CLUSTER_PIN = ("Host.Inventory.EditCluster",)

_NO_ANSWER = ("host-unreachable", "tls-untrusted", "vcenter-login", "secret-unavailable")
"""Kinds of errors after which nothing more can be asked."""


def lacks(lab: Lab, places: Places, host: str) -> tuple[Lack, ...]:
    """All that is missing for work on a host, at once. Starts and changes nothing.

    Raises `LabError` only when the vCenter can't be talked to, or its user not logged in.
    """
    places.refresh(host)
    place, row = places.look(host, ("runtime.connectionState", "runtime.inMaintenanceMode"))
    state = _state(host, str(row["runtime.connectionState"]), maintenance=bool(row["runtime.inMaintenanceMode"]))
    survey = _Survey(lab, places, place)
    survey.look_at_places()
    survey.look_at_images()
    return (*state, *survey.found, *_missing(place, survey.needed))


class _Survey:
    """Looks for all that VMs on a host need. `found` is what isn't there; `needed` are the objects that are, by what people
    call them, with the privileges that labctl needs on each."""

    def __init__(self, lab: Lab, places: Places, place: HostPlace) -> None:
        self._lab = lab
        self._places = places
        self._place = place
        self._images = [image for image in lab.images.values() if image.template or image.iso]
        self.found: list[Lack] = []
        self.needed: dict[Any, tuple[str, set[str]]] = {}

    def look_at_places(self) -> None:
        """Where VMs go, and what they are attached to."""
        places, host = self._places, self._place.name
        self._part("folder", lambda: places.folder(host), _on_folder(self._lab, host, self._images))
        self._part("resource pool", lambda: places.pool(host), POOL)
        self._part("datastore", lambda: places.datastore(host), DATASTORE)
        for network in self._lab.networks.values():
            self._part("network", partial(places.network, host, network), NETWORK)
        if self._place.session.vcenter.pin:
            self._need(self._place.compute, f"the cluster of host {host}", CLUSTER_PIN)

    def look_at_images(self) -> None:
        """What VMs come from. One ESXi host makes no copies of templates, and is the only thing that isn't a vCenter."""
        cloned = [image for image in self._images if image.template]
        if cloned and self._place.session.content.about.apiType == "HostAgent":
            self.found.append(
                Lack(
                    what=f"{self._place.session.vcenter.name} is one ESXi host, which can't clone templates.",
                    todo="Name the vCenter that the host belongs to, or use images of kind iso.",
                )
            )
            return
        for image in cloned:
            template = self._try(partial(storage.find_template, self._place, image))
            if template is not None:
                is_template = property_of(self._place.session, template.ref, "config.template")
                self._need(template.ref, f"template {image.template}", TEMPLATE if is_template else TEMPLATE_VM)
        for image in self._images:
            if image.iso:
                self._try(partial(storage.require_iso, self._place, image))

    def _part(self, what: str, read: Callable[[], Item], privileges: tuple[str, ...]) -> None:
        item = self._try(read)
        if item is not None:
            self._need(item.ref, f"{what} {item.path}", privileges)

    def _try(self, read: Callable[[], T]) -> T | None:
        """What is there; None, and a lack more, when it isn't."""
        try:
            return read()
        except LabError as error:
            if error.kind in _NO_ANSWER:
                raise
            self.found.append(Lack(what=f"{error.what} {error.why}".strip(), todo=error.todo))
            return None

    def _need(self, ref: Any, name: str, privileges: tuple[str, ...]) -> None:  # noqa: ANN401
        self.needed.setdefault(ref, (name, set()))[1].update(privileges)


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
