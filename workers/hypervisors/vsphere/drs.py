"""An override of DRS for each VM of ours, for clusters whose DRS would move or not move VMs in the middle of a measurement.

With the override DRS leaves the VM where it is, whatever the cluster's mode; High Availability may still restart it. It is a
setting of the cluster, so it needs a right there (`Host.Inventory.EditCluster`) that labctl otherwise has no use for.
Source: vSphere Web Services API, ClusterDrsVmConfigSpec and ClusterDrsVmConfigInfo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.result import Fact
from workers.guard import Deadline
from workers.hypervisors.vsphere import tasks
from workers.hypervisors.vsphere.connection import LostReply, Session, said
from workers.hypervisors.vsphere.inventory import properties
from workers.hypervisors.vsphere.places import HostPlace

PIN_SECONDS = 60.0
"""Deadline for a change of the cluster's settings."""

_CONFIGURATION = "configurationEx"


class Pins:
    """The overrides of one driver's VMs, where the lab file asks for them. What can't be had is kept to be told as a fact:
    a VM that DRS may move is a VM all the same. Safe to use from several threads."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def pin(self, at: HostPlace, machine: vim.VirtualMachine) -> None:
        """Have DRS leave a VM on this host, if the lab file says so. Never raises."""
        if at.session.vcenter.pin:
            self._problems[machine._GetMoId()] = _tried(lambda: pin(at.session, at.compute, machine))

    def unpin(self, at: HostPlace, machine: vim.VirtualMachine) -> None:
        """Take back what `pin` did, before the VM is removed. Never raises."""
        if at.session.vcenter.pin:
            _tried(lambda: unpin(at.session, at.compute, machine))
            self._problems.pop(machine._GetMoId(), None)

    def facts(self, at: HostPlace, machine: vim.VirtualMachine) -> Mapping[str, Fact]:
        """`drs.may_move`: what DRS may do with the VM, empty for nothing; with `pin` in the lab file `drs.pinned`, and
        `drs.problem` where that could not be had. Raises `LabError`."""
        facts: dict[str, Fact] = {"drs.may_move": may_move(at.session, at.compute, machine)}
        if at.session.vcenter.pin:
            problem = self._problems.get(machine._GetMoId(), "")
            facts["drs.pinned"] = not facts["drs.may_move"]
            if problem:
                facts["drs.problem"] = problem
        return facts


def pin(session: Session, compute: vim.ComputeResource, machine: vim.VirtualMachine) -> str:
    """Have DRS leave a VM where it is. Why that could not be had, in a sentence; empty when DRS will leave it.

    Nothing to be done where there is no DRS. Raises `LabError` when vCenter doesn't answer in time.
    """

    def change(override: Any) -> Any:  # noqa: ANN401
        if override is not None and override.enabled is False:
            return None
        info = vim.cluster.DrsVmConfigInfo(key=machine, enabled=False)
        return vim.cluster.DrsVmConfigSpec(operation="add" if override is None else "edit", info=info)

    return _bring_about(session, compute, machine, change)


def unpin(session: Session, compute: vim.ComputeResource, machine: vim.VirtualMachine) -> str:
    """Take the override of a VM away. Why that could not be done, in a sentence; empty when there is none (any more).

    vCenter forgets those of VMs that are removed by itself; this is for VMs that go on.
    """

    def change(override: Any) -> Any:  # noqa: ANN401
        if override is None:
            return None
        return vim.cluster.DrsVmConfigSpec(operation="remove", removeKey=machine)

    return _bring_about(session, compute, machine, change)


def may_move(session: Session, compute: vim.ComputeResource, machine: vim.VirtualMachine) -> str:
    """What DRS may do with a VM: `fullyAutomated`, `partiallyAutomated` (places it when it is started), `manual`; empty when
    it does nothing with it."""
    cluster = _with_drs(session, compute)
    if cluster is None:
        return ""
    override = _override(cluster, machine)
    if override is None:
        return str(cluster.drsConfig.defaultVmBehavior or "")
    return "" if override.enabled is False else str(override.behavior or cluster.drsConfig.defaultVmBehavior or "")


def _with_drs(session: Session, compute: vim.ComputeResource) -> Any:  # noqa: ANN401
    """The settings of a cluster in which DRS is on; None for others and for hosts that stand alone."""
    if not isinstance(compute, vim.ClusterComputeResource):
        return None
    rows = properties(session, (compute,), (_CONFIGURATION,))
    settings = rows[0][_CONFIGURATION] if rows else None
    if settings is None or settings.drsConfig is None or not settings.drsConfig.enabled:
        return None
    return settings


def _override(settings: Any, machine: vim.VirtualMachine) -> Any:  # noqa: ANN401
    found = (override for override in settings.drsVmConfig or [] if override.key == machine)
    return next(found, None)


def _bring_about(
    session: Session, compute: vim.ComputeResource, machine: vim.VirtualMachine, change: Callable[[Any], Any]
) -> str:
    """Make the change that an override needs (None: none). One whose answer was lost is made again if it is still needed."""
    for last in (False, True):
        cluster = _with_drs(session, compute)
        needed = change(_override(cluster, machine)) if cluster is not None else None
        if needed is None:
            return ""
        try:
            _reconfigure(session, compute, vim.cluster.ConfigSpecEx(drsVmConfigSpec=[needed]))
        except LostReply:
            if last:
                raise
        except vim.fault.NoPermission as fault:
            return f"labctl's user may not change overrides of DRS: it lacks {fault.privilegeId or 'a right'} on the cluster."
        except vmodl.MethodFault as fault:
            return f"vCenter does not change the VM's override of DRS: {said(fault)}."
        else:
            return ""
    raise AssertionError("unreachable")


def _reconfigure(session: Session, compute: vim.ComputeResource, spec: vim.cluster.ConfigSpecEx) -> None:
    tasks.run(
        session,
        lambda: compute.ReconfigureComputeResource_Task(spec, True),
        entity=compute,
        operation="ComputeResource.reconfigureEx",
        deadline=Deadline.after(PIN_SECONDS),
    )


def _tried(call: Callable[[], str]) -> str:
    try:
        return call()
    except (LabError, vmodl.MethodFault) as error:
        return said(error)
