"""What vCenter is told of a vMotion: where the VM goes, and with it its files or not.

Source: vSphere Web Services API, VirtualMachineRelocateSpec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyVmomi import vim

from labctl.errors import LabError
from labctl.model.order import MigrationOrder
from workers.hypervisors.base import Vm
from workers.hypervisors.vsphere.inventory import Row, plain, properties, property_of
from workers.hypervisors.vsphere.places import HostPlace, VmPlace


def unsupported(order: MigrationOrder) -> str:
    """What was ordered that vSphere has no way to do; empty when it can do all. It decides itself how fast memory is copied
    and how a busy guest is slowed down (Stun During Page Send)."""
    asked = {
        "bandwidth": order.bandwidth is not None,
        "auto_converge": order.auto_converge,
        "post_copy": order.post_copy,
    }
    wanted = [name for name, wanted in asked.items() if wanted]
    return f"vMotion has no {' and no '.join(wanted)} that could be set." if wanted else ""


def planned(machine: vim.VirtualMachine, vm: Vm, *, here: HostPlace, target: VmPlace) -> Any:  # noqa: ANN401
    """Where to, from where the VM and its files are now. Raises `LabError` (`vm-gone`) when it doesn't run."""
    session = here.session
    rows = properties(session, (machine,), ("datastore", "config.files.vmPathName", "runtime.powerState"))
    if not rows or rows[0]["runtime.powerState"] != vim.VirtualMachine.PowerState.poweredOn:
        raise LabError(f"The VM {vm.name} doesn't run.", kind="vm-gone", host=here.name)
    stores = properties(session, rows[0]["datastore"] or (), ("name",))
    files = home_of(str(rows[0]["config.files.vmPathName"]), stores) or target.datastore
    seen = property_of(session, target.at.host, "datastore") or []
    folder = target.folder if target.at.datacenter != here.datacenter else None
    return relocation(target, files=files, reachable=files in seen, folder=folder)


def relocation(target: VmPlace, *, files: vim.Datastore, reachable: bool, folder: vim.Folder | None) -> Any:  # noqa: ANN401
    """What vCenter is told: where to.

    Host, pool and datastore are always all said, and all of the destination: the pool of the source's cluster would be
    refused. `files` is where the VM's files are: they stay if the destination reaches them (`reachable`), else they move
    along. `folder` only where the VM has to change it, because it comes to another datacenter.
    """
    return vim.vm.RelocateSpec(
        host=target.at.host,
        pool=target.pool,
        datastore=files if reachable else target.datastore,
        folder=folder,
    )


def home_of(path: str, stores: Sequence[Row]) -> vim.Datastore | None:
    """Of the datastores that a VM uses, for CD images too, the one of its own files (`[datastore] folder/name.vmx`)."""
    name = path.partition("]")[0].removeprefix("[")
    return next((store.ref for store in stores if plain(store["name"]) == name), None)
