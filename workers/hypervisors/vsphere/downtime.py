"""The downtime of a vMotion, from the log that ESXi writes beside the VM's files, when that can be read.

It is some hundred kilobytes that the destination sends to vCenter and vCenter to labctl, once, after the VM has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.files import DatastoreFile, TransferError, fetch_datastore_file
from workers.hypervisors.vsphere.inventory import property_of
from workers.hypervisors.vsphere.stun import stun_of_migration

LOG_SECONDS = 10.0
"""Deadline for reading the log."""

CLOCK_SECONDS = (2.0, 120.0)
"""By how much a stop may be outside of the vMotion to be taken for its, when the one before finds none: first as clocks are
read and rounded, then as the clocks of hosts are off that nobody has set."""

SOURCE = "vmware.log of the VM (Checkpoint_Unstun), by the destination's ESXi"
_NOT_IN_API = "the API of vSphere states none; vmware.log beside the VM's files does (Checkpoint_Unstun)"


@dataclass(frozen=True, kw_only=True)
class Downtime:
    """How long the VM stood still, and by whose word; or why that is not known."""

    milliseconds: int | None = None
    source: str = ""
    why: str = ""


def read_downtime(
    session: Session,
    machine: vim.VirtualMachine,
    host: vim.HostSystem,
    *,
    datacenter: str,
    since: float,
    until: float,
) -> Downtime:
    """The downtime of the vMotion that brought the VM to this host, between two times by the clock of vCenter. Never raises.

    `datacenter` is the inventory path of the VM's datacenter.
    """
    try:
        path = str(property_of(session, machine, "config.files.vmPathName") or "")
        log = fetch_datastore_file(session, _log_beside(path, datacenter), timeout=LOG_SECONDS)
        ahead = _host_ahead(session, host)
    except (TransferError, LabError, vmodl.MethodFault, ValueError) as error:
        return Downtime(why=f"{_NOT_IN_API}, and it could not be read: {error}")
    text = log.decode("utf-8", errors="replace")
    for slack in CLOCK_SECONDS:
        stun = stun_of_migration(text, since=since + ahead - slack, until=until + ahead + slack)
        if stun is not None:
            return Downtime(milliseconds=round(stun.microseconds / 1000), source=SOURCE)
    return Downtime(why=f"{_NOT_IN_API}, but that of this VM tells of no such stop, or of several")


def _host_ahead(session: Session, host: vim.HostSystem) -> float:
    """Seconds by which the clock of a host, whose times the log has, is ahead of vCenter's; 0 where it can't be asked."""
    system = property_of(session, host, "configManager.dateTimeSystem")
    if system is None:
        return 0.0
    try:
        return float(system.QueryDateTime().timestamp()) - session.now()
    except vmodl.MethodFault:
        return 0.0


def _log_beside(path: str, datacenter: str) -> DatastoreFile:
    """`[datastore] folder/name.vmx` has its log in the same folder."""
    if not path.startswith("[") or "] " not in path:
        raise ValueError(f"the VM has no files, its path is {path!r}")
    datastore, _, file = path[1:].partition("] ")
    folder, _, _ = file.rpartition("/")
    return DatastoreFile(
        datacenter=datacenter.strip("/"), datastore=datastore, path=f"{folder}/vmware.log" if folder else "vmware.log"
    )
