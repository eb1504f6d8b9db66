"""VMs on ESXi hosts through vCenter: the driver, which knows where a VM may be and whose it is.

Pausing is suspending, which is what the API has: the memory goes to a file on the datastore, and the VM costs its host
nothing until it goes on. A VM of some GiB takes seconds for either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv4Address

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.lab import Image, Lab
from labctl.model.order import MigrationOrder
from labctl.model.result import Fact, MigrationSample
from workers.channels.base import Channel
from workers.guard import Deadline, Guard
from workers.hypervisors.base import (
    NAME_PREFIX,
    HostLoad,
    Lack,
    MigrationOutcome,
    OwnedVm,
    OwnershipMark,
    Vm,
    VmRequest,
)
from workers.hypervisors.vsphere import addresses, drs, events, facts, guests, load, migration, paths, rights
from workers.hypervisors.vsphere import vm as vms
from workers.hypervisors.vsphere.connection import Connections, Session
from workers.hypervisors.vsphere.creation import Creation
from workers.hypervisors.vsphere.faults import lab_error
from workers.hypervisors.vsphere.places import Places


class VsphereDriver:
    """The `VmDriver` of ESXi hosts. Safe to use from several threads; made anew in every process."""

    def __init__(self, lab: Lab, *, store: str, guard: Guard) -> None:
        """`store` is the identity of the store that this driver works for: VMs of others are never touched."""
        self._lab = lab
        self._store = store
        self._guard = guard
        self._connections = Connections(lab)
        self._places = Places(lab, self._connections)
        self._machines: dict[str, vim.VirtualMachine] = {}
        self._lock = threading.Lock()
        self._moves = events.OwnMoves()
        self._pins = drs.Pins()
        self._templates: dict[str, object] = {}

    def create(self, host: str, request: VmRequest, *, timeout: float) -> Vm:
        """Create and start a VM: cloned from a template, or new with a CD image."""
        self._guard.check()
        with _naming(host):
            Creation(
                lab=self._lab,
                places=self._places,
                host=host,
                request=request,
                guard=self._guard,
                deadline=Deadline.after(timeout),
                pins=self._pins,
                templates=self._templates,
            ).run()
        return Vm(name=request.name, uuid=request.uuid, host=host, mac=request.mac, address=request.address)

    def channel(self, vm: Vm, image: Image) -> Channel:
        """The channel into the VM: by VMware Tools, which follow it from host to host, or to its address."""
        inside = guests.Inside(vm=vm, session=lambda: self._session(vm), machine=lambda: self._machine(vm))
        return guests.channel(inside, image, self._guard)

    def address(self, vm: Vm, *, timeout: float) -> IPv4Address:
        """The address that the VM was created with, or that VMware Tools tell of its adapter."""
        if vm.address is not None and self._lab.network().is_static:
            return vm.address.ip
        subnets = addresses.expected_subnets(self._lab.network(), tuple(self._lab.hosts.values()))
        with _naming(vm.host):
            return addresses.await_address(
                self._session(vm), self._machine(vm), vm, subnets=subnets, timeout=timeout, guard=self._guard
            )

    def locate(self, vm: Vm) -> str | None:
        """The host on which the VM is running now, wherever in its vCenter somebody has moved it; one that was paused on
        purpose counts as running. `LabError` (`moved`) when that host is none of the lab's."""
        with _naming(vm.host):
            found = self._find(vm)
            if found is None or not found.active or found.host is None:
                return None
            session = self._session(vm)
            name = self._places.name_of(session, found.host)
            if name is None:
                raise LabError(
                    f"The VM {vm.name} runs on a host that the lab doesn't have.",
                    kind="moved",
                    why=f"It is on {found.host.name}; DRS or somebody has moved it.",
                    todo=f"Keep VMs of labctl on the hosts of the lab: `pin: yes` for vcenters.{session.vcenter.name}.",
                )
            return name

    def read_back(self, vm: Vm) -> Mapping[str, Fact]:
        """What was really created, as the vCenter says. Queues and backend of the adapter are the guest's and the host's to
        know: None."""
        with _naming(vm.host):
            found = self._require(vm)
            host = self.locate(vm) or vm.host
            pinned = self._pins.facts(self._places.host(host), found.ref)
            return {**vms.read_back(self._session(vm), found, host), **pinned}

    def migrate(
        self,
        vm: Vm,
        destination: str,
        order: MigrationOrder,
        *,
        on_sample: Callable[[MigrationSample], None] | None = None,
    ) -> MigrationOutcome:
        """Move a running VM by vMotion; see `VmDriver.migrate`. Bandwidth and the ways to end sooner are vSphere's own to
        choose: an order that sets them is refused."""
        with _naming(vm.host):
            found = self._require(vm)
            source = self.locate(vm) or vm.host
        reason = paths.check_inventory(self._lab, source, destination)
        if reason:
            return migration.not_started("refused", reason)
        outcome = migration.Migration(
            self._places,
            found.ref,
            vm,
            lab=self._lab,
            source=source,
            destination=destination,
            order=order,
            own=self._moves,
            guard=self._guard,
        ).run(on_sample)
        if outcome.completed and self._places.host(source).compute != self._places.host(destination).compute:
            self._pins.pin(self._places.host(destination), found.ref)  # an override is a setting of the cluster
        return outcome

    def pause(self, vm: Vm) -> None:
        """Suspend the VM."""
        with _naming(vm.host):
            vms.suspend(self._session(vm), self._require(vm))

    def unpause(self, vm: Vm) -> None:
        """Let a suspended VM go on, on the host that it is on."""
        with _naming(vm.host):
            vms.resume(self._session(vm), self._require(vm))

    def destroy(self, vm: Vm) -> None:
        """End the VM and remove its files, wherever it is. Works for a stopped guard too."""
        with _naming(vm.host):
            found = self._find(vm)
            if found is not None:
                self._require_ours(vm, found)
                self._pins.unpin(self._places.host(vm.host), found.ref)
                vms.end(self._session(vm), found, self._places.host(vm.host))
        with self._lock:
            self._machines.pop(vm.uuid, None)

    def owned(self, host: str) -> tuple[OwnedVm, ...]:
        """All VMs on the host that carry a mark of ours, whichever store they name."""
        with _naming(host):
            place, _ = self._places.look(host, ("name",))
            return vms.owned(place, self._places.folder(host).ref)

    def host_facts(self, host: str) -> Mapping[str, Fact]:
        """Versions, hardware, network and VMs of a host, as its vCenter says."""
        with _naming(host):
            return facts.host_facts(self._lab, self._places, host)

    def load(self, host: str) -> HostLoad:
        """What the host was doing during the last 20 s or so, as its vCenter has heard of it: the host isn't asked."""
        with _naming(host):
            return load.host_load(self._places, host)

    def check_migration(self, source: str, destination: str) -> str:
        """Why a VM can't be migrated between two hosts, in a sentence; empty when nothing speaks against it."""
        with _naming(source):
            return paths.check(self._places, self._lab, source, destination)

    def incidents(self, vm: Vm, *, since: float) -> tuple[str, ...]:
        """What others did to the VM, as its vCenter remembers."""
        with _naming(vm.host):
            return events.incidents(self._session(vm), self._machine(vm), since=since, own=self._moves)

    def lacks(self, host: str) -> tuple[Lack, ...]:
        """What the host lacks for the work of labctl: privileges, and objects that the lab file names."""
        with _naming(host):
            return rights.lacks(self._lab, self._places, host)

    def close(self) -> None:
        """End the sessions of this process."""
        self._connections.close()
        with self._lock:
            self._machines.clear()

    def _session(self, vm: Vm) -> Session:
        return self._connections.session(vm.host)

    def _find(self, vm: Vm) -> vms.Presence | None:
        found = vms.find(self._session(vm), vm, folder=self._places.folder(vm.host).ref)
        if found is not None:
            with self._lock:
                self._machines[vm.uuid] = found.ref
        return found

    def _require(self, vm: Vm) -> vms.Presence:
        found = self._find(vm)
        if found is None or not found.active:
            raise LabError(
                f"The VM {vm.name} doesn't run on any host.",
                kind="vm-gone",
                why="It has ended, by itself or by somebody else." if found is None else f"It is {found.power}.",
                todo="Look at its events in vCenter.",
                host=vm.host,
            )
        return found

    def _machine(self, vm: Vm) -> vim.VirtualMachine:
        """The VM in the inventory; looked for once, since it keeps its identity wherever it goes."""
        with self._lock:
            known = self._machines.get(vm.uuid)
        return known if known is not None else self._require(vm).ref

    def _is_ours(self, vm: Vm, found: vms.Presence) -> bool:
        mark = found.mark
        named_so = found.name == vm.name and found.name.startswith(NAME_PREFIX)
        return mark is not None and named_so and mark.lab == self._lab.name and mark.store == self._store

    def _require_ours(self, vm: Vm, found: vms.Presence) -> None:
        if self._is_ours(vm, found):
            return
        renamed = "" if found.name == vm.name else f" Somebody has renamed it to {found.name}."
        raise LabError(
            f"The VM {found.name} on host {vm.host} is not ours to end; it was not touched.",
            kind="not-ours",
            why=f"{_claim(found.mark)} This is lab {self._lab.name}, store {self._store}, VM {vm.name}.{renamed}",
            todo="Remove it by hand if it is yours.",
            host=vm.host,
        )


@contextmanager
def _naming(host: str) -> Iterator[None]:
    """Have every error name the host that was asked for, also those that only know of the vCenter; and no fault of the API
    come out as it is."""
    try:
        yield
    except LabError as error:
        error.host = error.host or host
        raise
    except vmodl.MethodFault as fault:
        raise lab_error(host, f"The vCenter of host {host} refused.", fault, kind="vsphere") from fault


def _claim(mark: OwnershipMark | None) -> str:
    return f"It carries the mark of lab {mark.lab}, store {mark.store}." if mark else "It carries no mark for this VM."
