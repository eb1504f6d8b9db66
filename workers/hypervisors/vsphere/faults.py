"""What vCenter refuses, in words that say what to do. The kinds are those of `VmDriver`."""

from __future__ import annotations

from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from workers.hypervisors.vsphere.connection import said

_KNOWN: tuple[tuple[tuple[type[Any], ...], str, str], ...] = (
    (
        (vim.fault.NoDiskSpace, vim.fault.InsufficientStorageSpace, vim.fault.InsufficientDisks),
        "create-failed",
        "The datastore is full: make room on it, or name another one for the host in the lab file.",
    ),
    (
        (vim.fault.DeviceNotSupported, vim.fault.DeviceUnsupportedForVmVersion, vim.fault.UnsupportedGuest),
        "nic-unsupported",
        "Take this NIC model out of the campaign, or use a template with a guest type and hardware version that has it.",
    ),
    (
        (vmodl.fault.HostCommunication, vim.fault.HostConnectFault, vim.fault.InvalidHostState),
        "host-unreachable",
        "See to the host in vCenter: it must be connected and not in maintenance mode.",
    ),
    (
        (vim.fault.InsufficientResourcesFault,),
        "create-failed",
        "The host or its resource pool has no more CPU or memory to give: stop other VMs, or ask for less.",
    ),
    (
        (vim.fault.CustomizationFault,),
        "create-failed",
        "Guest customisation needs VMware Tools in the template, and for Windows before Vista sysprep on the vCenter.",
    ),
    (
        (vim.fault.FileNotFound, vim.fault.InvalidDatastore),
        "create-failed",
        "Check the path of the image, and that its datastore is mounted on the host.",
    ),
)
"""Faults by their types, the kind of error that each is whatever the caller says, and what to do."""


def lab_error(host: str, what: str, fault: BaseException, *, kind: str, todo: str = "") -> LabError:
    """A fault as an error that says which host, what happened and what to do. Some faults know better than the caller."""
    for faults, own_kind, own_todo in _KNOWN:
        if isinstance(fault, faults):
            kind, todo = own_kind, own_todo
            break
    why = said(fault)
    if isinstance(fault, vim.fault.NoPermission):
        what_for = f"the privilege {fault.privilegeId}" if fault.privilegeId else "a privilege"
        why = f"The user of labctl lacks {what_for} on {_object(fault.object)}."
        todo = "Give its role that privilege there. `labctl lab check` lists all that are missing."
    messages = [str(one.message) for one in getattr(fault, "faultMessage", None) or () if one.message]
    if messages:
        why += f" ({'; '.join(messages)})"
    return LabError(what, kind=kind, why=why, todo=todo or "See the task's details in vCenter.", host=host)


def _object(ref: Any) -> str:  # noqa: ANN401
    """An object that perhaps may not be read, by what can be told of it."""
    if ref is None:
        return "an object"
    kind = type(ref).__name__.removeprefix("vim.")
    try:
        return f"{kind} {ref.name}"
    except (vmodl.MethodFault, LabError, AttributeError):
        return f"{kind} {ref._GetMoId()}"
