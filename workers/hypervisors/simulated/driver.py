"""VMs on simulated hosts: the driver, which knows where a VM may be and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address

from labctl.errors import LabError
from labctl.model.lab import Image, Lab
from labctl.model.order import MigrationOrder
from labctl.model.result import Fact, MigrationSample
from workers.channels.base import Channel
from workers.channels.simulated import SimulatedChannel
from workers.guard import Guard
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
from workers.hypervisors.simulated import facts, migration
from workers.hypervisors.simulated import vm as vms
from workers.hypervisors.simulated.inside import MachineInside, VmInside
from workers.hypervisors.simulated.world import NoAnswerError, World


class SimulatedDriver:
    """The `VmDriver` of a lab that only pretends, whatever its hosts' hypervisor is said to be.

    It also gives the channels to hosts and plain machines, because what is said in a channel is heard by the servers that
    others started.
    """

    def __init__(self, lab: Lab, *, store: str, guard: Guard) -> None:
        """`store` is the identity of the store that this driver works for: VMs of others are never touched."""
        self._lab = lab
        self._store = store
        self._guard = guard
        self._world = World(lab, guard)
        self._places: dict[str, str] = {}
        self._insides: dict[str, VmInside] = {}

    def create(self, host: str, request: VmRequest, *, timeout: float) -> Vm:
        """Create and start a VM."""
        self._guard.check()
        where = self._world.host(host)
        if self._world.before("create", host, request.name, seconds=timeout):
            raise vms.failed(f"The VM {request.name} could not be created on host {host}.", host, kind="create-failed")
        vms.create(self._world, where, request)
        self._places[request.uuid] = host
        return Vm(name=request.name, uuid=request.uuid, host=host, mac=request.mac, address=request.address)

    def channel(self, vm: Vm, image: Image) -> Channel:
        """The channel into the VM, which follows it from host to host."""
        del image
        inside = self._insides.setdefault(vm.uuid, VmInside(self._world, vm, lambda: self._find(vm)))
        return SimulatedChannel(inside=inside, guard=self._guard)

    def machine_channel(self, name: str) -> Channel:
        """The channel to a host or a plain machine itself."""
        return SimulatedChannel(inside=MachineInside(self._world, name), guard=self._guard)

    def address(self, vm: Vm, *, timeout: float) -> IPv4Address:  # noqa: ARG002
        """The address that the VM was created with."""
        if vm.address is None:
            raise LabError(f"The VM {vm.name} has no address.", kind="no-guest-address", host=vm.host)
        return vm.address.ip

    def locate(self, vm: Vm) -> str | None:
        """The host on which the VM is running now; one that was paused on purpose counts as running."""
        presence = self._look(vm, "locate")
        return presence.host if presence is not None else None

    def read_back(self, vm: Vm) -> Mapping[str, Fact]:
        """What was really created."""
        return vms.read_back(self._world, self._require(vm, "read_back"))

    def migrate(
        self,
        vm: Vm,
        destination: str,
        order: MigrationOrder,
        *,
        on_sample: Callable[[MigrationSample], None] | None = None,
    ) -> MigrationOutcome:
        """Move a running VM; see `VmDriver.migrate`."""
        source = self._require(vm, "locate").host
        reason = migration.check_inventory(self._lab, source, destination)
        if reason:
            return migration.not_started("refused", reason)
        outcome = migration.migrate(
            self._world, vm, source=source, destination=destination, order=order, on_sample=on_sample
        )
        if outcome.completed:
            self._places[vm.uuid] = destination
        return outcome

    def pause(self, vm: Vm) -> None:
        """Stop its virtual CPUs, so that it costs nothing until `unpause`."""
        vms.set_paused(self._world, self._require(vm, "pause"), paused=True)

    def unpause(self, vm: Vm) -> None:
        """Let a paused VM go on."""
        vms.set_paused(self._world, self._require(vm, "unpause"), paused=False)

    def destroy(self, vm: Vm) -> None:
        """End the VM on the host that has it. Works for a stopped guard too."""
        presence = self._look(vm, "destroy")
        if presence is None:
            return
        self._require_ours(vm, presence)
        self._world.take(self._world.figures.destroy, presence.host)
        vms.end(self._world, presence)
        self._places.pop(vm.uuid, None)

    def owned(self, host: str) -> tuple[OwnedVm, ...]:
        """All VMs on the host that carry a mark of ours, whichever store they name."""
        self._ask("owned", host)
        return vms.owned(self._world, host)

    def host_facts(self, host: str) -> Mapping[str, Fact]:
        """Versions, CPU, memory, load, and how many VMs run on the host."""
        self._ask("host_facts", host)
        return facts.host_facts(self._world, host)

    def load(self, host: str) -> HostLoad:
        """What the host is doing: what its faults `busy` say, and its VMs."""
        self._ask("load", host)
        return facts.host_load(self._world, host)

    def check_migration(self, source: str, destination: str) -> str:
        """Why a VM can't be migrated between two hosts, in a sentence; empty when nothing speaks against it."""
        reason = migration.check_inventory(self._lab, source, destination)
        if not reason:
            self._ask("check_migration", destination)
            self._ask("check_migration", source)
        return reason

    def incidents(self, vm: Vm, *, since: float) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: nobody else does anything on simulated hosts."""
        return ()

    def lacks(self, host: str) -> tuple[Lack, ...]:  # noqa: ARG002
        """Nothing."""
        return ()

    def close(self) -> None:
        """Nothing is kept open."""

    def _ask(self, operation: str, host: str, vm: str = "") -> None:
        self._world.host(host)
        if self._world.before(operation, host, vm):
            raise vms.failed(f"Host {host} could not do what it was asked for: {operation}.", host)

    def _look(self, vm: Vm, operation: str) -> vms.Presence | None:
        """The VM, asked for on every host it may be on, its last known one first. A host that doesn't answer is an error
        only when no other has the VM."""
        error: LabError | None = None
        for host in self._candidates(vm):
            try:
                self._ask(operation, host, vm.name)
            except NoAnswerError as silent:
                error = error or silent
                continue
            presence = vms.find(self._world, host, vm.name)
            if presence is not None and presence.uuid == vm.uuid:
                return presence
        if error is not None:
            raise error
        return None

    def _find(self, vm: Vm) -> vms.Presence | None:
        """The VM wherever it is. Asks nobody: the inside of a VM is reached without its host's help."""
        for host in self._candidates(vm):
            presence = vms.find(self._world, host, vm.name)
            if presence is not None and presence.uuid == vm.uuid:
                return presence
        return None

    def _candidates(self, vm: Vm) -> Iterator[str]:
        """The hosts that the VM may be on: where it was last, then all that it could have been moved to."""
        known = self._places.get(vm.uuid)
        yield known if known is not None else vm.host
        if known is None:
            yield from sorted(to for start, to in self._lab.migration_pairs if start == vm.host)

    def _require(self, vm: Vm, operation: str) -> vms.Presence:
        presence = self._look(vm, operation)
        if presence is None:
            raise LabError(
                f"The VM {vm.name} doesn't run on any host.",
                kind="vm-gone",
                why="It has ended, by itself or by somebody else.",
                todo="Nothing: it is a simulated lab.",
                host=vm.host,
            )
        return presence

    def _require_ours(self, vm: Vm, presence: vms.Presence) -> None:
        mark = presence.mark
        named_so = presence.name.startswith(NAME_PREFIX)
        if mark is not None and named_so and mark.lab == self._lab.name and mark.store == self._store:
            return
        raise LabError(
            f"The VM {presence.name} on host {presence.host} is not ours to end; it was not touched.",
            kind="not-ours",
            why=f"{_claim(mark)} This is lab {self._lab.name}, store {self._store}, VM {vm.name}.",
            todo="Remove it by hand if it is yours.",
            host=presence.host,
        )


def _claim(mark: OwnershipMark | None) -> str:
    if mark is None:
        return "It carries no mark of labctl."
    return f"Its mark names lab {mark.lab}, store {mark.store}, campaign {mark.campaign}."
