"""VMs on Hyper-V hosts through PowerShell: the driver, which knows where a VM may be and whose it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

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
from workers.hypervisors.hyperv import events, facts, guests, load, migration, paths
from workers.hypervisors.hyperv import vm as vms
from workers.hypervisors.hyperv.connection import Connections, Opener, open_winrm

ADDRESS_SECONDS = 1.0
"""Between two looks for the address of a guest."""

OUR_OWN_SECONDS = 10.0
"""An event of a move this close to one of ours is ours: its time is a difference of two clocks' readings."""


class HypervDriver:
    """The `VmDriver` of Hyper-V hosts. Safe to use from several threads; made anew in every process."""

    def __init__(self, lab: Lab, *, store: str, guard: Guard, opener: Opener = open_winrm) -> None:
        """`store` is the identity of the store that this driver works for: VMs of others are never touched."""
        self._lab = lab
        self._store = store
        self._guard = guard
        self._connections = Connections(lab.hosts, opener)
        self._places: dict[str, tuple[str, ...]] = {}
        self._ids: dict[str, str] = {}
        """VMIds of VMs that this driver has seen with their mark, by our UUIDs."""
        self._moves: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._accelerated: dict[str, tuple[float, str]] = {}
        """VMs whose adapter used SR-IOV when they were last moved: when that was, and from which host."""

    def create(self, host: str, request: VmRequest, *, timeout: float) -> Vm:
        """Create and start a VM. With guest customisation its guest has booted when this returns."""
        self._guard.check()
        where = self._connections.host(host)
        made = vms.create(self._connections, where, request, self._guard, timeout=timeout)
        self._ids[request.uuid] = made.id
        self._places[request.uuid] = (host,)
        return Vm(name=request.name, uuid=request.uuid, host=host, mac=made.mac, address=request.address)

    def channel(self, vm: Vm, image: Image) -> Channel:
        """The channel into the VM, which follows it from host to host."""
        return guests.channel(self._inside(vm), image, self._guard)

    def address(self, vm: Vm, *, timeout: float) -> IPv4Address:
        """The VM's address: the one it was created with, else what its guest tells by the key-value exchange, else where
        the host has seen its adapter."""
        if vm.address is not None and self._lab.network().is_static:
            return vm.address.ip
        deadline = Deadline.after(timeout)
        while True:
            known = self._known_addresses(vm)
            if known.usable is not None:
                return known.usable
            if deadline.passed:
                raise LabError(
                    f"The VM {vm.name} has no address on the test network.",
                    kind="no-guest-address",
                    why=known.why_none,
                    todo="Look at its console on the host, at its image's integration services, and at the DHCP server.",
                    host=vm.host,
                )
            self._guard.sleep(min(ADDRESS_SECONDS, deadline.left))

    def locate(self, vm: Vm) -> str | None:
        """The host on which the VM is running now; one that was paused on purpose counts as running."""
        running, errors = self._running(vm)
        if running is None and errors:
            raise errors[0]
        return running.host if running is not None else None

    def read_back(self, vm: Vm) -> Mapping[str, Fact]:
        """What was really created."""
        place = self._require_place(vm)
        return vms.read_back(self._connections, place.host, place.id)

    def migrate(
        self,
        vm: Vm,
        destination: str,
        order: MigrationOrder,
        *,
        on_sample: Callable[[MigrationSample], None] | None = None,
    ) -> MigrationOutcome:
        """Move a running VM; see `VmDriver.migrate`. Hyper-V has no limit of bandwidth for one migration: the order's is
        not kept."""
        place = self._require_place(vm)
        reason = paths.check_inventory(self._lab, place.host, destination)
        if reason:
            return migration.not_started("refused", reason)
        self._places[vm.uuid] = tuple(dict.fromkeys((destination, *self._candidates(vm))))
        moving = migration.Migration(
            self._connections,
            vm,
            vm_id=place.id,
            source=self._connections.host(place.host),
            destination=self._connections.host(destination),
            order=order,
            may_end=lambda presence: self._is_ours(vm, presence),
            guard=self._guard,
        )
        outcome = moving.run(on_sample)
        self._moves[vm.uuid].append((outcome.started, outcome.ended))
        if outcome.completed and moving.used_sriov:
            self._accelerated[vm.uuid] = (outcome.ended, place.host)
        return outcome

    def pause(self, vm: Vm) -> None:
        """Stop its virtual CPUs, so that it costs nothing until `unpause`."""
        place = self._require_place(vm)
        vms.pause(self._connections, place.host, place.id)

    def unpause(self, vm: Vm) -> None:
        """Let a paused VM go on."""
        place = self._require_place(vm)
        vms.unpause(self._connections, place.host, place.id)

    def destroy(self, vm: Vm) -> None:
        """End the VM on every host that has it, and remove its folder everywhere. Works for a stopped guard too."""
        sight = self._look(vm)
        for presence in sight.found:
            self._require_ours(vm, presence)
        for presence in sight.found:
            vms.end(self._connections, presence, vm.uuid)
        with_it = {presence.host for presence in sight.found}
        for host in sight.asked:
            if host not in with_it:
                vms.remove_folder(self._connections, host, vm.uuid, vm.name)
        if sight.errors and not sight.found:
            raise sight.errors[0]
        for known in (self._places, self._ids, self._moves, self._accelerated):
            known.pop(vm.uuid, None)

    def owned(self, host: str) -> tuple[OwnedVm, ...]:
        """All VMs on the host that carry a mark of ours, whichever store they name."""
        return vms.owned(self._connections, host)

    def host_facts(self, host: str) -> Mapping[str, Fact]:
        """Versions, drivers, offloads, teams, switches, CPU, memory, and how many VMs run on the host."""
        return facts.host_facts(self._connections, host)

    def load(self, host: str) -> HostLoad:
        """What the host is doing. Windows has no load average."""
        return load.host_load(self._connections, host)

    def check_migration(self, source: str, destination: str) -> str:
        """Why a VM can't be migrated between two hosts, in a sentence; empty when nothing speaks against it."""
        return paths.check(self._connections, self._lab, source, destination)

    def incidents(self, vm: Vm, *, since: float) -> tuple[str, ...]:
        """What others did to the VM, as the event logs say, and whether it lost SR-IOV by a migration."""
        if vm.uuid not in self._ids:
            self._look(vm)
        vm_id = self._ids.get(vm.uuid, "")
        if not vm_id:
            return ()
        ours = self._moves.get(vm.uuid, [])
        told = self._lost_sriov(vm, since=since)
        for host in self._candidates(vm):
            for number, at in events.happened(self._connections, host, vm_id, since=since):
                own_move = any(start - OUR_OWN_SECONDS <= at <= end + OUR_OWN_SECONDS for start, end in ours)
                if not (number in events.MOVES and own_move):
                    told.append(f"Host {host}: {events.INCIDENTS[number]}")
        return tuple(told)

    def _lost_sriov(self, vm: Vm, *, since: float) -> list[str]:
        """Whether its adapter has gone by the synthetic path since it was moved: where the other host can't give it a
        virtual function, Hyper-V says nothing. Asked late, because it takes a guest seconds to use one again."""
        moved, source = self._accelerated.get(vm.uuid, (0.0, ""))
        if not source or moved < since:
            return []
        place = self._require_place(vm)
        if vms.read_back(self._connections, place.host, place.id).get("nic.sriov_used"):
            return []
        return [
            f"Its adapter used SR-IOV on host {source} and has fallen back to the synthetic path on host {place.host}."
        ]

    def lacks(self, host: str) -> tuple[Lack, ...]:
        """What the host lacks for the work of labctl, all of it at once."""
        return facts.lacks(self._connections, self._lab, host)

    def close(self) -> None:
        """Close the connections of this process."""
        self._connections.close()

    def _inside(self, vm: Vm) -> guests.Inside:
        return guests.Inside(
            vm=vm,
            place=lambda: self._require_place(vm),
            connections=self._connections,
        )

    def _known_addresses(self, vm: Vm) -> vms.GuestAddresses:
        place = self._require_place(vm)
        return vms.addresses(self._connections, place.host, place.id, vm.mac)

    def _candidates(self, vm: Vm) -> tuple[str, ...]:
        """The hosts that the VM may be on: known when this driver created it, else all that it could have moved to."""
        known = self._places.get(vm.uuid)
        if known is not None:
            return known
        hosts = [vm.host]
        for host in hosts:
            hosts += sorted(to for start, to in self._lab.migration_pairs if start == host and to not in hosts)
        return tuple(hosts)

    def _look(self, vm: Vm) -> _Sight:
        sight = _Sight()
        for host in self._candidates(vm):
            try:
                presence = vms.find(self._connections, host, vm.uuid, self._ids.get(vm.uuid, ""))
            except LabError as error:
                sight.errors.append(error)
                continue
            sight.asked.append(host)
            if presence is not None:
                sight.found.append(presence)
                if presence.notes is not None and presence.notes.uuid == vm.uuid:
                    self._ids[vm.uuid] = presence.id
        return sight

    def _running(self, vm: Vm) -> tuple[vms.Presence | None, list[LabError]]:
        """Where the VM runs, one that isn't paused rather than one that is, and what could not be asked."""
        sight = self._look(vm)
        running = sorted((one for one in sight.found if one.running), key=lambda one: one.paused)
        return (running[0] if running else None), sight.errors

    def _require_place(self, vm: Vm) -> vms.Presence:
        running, errors = self._running(vm)
        if running is not None:
            return running
        if errors:
            raise errors[0]
        raise LabError(
            f"The VM {vm.name} doesn't run on any host.",
            kind="vm-gone",
            why="It has ended: by itself, by somebody else, or because its host was restarted.",
            todo="Look at the event logs Hyper-V-VMMS and Hyper-V-Worker of its host.",
            host=vm.host,
        )

    def _is_ours(self, vm: Vm, presence: vms.Presence) -> bool:
        mark = presence.mark
        named_so = presence.name == vm.name and presence.name.startswith(NAME_PREFIX)
        meant = presence.notes is not None and presence.notes.uuid == vm.uuid
        return mark is not None and named_so and meant and mark.lab == self._lab.name and mark.store == self._store

    def _require_ours(self, vm: Vm, presence: vms.Presence) -> None:
        if self._is_ours(vm, presence):
            return
        raise LabError(
            f"The VM {presence.name} ({presence.id}) on host {presence.host} is not ours to end; it was not touched.",
            kind="not-ours",
            why=_claim(presence.mark) + f" This is lab {self._lab.name}, store {self._store}, VM {vm.name}.",
            todo="Remove it by hand if it is yours.",
            host=presence.host,
        )


@dataclass
class _Sight:
    """What was seen of one VM: where it was found, which hosts answered, and which did not."""

    found: list[vms.Presence] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    errors: list[LabError] = field(default_factory=list)


def _claim(mark: OwnershipMark | None) -> str:
    if mark is None:
        return "It carries no mark of labctl."
    return f"Its mark names lab {mark.lab}, store {mark.store}, campaign {mark.campaign}."
