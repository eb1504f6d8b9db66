"""Whether VMs can be migrated from one host to another: asked before anything is made, of the lab file and of vCenter.

What only a VM can show (its devices, the processor features that it was given) vCenter is asked for when there is one:
`check_vm`.
Source: vSphere Web Services API, HostVirtualNicManager, HostCapability, EVCMode, VirtualMachineProvisioningChecker; vCenter
Server and Host Management, "Host Configuration for vSphere vMotion".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.lab import Lab
from workers.guard import Deadline, Guard
from workers.hypervisors.vsphere import tasks
from workers.hypervisors.vsphere.connection import Session, said
from workers.hypervisors.vsphere.inventory import Row
from workers.hypervisors.vsphere.places import HostPlace, Places

CHECK_SECONDS = 30.0
"""How long vCenter gets to say whether a VM can be relocated."""

_HOST = (
    "runtime.connectionState",
    "runtime.inMaintenanceMode",
    "runtime.powerState",
    "capability.vmotionSupported",
    "capability.vmotionWithStorageVMotionSupported",
    "config.virtualNicManagerInfo.netConfig",
    "config.network.vnic",
    "hardware.cpuPkg",
    "summary.currentEVCModeKey",
    "summary.maxEVCModeKey",
    "datastore",
)


def check(places: Places, lab: Lab, source: str, destination: str) -> str:
    """Why a VM can't be migrated between two hosts, in a sentence; empty when nothing speaks against it.

    Some calls, none of which changes anything. Raises `LabError` when one of the two can't be asked.
    """
    reason = check_inventory(lab, source, destination)
    if reason:
        return reason
    here, here_row = places.look(source, _HOST)
    there, there_row = places.look(destination, _HOST)
    for place, row in ((here, here_row), (there, there_row)):
        reason = _host_objection(place.name, row)
        if reason:
            return reason
    return (
        _storage_objection(places, here, there, there_row)
        or _network_objection(places, lab, here, there)
        or processor_objection(evc_modes(here.session), source, here_row.values, destination, there_row.values)
    )


def check_inventory(lab: Lab, source: str, destination: str) -> str:
    """The part of `check` that the lab file answers."""
    if source == destination:
        return f"Source and destination are the same host, {source}."
    if (source, destination) not in lab.migration_pairs:
        return f"The lab has no migration path from host {source} to host {destination}."
    here, there = lab.hosts[source].vcenter, lab.hosts[destination].vcenter
    if here != there:
        return (
            f"Host {source} is managed by vCenter {here} and host {destination} by {there}: labctl migrates within one."
        )
    return ""


def check_vm(
    session: Session, machine: vim.VirtualMachine, spec: vim.vm.RelocateSpec, *, guard: Guard | None = None
) -> str:
    """What vCenter has against the relocation of a VM, in sentences; empty when nothing, or when it can't tell.

    A task of vCenter that reads only. Raises `LabError` (`host-unreachable`).
    """
    checker = session.content.vmProvisioningChecker
    if checker is None:
        return ""
    try:
        task = checker.CheckRelocate(vm=machine, spec=spec)
        state = tasks.watch(session, task, deadline=Deadline.after(CHECK_SECONDS), guard=guard)
    except vmodl.MethodFault:
        return ""  # it has no such check, or none for us; the relocation itself will tell
    results = state.result if state.done and isinstance(state.result, list) else []
    return " ".join(dict.fromkeys(f"{said(error)}." for result in results for error in result.error or []))


def vmotion_adapters(row: Row) -> tuple[str, ...]:
    """The VMkernel adapters (`vmk1`) of a host on which vMotion is enabled, by its settings or by their TCP/IP stack."""
    chosen: list[str] = []
    for config in row["config.virtualNicManagerInfo.netConfig"] or []:
        if config.nicType == "vmotion":
            keys = set(config.selectedVnic or [])
            chosen += [nic.device for nic in config.candidateVnic or [] if nic.key in keys]
    for nic in row["config.network.vnic"] or []:
        if nic.spec is not None and nic.spec.netStackInstanceKey == "vmotion":
            chosen.append(nic.device)
    return tuple(dict.fromkeys(chosen))


def processor_objection(
    modes: Mapping[str, int], source: str, here: Mapping[str, Any], destination: str, there: Mapping[str, Any]
) -> str:
    """Why a VM that was started on one host could not go on with the processors of another; empty: as far as is known, it
    could.

    What a VM gets is the EVC mode of its cluster, or without one all that the host's processors have (`maxEVCModeKey`).
    `modes` are all EVC modes with their rank, of which a higher one has all features of a lower one of the same vendor.
    """
    vendors = [{package.vendor for package in row.get("hardware.cpuPkg") or []} for row in (here, there)]
    if all(vendors) and vendors[0] != vendors[1]:
        one, other = (", ".join(sorted(names)) for names in vendors)
        return f"Hosts {source} and {destination} have processors of different makers ({one}, {other})."
    given, offered = (_evc_mode(row) for row in (here, there))
    if given in modes and offered in modes and modes[offered] < modes[given]:
        return (
            f"Host {destination} ({offered}) can't give a VM the processor that it has on host {source} ({given}): "
            "set an EVC mode for both that both have."
        )
    return ""


def evc_modes(session: Session) -> Mapping[str, int]:
    """The EVC modes that the vCenter knows, by their keys, with their rank within those of one vendor. One call."""
    capability = session.object(vim.ServiceInstance, "ServiceInstance").capability
    return {str(mode.key): int(mode.vendorTier) for mode in capability.supportedEVCMode or []}


def _evc_mode(row: Mapping[str, Any]) -> str:
    return str(row.get("summary.currentEVCModeKey") or row.get("summary.maxEVCModeKey") or "")


def _host_objection(name: str, row: Row) -> str:
    return next(_host_objections(name, row), "")


def _host_objections(name: str, row: Row) -> Iterator[str]:
    state = row["runtime.connectionState"]
    if state is not None and state != vim.HostSystem.ConnectionState.connected:
        yield f"Host {name} is {state} in vCenter."
    if row["runtime.inMaintenanceMode"]:
        yield f"Host {name} is in maintenance mode."
    if row["capability.vmotionSupported"] is False:
        yield f"Host {name} does not support vMotion, by its licence or its settings."
    told = row["config.virtualNicManagerInfo.netConfig"] is not None or row["config.network.vnic"] is not None
    if told and not vmotion_adapters(row):
        yield f"Host {name} has no VMkernel adapter with vMotion enabled."


def _storage_objection(places: Places, here: HostPlace, there: HostPlace, row: Row) -> str:
    """A VM's files stay where they are if the destination sees them too; else they move along, if both hosts can do that."""
    try:
        ours, theirs = places.vm_place(here.name), places.vm_place(there.name)
    except LabError as error:
        return f"{error.what} {error.why}".strip()
    if ours.datastore in (row["datastore"] or []):
        return ""
    if row["capability.vmotionWithStorageVMotionSupported"] is False:
        return (
            f"Host {there.name} does not have datastore {ours.datastore_name} of host {here.name}, and can't take a VM "
            f"over together with its files ({theirs.datastore_name})."
        )
    return ""


def _network_objection(places: Places, lab: Lab, here: HostPlace, there: HostPlace) -> str:
    """A VM stays on its port group, so both hosts must have the very same."""
    network = lab.network()
    try:
        ours, theirs = (places.network(place.name, network) for place in (here, there))
    except LabError as error:
        return f"{error.what} {error.why}".strip()
    if ours.ref != theirs.ref:
        return (
            f"Port group {network.bridge} of host {here.name} ({ours.path}) is not that of host {there.name} "
            f"({theirs.path})."
        )
    return ""
