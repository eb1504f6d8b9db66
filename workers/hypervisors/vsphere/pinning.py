"""Pinning: DRS is told to leave a VM where it is, by an override for this VM in its cluster.

The override goes with the VM when that is destroyed. Sources: `ClusterDrsVmConfigSpec`, `ClusterConfigSpecEx` of the vSphere
Web Services API.
"""

from __future__ import annotations

import logging

from pyVmomi import vim

from workers.guard import Deadline, Guard
from workers.hypervisors.vsphere import tasks
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.places import HostPlace

_LOG = logging.getLogger(__name__)


def pin(session: Session, at: HostPlace, ref: vim.VirtualMachine, *, deadline: Deadline, guard: Guard) -> None:
    """Have DRS leave a VM alone. Nothing to do for a host without a cluster.

    Without the right to do it the VM is not pinned, which `lacks` tells; a VM that is moved is noticed in any case.
    """
    if not isinstance(at.compute, vim.ClusterComputeResource):
        return
    override = vim.cluster.DrsVmConfigSpec(operation="add", info=vim.cluster.DrsVmConfigInfo(key=ref, enabled=False))
    spec = vim.cluster.ConfigSpecEx(drsVmConfigSpec=[override])
    try:
        tasks.run(
            session,
            lambda: at.compute.ReconfigureComputeResource_Task(spec=spec, modify=True),
            entity=at.compute,
            operation="ComputeResource.reconfigureEx",
            deadline=deadline,
            guard=guard,
        )
    except vim.fault.NoPermission as fault:
        _LOG.warning("DRS may move VMs of host %s: the user of labctl lacks %s.", at.name, fault.privilegeId)
