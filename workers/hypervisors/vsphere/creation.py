"""How a VM comes about: place, clone or create, adapter, customisation, power; and nothing is left of one that fails.

The name of a VM is taken once in a folder, so a creation whose reply was lost may be asked for once more, when neither the
VM nor a task that makes it is there: the vCenter refuses a second VM of the name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Customisation, GuestSystem, ImageKind, Lab
from labctl.secrets import resolve
from workers.guard import Deadline, Guard
from workers.hypervisors.base import NAME_PREFIX, Vm, VmRequest
from workers.hypervisors.vsphere import definition, nic, storage, tasks
from workers.hypervisors.vsphere import vm as vms
from workers.hypervisors.vsphere.connection import LostReply
from workers.hypervisors.vsphere.drs import Pins
from workers.hypervisors.vsphere.faults import lab_error
from workers.hypervisors.vsphere.inventory import Item, plain, properties, property_of, related
from workers.hypervisors.vsphere.places import Places, VmPlace
from workers.hypervisors.vsphere.turns import turn

ALL_ADAPTERS = 200
"""On a network and a host of more VMs than that, only those with names like ours are asked for their MAC addresses."""

_CLONE, _CREATE, _POWER_ON = "VirtualMachine.clone", "Folder.createVm", "VirtualMachine.powerOn"


@dataclass(frozen=True, kw_only=True)
class Creation:
    """One VM, from its request until it runs. Some thirty calls, however large the inventory, and the looks at its tasks."""

    lab: Lab
    places: Places
    host: str
    request: VmRequest
    guard: Guard
    deadline: Deadline
    pins: Pins
    templates: MutableMapping[str, Any]
    """What names of templates have led to."""

    def run(self) -> None:
        """Create and start the VM. Errors as `VmDriver.create` says; nothing of it is left on failure."""
        nic.check_model(self.host, self.request)
        place = self.places.vm_place(self.host)
        self._check_states(place)
        network = self.places.network(self.host, self.request.network)
        self._refuse_taken(place, network)
        try:
            self._make_and_start(place, network)
        except vmodl.MethodFault as fault:
            # Told first: what it is about may have no name any more once it is removed.
            failed = self._failed(fault)
            self._remove_half_made(place)
            raise failed from fault
        except (LabError, AttemptCancelled):
            self._remove_half_made(place)
            raise

    def _make_and_start(self, place: VmPlace, network: Item) -> None:
        attached = nic.backing(place.at, network, self.request)
        ref = self._made(place)
        devices = property_of(place.at.session, ref, "config.hardware.device")
        change = definition.adapter_spec(self.request, attached, devices or ())
        self._step(place, ref, lambda: ref.ReconfigVM_Task(spec=change), "VirtualMachine.reconfigure")
        wanted = definition.customisation(self.request, password=self._password())
        if wanted is not None:
            self._step(place, ref, lambda: ref.CustomizeVM_Task(spec=wanted), "VirtualMachine.customize")
        self.pins.pin(place.at, ref)  # before DRS could place it when it is started
        self._step(place, ref, lambda: ref.PowerOnVM_Task(host=place.at.host), _POWER_ON)
        self._verify(place, ref)

    def _made(self, place: VmPlace) -> vim.VirtualMachine:
        """The VM, powered off, with its mark."""
        request, session = self.request, place.at.session
        if request.image.kind is ImageKind.ISO:
            nic.check_guest(place.at, request, guest_id=request.image.guest_id, version="")
            spec = definition.iso_spec(request, datastore=place.datastore_name)

            def create() -> vim.Task:
                return place.folder.CreateVM_Task(config=spec, pool=place.pool, host=place.at.host)

            return self._once(place, create, entity=place.folder, operation=_CREATE)
        template = storage.find_template(place.at, request.image, known=self.templates)
        nic.check_guest(place.at, request, guest_id=template.guest_id, version=template.version)
        spec = storage.clone_spec(place, template, request.image, definition.config_spec(request))

        def clone() -> vim.Task:
            return template.ref.CloneVM_Task(folder=place.folder, name=request.name, spec=spec)

        with turn(
            session,
            _CLONE,
            limit=session.vcenter.clones_at_once,
            names=self._template_names(template.name),
            deadline=self.deadline,
            guard=self.guard,
        ):
            return self._once(place, clone, entity=template.ref, operation=_CLONE)

    def _once(
        self,
        place: VmPlace,
        call: Callable[[], vim.Task],
        *,
        entity: Any,  # noqa: ANN401
        operation: str,
    ) -> vim.VirtualMachine:
        """Make the VM by a task of which it is the result, once, whatever becomes of replies."""
        session = place.at.session
        first = session.now() - tasks.LOOK_BACK_SECONDS
        for last in (False, True):
            self.guard.confirm()
            try:
                return tasks.run(
                    session,
                    call,
                    entity=entity,
                    operation=operation,
                    deadline=self.deadline,
                    guard=self.guard,
                    shared=True,
                ).result
            except vim.fault.DuplicateName as fault:
                made = self._appeared(place, entity, operation, since=first) if last else None
                if made is None:
                    raise self._name_taken(place, fault) from fault
                return made.ref
            except LabError as error:
                if not isinstance(error, LostReply) and error.kind != "task-gone":
                    raise
                made = self._appeared(place, entity, operation, since=first)
                if made is not None:
                    return made.ref
                if last or not isinstance(error, LostReply):
                    raise
        raise AssertionError("unreachable")

    def _appeared(self, place: VmPlace, entity: Any, operation: str, *, since: float) -> vms.Presence | None:  # noqa: ANN401
        """The VM that a call whose reply was lost has made, once no task that may be making it is in progress."""
        session, pace = place.at.session, tasks.Pace(self.guard)
        while True:
            begun = tasks.recent(session, operation=operation, entity=entity, since=since)
            busy = [task for task in begun if not tasks.look(task).over]
            made = self._by_name(place)
            if not busy or self.deadline.passed:
                return made
            pace.wait(self.deadline)

    def _by_name(self, place: VmPlace) -> vms.Presence | None:
        """The VM of this request in the folder, by its name and its mark."""
        session, request = place.at.session, self.request
        wanted = Vm(name=request.name, uuid=request.uuid, host=self.host, mac=request.mac, address=request.address)
        found = vms.find(session, wanted, folder=place.folder)
        return found if found is not None and found.mark == request.mark else None

    def _step(self, place: VmPlace, ref: vim.VirtualMachine, call: Callable[[], vim.Task], operation: str) -> None:
        """One more task on the VM that is being made."""
        self.guard.confirm()
        session = place.at.session
        tasks.run(session, call, entity=ref, operation=operation, deadline=self.deadline, guard=self.guard)

    def _verify(self, place: VmPlace, ref: vim.VirtualMachine) -> None:
        """See that the VM has its identity, runs on its host, and has exactly the adapter that was asked for: vSphere may
        change any of these when it starts a VM."""
        names = ("config.hardware.device", "config.instanceUuid", "runtime.host")
        rows = properties(place.at.session, (ref,), names)
        if not rows:
            raise LabError(f"The VM {self.request.name} was removed while it started.", kind="vm-gone", host=self.host)
        row = rows[0]
        wrong = nic.differences(self.request, row["config.hardware.device"])
        kind = "nic-mismatch"
        if not wrong and row["config.instanceUuid"] != self.request.uuid:
            wrong, kind = f"its instance UUID is {row['config.instanceUuid']}", "vm-mismatch"
        if not wrong and row["runtime.host"] != place.at.host:
            wrong, kind = "it runs on another host", "moved"
        if wrong:
            raise LabError(
                f"The VM {self.request.name} is not what was asked for: {wrong}.",
                kind=kind,
                why="The vCenter changed it when it was started; DRS does so with hosts.",
                todo="Look at the events of the VM in vCenter, and at the rules of its cluster.",
                host=self.host,
            )

    def _check_states(self, place: VmPlace) -> None:
        """Refuse a host that can't run VMs now, or a datastore that it can't write to. One call each."""
        session, at = place.at.session, place.at
        names = ("runtime.connectionState", "runtime.powerState", "runtime.inMaintenanceMode")
        rows = properties(session, (at.host,), names)
        state = str(rows[0]["runtime.connectionState"]) if rows else "gone"
        if state != "connected":
            raise _host_unusable(
                self.host, f"It is {state} in the inventory of its vCenter.", "Connect it again there."
            )
        if rows[0]["runtime.inMaintenanceMode"]:
            raise _host_unusable(self.host, "It is in maintenance mode.", "Let it leave maintenance mode.")
        store = properties(session, (place.datastore,), ("summary.accessible", "summary.maintenanceMode"))
        if (
            not store
            or not store[0]["summary.accessible"]
            or store[0]["summary.maintenanceMode"] not in (None, "normal")
        ):
            raise LabError(
                f"Datastore {place.datastore_name} of host {self.host} can't be used.",
                kind="create-failed",
                why="It is not accessible, or in maintenance mode.",
                todo="See to it in vCenter, or name another one for the host in the lab file.",
                host=self.host,
            )

    def _refuse_taken(self, place: VmPlace, network: Item) -> None:
        """Refuse a name that an object in the folder has, and a MAC address that a VM on the network has, or, because it may be
        on the same switch by another port group, one on the host; powered off or not. At most four calls."""
        session = place.at.session
        taken = session.content.searchIndex.FindChild(entity=place.folder, name=self.request.name)
        if taken is not None:
            raise self._name_taken(place, None)
        neighbours = [
            row
            for ref in (network.ref, place.at.host)
            for row in related(session, ref, "vm", vim.VirtualMachine, ("name",))
        ]
        named = {row.ref: plain(row["name"] or "") for row in neighbours}
        if len(named) > ALL_ADAPTERS:
            named = {ref: name for ref, name in named.items() if name.startswith(NAME_PREFIX)}
        for row in properties(session, tuple(named), ("config.hardware.device",)):
            macs = [
                getattr(one, "macAddress", None) for one in definition.adapters(row["config.hardware.device"] or ())
            ]
            if self.request.mac.lower() in [mac.lower() for mac in macs if mac]:
                raise LabError(
                    f"{named[row.ref]} has the MAC address {self.request.mac} already, on network {network.path} or on host "
                    f"{self.host}. It was not touched.",
                    kind="mac-taken",
                    why="Two adapters with one address on one network get each other's packets.",
                    todo="Give that VM another address, or the lab another `guest_range`: addresses are made from it.",
                    host=self.host,
                )

    def _name_taken(self, place: VmPlace, fault: vmodl.MethodFault | None) -> LabError:
        session = place.at.session
        ref = session.content.searchIndex.FindChild(entity=place.folder, name=self.request.name)
        extra = property_of(session, ref, "config.extraConfig") if isinstance(ref, vim.VirtualMachine) else None
        mark = definition.read_mark(extra)
        owner = (
            f"it carries the mark of lab {mark.owner.lab}, store {mark.owner.store}, campaign {mark.owner.campaign}"
            if mark is not None
            else "it carries no mark of labctl"
        )
        return LabError(
            f"Folder {place.folder_path} has a VM named {self.request.name} already; it was not touched.",
            kind="name-taken",
            why=f"Somebody else made it: {owner}." + (f" vCenter says {type(fault).__name__}." if fault else ""),
            todo="Rename or remove that VM; one that an earlier campaign left goes when that campaign is resumed.",
            host=self.host,
        )

    def _remove_half_made(self, place: VmPlace) -> None:
        """Remove what a failed creation left. Best effort: the error that is on its way says more than a second one, and
        what is left carries the mark, by which cleaning finds it."""
        with contextlib.suppress(LabError, vmodl.MethodFault):
            found = self._by_name(place)
            if found is not None:
                vms.end(place.at.session, found, place.at)

    def _failed(self, fault: vmodl.MethodFault) -> LabError:
        request = self.request
        return lab_error(
            self.host,
            f"The VM {request.name} could not be created on host {self.host}.",
            fault,
            kind="create-failed",
            todo=f"Check image {request.image.name} and the task's details in vCenter.",
        )

    def _template_names(self, own: str) -> frozenset[str]:
        """The names of all templates of the lab, by which clones of labctl's are told in other processes."""
        paths = [image.template for image in self.lab.images.values() if image.template]
        return frozenset({own, *(path.rsplit("/", 1)[-1] for path in paths)})

    def _password(self) -> str:
        image = self.request.image
        wanted = image.customisation is Customisation.GUEST_OS and image.system is GuestSystem.WINDOWS
        return resolve(image.login.password).text.rstrip("\r\n") if wanted and image.login is not None else ""


def _host_unusable(host: str, why: str, todo: str) -> LabError:
    return LabError(f"Host {host} can't run VMs now.", kind="host-unreachable", why=why, todo=todo, host=host)
