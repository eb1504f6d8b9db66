"""Where VMs go: which host, pool, datastore, folder and network of the inventory the names of the lab file mean.

The inventory is read once and kept: objects keep their identity when they are renamed or moved. It is read anew when a
host is no longer there, and for each VM that is created.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyVmomi import vim

from labctl.errors import LabError
from labctl.model.lab import Host, Lab, Network, VCenter
from workers.hypervisors.vsphere.connection import Connections, Session
from workers.hypervisors.vsphere.inventory import Inventory, Item, Row, choose, properties


@dataclass(frozen=True, kw_only=True)
class HostPlace:
    """A host of the lab in the inventory. `name` is the lab's."""

    name: str
    session: Session
    host: vim.HostSystem
    path: str
    compute: vim.ComputeResource
    """Its cluster, or what stands for one when it stands alone."""
    datacenter: vim.Datacenter
    datacenter_path: str


@dataclass(frozen=True, kw_only=True)
class VmPlace:
    """Where the VMs of a host go. All of it belongs to that host, so that nothing of another cluster is named."""

    at: HostPlace
    pool: vim.ResourcePool
    datastore: vim.Datastore
    datastore_name: str
    folder: vim.Folder
    folder_path: str


class Places:
    """The hosts of a lab in the inventories of its vCenters. Safe to use from several threads."""

    def __init__(self, lab: Lab, connections: Connections) -> None:
        self._lab = lab
        self._connections = connections
        self._inventories: dict[Session, Inventory] = {}
        self._lock = threading.Lock()

    def host(self, name: str) -> HostPlace:
        """A host. `LabError` (`host-unreachable`) when the inventory has none of its name, or several."""
        return self._at(name)[1]

    def look(self, name: str, names: Sequence[str]) -> tuple[HostPlace, Row]:
        """A host with properties of it as they are now: one call, once its place is known."""
        place = self.host(name)
        rows = properties(place.session, (place.host,), names)
        if not rows:
            # It was taken out of the inventory, and perhaps put in again as another object.
            self._inventory(place.session, fresh=True)
            place = self.host(name)
            rows = properties(place.session, (place.host,), names)
        if not rows:
            raise LabError(
                f"vCenter {place.session.vcenter.name} no longer has host {name}.", kind="host-unreachable", host=name
            )
        return place, rows[0]

    def vm_place(self, name: str) -> VmPlace:
        """Where a VM on a host goes, by an inventory that is read now (three calls).

        `LabError`: `host-unreachable`, `create-failed` (a pool, datastore or folder is missing or several could be meant).
        """
        self.refresh(name)
        datastore, folder = self.datastore(name), self.folder(name)
        return VmPlace(
            at=self.host(name),
            pool=self.pool(name).ref,
            datastore=datastore.ref,
            datastore_name=datastore.name,
            folder=folder.ref,
            folder_path=folder.path,
        )

    def refresh(self, name: str) -> None:
        """Read the inventory of a host's vCenter anew: three calls."""
        self._inventory(self._connections.session(name), fresh=True)

    def name_of(self, session: Session, host: vim.HostSystem) -> str | None:
        """The lab's name of a host of the inventory; None when the lab doesn't have it."""
        for name, one in self._lab.hosts.items():
            with contextlib.suppress(LabError):
                if one.vcenter == session.vcenter.name and self.host(name).host == host:
                    return name
        return None

    def pool(self, name: str) -> Item:
        """The resource pool for VMs on a host: the one that the lab file names, of its own cluster, or that of the cluster.
        `LabError` (`create-failed`) when there is none or several could be meant."""
        inventory, at = self._at(name)
        compute = inventory.item(at.compute)
        wanted = self._connections.host(name).resource_pool
        if not wanted:
            return inventory.item(compute.row["resourcePool"])
        items = [item for item in inventory.items(vim.ResourcePool) if item.row["owner"] == at.compute]
        key = f"hosts.{name}.resource_pool"
        return choose(items, wanted, what="resource pool", where=f"{compute.path}, where host {name} is,", key=key)

    def datastore(self, name: str) -> Item:
        """The datastore for VMs on a host: the one that the lab file names, or the only one that it shares with all hosts that
        its VMs migrate to. `LabError` (`create-failed`) when there is none or several could be meant."""
        inventory, at = self._at(name)
        items = _datastores(inventory, at)
        key = f"hosts.{name}.datastore"
        wanted = self._connections.host(name).datastore
        if wanted:
            return choose(items, wanted, what="datastore", where=f"Host {name}", key=key)
        partners = self._partners(self._connections.host(name))
        for partner in partners:
            theirs = {item.ref for item in _datastores(inventory, self._host(partner, inventory))}
            items = [item for item in items if item.ref in theirs]
        where = f"Host {name}, with {', '.join(partners)}, that its VMs migrate to," if partners else f"Host {name}"
        return choose(items, "", what="datastore", where=where, key=key)

    def folder(self, name: str) -> Item:
        """The folder for VMs on a host. `LabError` (`create-failed`) when there is none or several could be meant."""
        inventory, at = self._at(name)
        wanted = at.session.vcenter.folder
        root = inventory.item(inventory.item(at.datacenter).row["vmFolder"])
        if not wanted:
            return root
        items = [item for item in inventory.items(vim.Folder) if inventory.within(item, root.ref)]
        key = f"vcenters.{at.session.vcenter.name}.folder"
        return choose(items, wanted, what="folder of VMs", where=inventory.item(at.datacenter).path, key=key)

    def network(self, name: str, network: Network) -> Item:
        """The port group that a network of the lab is on a host (`vim.Network` or, distributed, `DistributedVirtualPortgroup`).

        `LabError` (`create-failed`) when the host has none of that name, or several.
        """
        inventory, at = self._at(name)
        attached = inventory.item(at.host).row["network"] or []
        items = [inventory.item(ref) for ref in attached if inventory.has(ref)]
        key = f"networks.{network.name}.bridge"
        return choose(items, network.bridge, what="network", where=f"Host {name}", key=key)

    def _inventory(self, session: Session, *, fresh: bool = False) -> Inventory:
        with self._lock:
            known = self._inventories.get(session)
        if known is not None and not fresh:
            return known
        made = Inventory.read(session)
        with self._lock:
            self._inventories[session] = made
        return made

    def _at(self, name: str) -> tuple[Inventory, HostPlace]:
        inventory = self._inventory(self._connections.session(name))
        return inventory, self._host(name, inventory)

    def _host(self, name: str, inventory: Inventory) -> HostPlace:
        host, vcenter = self._connections.host(name), self._connections.vcenter(name)
        items = self._scope(vcenter, inventory, vim.HostSystem)
        found = choose(
            items,
            host.inventory or name,
            what="host",
            where=f"vCenter {vcenter.name}",
            key=f"hosts.{name}.inventory",
            kind="host-unreachable",
        )
        datacenter = inventory.above(found, vim.Datacenter)
        return HostPlace(
            name=name,
            session=self._connections.session(name),
            host=found.ref,
            path=found.path,
            compute=found.row["parent"],
            datacenter=datacenter.ref,
            datacenter_path=datacenter.path,
        )

    def _scope(self, vcenter: VCenter, inventory: Inventory, kind: type[Any]) -> list[Item]:
        """All objects of a kind in the datacenter that the lab file names, or everywhere when it names none."""
        items = list(inventory.items(kind))
        if not vcenter.datacenter:
            return items
        datacenter = choose(
            list(inventory.items(vim.Datacenter)),
            vcenter.datacenter,
            what="datacenter",
            where=f"vCenter {vcenter.name}",
            key=f"vcenters.{vcenter.name}.datacenter",
            kind="host-unreachable",
        )
        return [item for item in items if inventory.within(item, datacenter.ref)]

    def _partners(self, host: Host) -> list[str]:
        """The other hosts that VMs of this one may come to by migrations."""
        reached = [host.name]
        for name in reached:
            reached += sorted(to for start, to in self._lab.migration_pairs if start == name and to not in reached)
        return reached[1:]


def _datastores(inventory: Inventory, at: HostPlace) -> list[Item]:
    attached = inventory.item(at.host).row["datastore"] or []
    return [inventory.item(ref) for ref in attached if inventory.has(ref)]
