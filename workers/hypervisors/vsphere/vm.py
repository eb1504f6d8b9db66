"""VMs that are there: find, end, pause, list those of ours, and read back what was really made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.result import Fact
from workers.guard import Deadline
from workers.hypervisors.base import NAME_PREFIX, OwnedVm, OwnershipMark, Vm
from workers.hypervisors.vsphere import definition, storage, tasks
from workers.hypervisors.vsphere.connection import LostReply, Session
from workers.hypervisors.vsphere.faults import lab_error
from workers.hypervisors.vsphere.inventory import Row, plain, properties, property_of, related
from workers.hypervisors.vsphere.places import HostPlace

DESTROY_SECONDS = 120.0
"""Deadline for ending a VM and removing its files."""

POWER_SECONDS = 120.0
"""Deadline for suspending a VM, which writes its memory to the datastore, and for having it go on."""

QUESTION_SECONDS = 10.0
"""How long a power-off may take before labctl looks whether the VM waits for an answer."""

_PRESENCE = (
    "name",
    "parent",
    "config.instanceUuid",
    "config.extraConfig",
    "config.files.vmPathName",
    "runtime.host",
    "runtime.powerState",
    "runtime.connectionState",
    "runtime.question",
)
_LISTED = ("name", "parent", "config.instanceUuid", "config.annotation", "runtime.powerState")
_READ_BACK = (
    "name",
    "config.guestId",
    "config.version",
    "config.firmware",
    "config.hardware.device",
    "config.hardware.numCPU",
    "config.hardware.numCoresPerSocket",
    "config.hardware.memoryMB",
    "config.cpuAllocation",
    "config.memoryAllocation",
    "config.latencySensitivity",
    "config.files.vmPathName",
    "guest.toolsVersion",
    "guest.toolsRunningStatus",
    "guest.toolsVersionStatus2",
    "runtime.powerState",
)


@dataclass(frozen=True, kw_only=True)
class Presence:
    """A VM as found. `host` is None for one that is registered on none."""

    ref: vim.VirtualMachine
    name: str
    host: vim.HostSystem | None
    power: str
    """`poweredOn`, `poweredOff`, `suspended`."""
    mark: OwnershipMark | None
    """None for a VM that isn't the one that the mark was made for, too."""
    files: str
    """The path of its configuration file: `[datastore] folder/name.vmx`."""
    question: Any

    @property
    def active(self) -> bool:
        """Whether it runs; one that was suspended on purpose counts as running."""
        return self.power in ("poweredOn", "suspended")


def find(session: Session, vm: Vm, *, folder: vim.Folder | None = None) -> Presence | None:
    """The VM, wherever it is in the vCenter: by its instance UUID, else by name in a folder, if its mark says that it is the
    one. Two calls when it is there, two or three when not.

    Raises `LabError` (`host-unreachable`) when it is there but nothing of it can be read, because its host is away.
    """
    index = session.content.searchIndex
    ref = index.FindByUuid(datacenter=None, uuid=vm.uuid, vmSearch=True, instanceUuid=True)
    if ref is None and folder is not None:
        ref = index.FindChild(entity=folder, name=vm.name)
    if ref is None:
        return None
    rows = properties(session, (ref,), _PRESENCE)
    if not rows:
        return None
    row = rows[0]
    if row["config.instanceUuid"] is None:
        raise LabError(
            f"Nothing of the VM {vm.name} can be read from its vCenter.",
            kind="host-unreachable",
            why=f"It is {row['runtime.connectionState'] or 'closed to the user of labctl'}: its host or its datastore is away, "
            "or a right to read it.",
            todo="See to the host in vCenter, and to the role of the user on the folder of the VM.",
            host=vm.host,
        )
    found = presence(row, folder=folder)
    is_it = row["config.instanceUuid"] == vm.uuid or (found.mark is not None and _made_for(row).uuid == vm.uuid)
    return found if is_it else None


def presence(row: Row, *, folder: vim.Folder | None) -> Presence:
    """A VM from the properties `_PRESENCE`."""
    return Presence(
        ref=row.ref,
        name=plain(row["name"]),
        host=row["runtime.host"],
        power=str(row["runtime.powerState"]),
        mark=_own_mark(row, folder),
        files=str(row["config.files.vmPathName"] or ""),
        question=row["runtime.question"],
    )


def end(session: Session, found: Presence, at: HostPlace) -> None:
    """End a VM, remove it with its files, and see that nothing of it is left. Whether it may be ended is the caller's to know.

    Raises `LabError` of kind `vsphere`.
    """
    deadline = Deadline.after(DESTROY_SECONDS)
    what = f"The VM {found.name} on host {at.name} could not be ended."
    asked = ""
    try:
        asked = _answer(found)
        if found.active:
            _settled(lambda: _power_off(session, found, deadline))
        _settled(
            lambda: tasks.run(
                session,
                found.ref.Destroy_Task,
                entity=found.ref,
                operation="VirtualMachine.destroy",
                deadline=deadline,
            )
        )
    except vmodl.fault.ManagedObjectNotFound:
        pass
    except vmodl.MethodFault as fault:
        raise lab_error(at.name, what + asked, fault, kind="vsphere", todo="Remove it by hand in vCenter.") from fault
    if properties(session, (found.ref,), ("name",)):
        raise LabError(
            f"The VM {found.name} is still in the inventory after it was destroyed.",
            kind="vsphere",
            todo="Remove it by hand in vCenter.",
            host=at.name,
        )
    storage.remove_folder(session, at, found.files, name=found.name, deadline=deadline)


def suspend(session: Session, found: Presence) -> None:
    """Stop a VM, with its memory in a file. No error when it is."""
    if found.power == "poweredOn":
        _switch(session, found, found.ref.SuspendVM_Task, operation="VirtualMachine.suspend")


def resume(session: Session, found: Presence) -> None:
    """Let a suspended VM go on, on the host that it is on. No error when it runs."""
    if found.power != "poweredOn":
        _switch(session, found, lambda: found.ref.PowerOnVM_Task(host=found.host), operation="VirtualMachine.powerOn")


def owned(at: HostPlace, folder: vim.Folder) -> tuple[OwnedVm, ...]:
    """All VMs on a host that carry a mark, in the order of their names. Two calls, however many VMs there are.

    The marks of those only are read that their name or annotation shows to be of labctl.
    """
    session = at.session
    rows = related(session, at.host, "vm", vim.VirtualMachine, _LISTED)
    seeming = {
        row.ref: row
        for row in rows
        if plain(row["name"] or "").startswith(NAME_PREFIX)
        or str(row["config.annotation"] or "").startswith(definition.ANNOTATION)
    }
    marked = properties(session, tuple(seeming), ("config.extraConfig",))
    found = []
    for one in marked:
        row = Row(one.ref, {**seeming[one.ref].values, **one.values})
        mark = _own_mark(row, folder)
        if mark is not None:
            found.append(
                OwnedVm(
                    name=plain(row["name"]),
                    uuid=_made_for(row).uuid,
                    host=at.name,
                    active=str(row["runtime.powerState"]) != "poweredOff",
                    mark=mark,
                )
            )
    return tuple(sorted(found, key=lambda vm: vm.name))


def read_back(session: Session, found: Presence, host: str) -> Mapping[str, Fact]:
    """What was really created, as the vCenter says. Sizes in bytes."""
    rows = properties(session, (found.ref,), _READ_BACK)
    if not rows:
        raise LabError(f"The VM {found.name} is gone.", kind="vm-gone", host=host)
    row = rows[0]
    devices = definition.adapters(row["config.hardware.device"] or ())
    facts: dict[str, Fact] = {
        "host": host,
        "machine": row["config.version"],
        "accelerator": "esxi",
        "vcpus": row["config.hardware.numCPU"],
        "cores_per_socket": row["config.hardware.numCoresPerSocket"],
        "memory_bytes": int(row["config.hardware.memoryMB"]) * 2**20,
        "guest.id": row["config.guestId"],
        "firmware": row["config.firmware"],
        "tools.version": row["guest.toolsVersion"],
        "tools.running": row["guest.toolsRunningStatus"],
        "tools.version_status": row["guest.toolsVersionStatus2"],
        "files": row["config.files.vmPathName"],
        "nic.count": len(devices),
    }
    for name in ("cpu", "memory"):
        allocation = row[f"config.{name}Allocation"]
        facts[f"{name}.reservation"] = allocation.reservation if allocation is not None else None
        facts[f"{name}.limit"] = allocation.limit if allocation is not None else None
    latency = row["config.latencySensitivity"]
    facts["latency_sensitivity"] = str(latency.level) if latency is not None else None
    if devices:
        facts |= definition.adapter_facts(devices[0])
        facts["nic.network"] = network_name(session, devices[0].backing)
    return facts


def network_name(session: Session, backing: Any) -> str | None:  # noqa: ANN401
    """The name of the port group that an adapter is attached to."""
    if isinstance(backing, vim.vm.device.VirtualEthernetCard.NetworkBackingInfo):
        return str(backing.deviceName)
    if isinstance(backing, vim.vm.device.VirtualEthernetCard.DistributedVirtualPortBackingInfo):
        group = session.object(vim.dvs.DistributedVirtualPortgroup, backing.port.portgroupKey)
        name = property_of(session, group, "name")
        return plain(name) if name else str(backing.port.portgroupKey)
    return None


def _own_mark(row: Row, folder: vim.Folder | None) -> OwnershipMark | None:
    """The mark of a VM, if it was made for this VM: it tells its instance UUID, or, in the folder of ours, its name. A copy
    that somebody makes of a VM of ours has its mark as well, but is theirs."""
    mark = definition.read_mark(row["config.extraConfig"])
    if mark is None:
        return None
    by_name = folder is not None and row["parent"] == folder and plain(row["name"]) == mark.name
    return mark.owner if mark.uuid == row["config.instanceUuid"] or by_name else None


def _made_for(row: Row) -> definition.Mark:
    mark = definition.read_mark(row["config.extraConfig"])
    assert mark is not None
    return mark


def _settled(call: Callable[[], object]) -> None:
    """Make a call that does no more when it is made twice, such as a power-off; once more when its reply is lost."""
    try:
        call()
    except LostReply:
        call()


def _power_off(session: Session, found: Presence, deadline: Deadline) -> None:
    try:
        task = tasks.begin(session, found.ref.PowerOffVM_Task, entity=found.ref, operation="VirtualMachine.powerOff")
        state = tasks.watch(session, task, deadline=Deadline.after(min(QUESTION_SECONDS, deadline.left)))
        if not state.over:
            _answer_now(session, found)
        tasks.require(session, task, operation="VirtualMachine.powerOff", deadline=deadline)
    except vim.fault.InvalidPowerState:
        return


def _answer_now(session: Session, found: Presence) -> None:
    question = property_of(session, found.ref, "runtime.question")
    if question is not None:
        _answer_question(found.ref, question)


def _answer(found: Presence) -> str:
    """Answer the question that a VM waits with, which keeps everything else from being done. What it asked, for an error."""
    if found.question is None:
        return ""
    _answer_question(found.ref, found.question)
    return f" It asked: {str(found.question.text).strip()}"


def _answer_question(ref: vim.VirtualMachine, question: Any) -> None:  # noqa: ANN401
    """Give a question its default answer, or the first: the VM is to end, whatever it is about."""
    choices = question.choice.choiceInfo
    choice = choices[question.choice.defaultIndex or 0]
    # Somebody may have answered meanwhile.
    with contextlib.suppress(vim.fault.ConcurrentAccess, vmodl.fault.InvalidArgument):
        ref.AnswerVM(questionId=question.id, answerChoice=choice.key)


def _switch(session: Session, found: Presence, call: Callable[[], vim.Task], *, operation: str) -> None:
    deadline = Deadline.after(POWER_SECONDS)
    try:
        _settled(lambda: tasks.run(session, call, entity=found.ref, operation=operation, deadline=deadline))
    except vim.fault.InvalidPowerState:
        return  # it is what it was to become: a lost call had done it
    except vmodl.MethodFault as fault:
        what = f"The VM {found.name} could not be suspended or go on."
        raise lab_error("", what, fault, kind="vsphere") from fault
