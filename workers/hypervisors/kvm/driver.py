"""VMs on KVM and QEMU hosts through libvirt: the driver, which knows where a VM may be and whose it is."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

import libvirt

from labctl.errors import LabError
from labctl.model.lab import Accelerator, ChannelKind, Host, Image, ImageKind, Lab, SshAccess
from labctl.model.order import MigrationOrder
from labctl.model.result import Fact, MigrationSample
from workers.channels.base import Channel, ChannelError
from workers.channels.qemu_agent import QemuAgentChannel
from workers.channels.ssh import SshChannel
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
from workers.hypervisors.kvm import facts, load, migration, paths, storage
from workers.hypervisors.kvm import vm as vms
from workers.hypervisors.kvm.agent import LibvirtAgent
from workers.hypervisors.kvm.connection import Connections, lab_error

PROBE_SECONDS = 30.0
"""How long a guest under KVM may take to answer before the host is taken to have software emulation only."""

_probed: dict[str, Accelerator] = {}
_PROBING = threading.Lock()
"""What probe guests of this process have shown, by libvirt URI."""


class KvmDriver:
    """The `VmDriver` of KVM hosts. Safe to use from several threads; made anew in every process."""

    def __init__(self, lab: Lab, *, store: str, guard: Guard) -> None:
        """`store` is the identity of the store that this driver works for: VMs of others are never touched."""
        self._lab = lab
        self._store = store
        self._guard = guard
        self._connections = Connections(lab.hosts)
        self._places: dict[str, tuple[str, ...]] = {}
        self._jumps: dict[str, SshChannel] = {}

    def create(self, host: str, request: VmRequest, *, timeout: float) -> Vm:
        """Create and start a VM. The first one on a host with accelerator `auto` may wait for a probe guest first."""
        self._guard.check()
        where = self._connections.host(host)
        vms.create(self._connections, where, request, self._accelerator(where, request), timeout=timeout)
        self._places[request.uuid] = (host,)
        return Vm(name=request.name, uuid=request.uuid, host=host, mac=request.mac, address=request.address)

    def channel(self, vm: Vm, image: Image) -> Channel:
        """The channel into the VM, which follows it from host to host."""
        endpoint = f"vm {vm.name}"
        if image.channel is ChannelKind.QEMU_AGENT:
            return QemuAgentChannel(endpoint=endpoint, agent=self.agent(vm), guard=self._guard)
        return self._ssh_channel(endpoint, vm, image)

    def agent(self, vm: Vm) -> LibvirtAgent:
        """The guest agent of the VM, wherever it runs now."""
        return LibvirtAgent(
            self._connections,
            vm,
            locate=lambda: self.locate(vm),
            handed_over=lambda: bool(self._look(vm).found),
        )

    def address(self, vm: Vm, *, timeout: float) -> IPv4Address:  # noqa: ARG002
        """The address that the VM was created with: guests of KVM get it with their command line."""
        if vm.address is None:
            raise LabError(
                f"The VM {vm.name} has no address.",
                kind="no-guest-address",
                why="On KVM the test network needs static addressing.",
                todo="Give the network `guest_range` in the lab file.",
                host=vm.host,
            )
        return vm.address.ip

    def locate(self, vm: Vm) -> str | None:
        """The host on which the VM is running now; one that was paused on purpose counts as running."""
        sight = self._look(vm)
        running = sorted((one for one in sight.found if one.running), key=lambda one: one.paused)
        if running:
            return running[0].host
        if sight.errors and not sight.found:
            raise sight.errors[0]
        return None

    def read_back(self, vm: Vm) -> Mapping[str, Fact]:
        """What was really created. `qemu_arguments` is None for hosts that are not on this machine."""
        return vms.read_back(self._connections, self._require_place(vm), vm.uuid)

    def migrate(
        self,
        vm: Vm,
        destination: str,
        order: MigrationOrder,
        *,
        on_sample: Callable[[MigrationSample], None] | None = None,
    ) -> MigrationOutcome:
        """Move a running VM; see `VmDriver.migrate`. Bandwidth limits are rounded to whole MiB/s, at least 1."""
        source = self._require_place(vm)
        reason = paths.check_inventory(self._lab, source, destination)
        if reason:
            return migration.not_started("refused", reason)
        self._places[vm.uuid] = tuple(dict.fromkeys((destination, *self._candidates(vm))))
        return migration.Migration(
            self._connections,
            vm,
            source=self._connections.host(source),
            destination=self._connections.host(destination),
            order=order,
            may_end=lambda presence: self._is_ours(vm, presence),
            guard=self._guard,
        ).run(on_sample)

    def pause(self, vm: Vm) -> None:
        """Stop its virtual CPUs, so that it costs nothing until `unpause`."""
        vms.pause(self._connections, self._require_place(vm), vm.uuid)

    def unpause(self, vm: Vm) -> None:
        """Let a paused VM go on."""
        vms.unpause(self._connections, self._require_place(vm), vm.uuid)

    def destroy(self, vm: Vm) -> None:
        """End the VM on every host that has it, and remove all that was made for it. Works for a stopped guard too."""
        sight = self._look(vm)
        for presence in sight.found:
            self._require_ours(vm, presence)
        for presence in sight.found:
            vms.end(self._connections, presence, vm.uuid)
        if any(image.kind is ImageKind.DISK for image in self._lab.images.values()):
            self._remove_overlays(vm, sight)
        if sight.errors and not sight.found:
            raise sight.errors[0]
        self._places.pop(vm.uuid, None)

    def owned(self, host: str) -> tuple[OwnedVm, ...]:
        """All VMs on the host that carry a mark of ours, whichever store they name."""
        return vms.owned(self._connections, host)

    def host_facts(self, host: str) -> Mapping[str, Fact]:
        """Versions, CPU, memory, load, and how many VMs run on the host."""
        return facts.host_facts(self._connections, self._lab, host)

    def load(self, host: str) -> HostLoad:
        """What the host is doing. Load average and network are known for hosts with `ssh` only."""
        where = self._connections.host(host)
        channel = self._host_channel(where.name, where.ssh) if where.ssh is not None else None
        return load.host_load(self._connections, host, channel, self._guard)

    def check_migration(self, source: str, destination: str) -> str:
        """Why a VM can't be migrated between two hosts, in a sentence; empty when nothing speaks against it."""
        access = self._connections.host(source).ssh
        shell = self._host_channel(source, access) if access is not None else None
        return paths.check(self._connections, self._lab, source, destination, shell=shell)

    def incidents(self, vm: Vm, *, since: float) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: libvirt remembers no events."""
        return ()

    def lacks(self, host: str) -> tuple[Lack, ...]:  # noqa: ARG002
        """Nothing that isn't told otherwise: `host_facts` fails where libvirt refuses."""
        return ()

    def close(self) -> None:
        """Close the connections of this process."""
        for channel in self._jumps.values():
            channel.close()
        self._jumps.clear()
        self._connections.close()

    def _ssh_channel(self, endpoint: str, vm: Vm, image: Image) -> Channel:
        """SSH to the VM's address, through its host; its host key is looked for in the host's `known_hosts`."""
        host = self._connections.host(self._require_place(vm))
        if host.ssh is None or image.ssh_key is None or vm.address is None:
            raise ChannelError(
                f"The VM {vm.name} can't be reached by SSH.",
                kind="channel-refused",
                why="That needs `ssh` of its host, `ssh_key` of its image, and an address of its own.",
                todo=f"Complete hosts.{host.name} and images.{image.name} in the lab file.",
                host=host.name,
            )
        access = SshAccess(
            address=str(vm.address.ip), user=image.ssh_user, key=image.ssh_key, known_hosts=host.ssh.known_hosts
        )
        via = self._host_channel(host.name, host.ssh)
        return SshChannel(endpoint=endpoint, access=access, guard=self._guard, via=via)

    def _host_channel(self, host: str, access: SshAccess) -> SshChannel:
        """The channel to a host itself."""
        return self._jumps.setdefault(host, SshChannel(endpoint=f"host {host}", access=access, guard=self._guard))

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
                presence = vms.find(self._connections, host, vm.uuid)
            except LabError as error:
                sight.errors.append(error)
                continue
            sight.asked.append(host)
            if presence is not None:
                sight.found.append(presence)
        return sight

    def _require_place(self, vm: Vm) -> str:
        host = self.locate(vm)
        if host is None:
            raise LabError(
                f"The VM {vm.name} doesn't run on any host.",
                kind="vm-gone",
                why="It has ended, by itself or by somebody else.",
                todo="Look at the log of QEMU on its host.",
                host=vm.host,
            )
        return host

    def _is_ours(self, vm: Vm, presence: vms.Presence) -> bool:
        mark = presence.mark
        named_so = presence.name == vm.name and presence.name.startswith(NAME_PREFIX)
        return mark is not None and named_so and mark.lab == self._lab.name and mark.store == self._store

    def _require_ours(self, vm: Vm, presence: vms.Presence) -> None:
        if self._is_ours(vm, presence):
            return
        raise LabError(
            f"The VM {presence.name} on host {presence.host} is not ours to end; it was not touched.",
            kind="not-ours",
            why=_claim(presence.mark) + f" This is lab {self._lab.name}, store {self._store}, VM {vm.name}.",
            todo="Remove it by hand if it is yours.",
            host=presence.host,
        )

    def _remove_overlays(self, vm: Vm, sight: _Sight) -> None:
        for host in sight.asked:
            try:
                self._connections.write(host, lambda c: storage.remove_overlay(c, vm.uuid))
            except libvirt.libvirtError as error:
                raise lab_error(
                    host,
                    f"The disk overlay of {vm.name} could not be removed from host {host}.",
                    error,
                    todo=f"Remove the volume labctl-{vm.uuid}.qcow2 by hand.",
                ) from error

    def _accelerator(self, host: Host, request: VmRequest) -> Accelerator:
        declared = facts.declared_accelerator(self._lab, host)
        if declared is not Accelerator.AUTO:
            return declared
        with _PROBING:
            if host.uri not in _probed:
                shown = self._probe(host, request)
                if shown is None:
                    return Accelerator.TCG
                _probed[host.uri] = shown
            return _probed[host.uri]

    def _probe(self, host: Host, request: VmRequest) -> Accelerator | None:
        """KVM if a guest under it answers; /dev/kvm and libvirt may both offer one in which guests hang.

        None when the guest could not even be created, which may have another reason: nothing to be remembered.
        """
        if not self._connections.read(host.name, facts.offers_kvm):
            return Accelerator.TCG
        if request.image.channel is not ChannelKind.QEMU_AGENT:
            raise LabError(
                f"Which accelerator host {host.name} has can't be tried out with image {request.image.name}.",
                kind="accelerator-unknown",
                why="It has no guest agent that a probe guest could answer with.",
                todo=f"Name it in the lab file: accelerator: kvm (or tcg) for host {host.name}.",
                host=host.name,
            )
        identity = uuid.uuid4()
        probe = replace(
            request,
            name=f"{NAME_PREFIX}probe-{identity.hex[:8]}",
            uuid=str(identity),
            shape=replace(request.shape, nic_model="virtio", queues=1, vhost=None),
            mark=replace(request.mark, role="probe"),
            passthrough="",
        )
        vm = Vm(name=probe.name, uuid=probe.uuid, host=host.name, mac=probe.mac, address=probe.address)
        self._places[vm.uuid] = (host.name,)
        try:
            vms.create(self._connections, host, probe, Accelerator.KVM, timeout=PROBE_SECONDS)
            return Accelerator.KVM if self._answers(vm) else Accelerator.TCG
        except LabError as error:
            if error.kind == "create-failed":
                return None
            raise
        finally:
            self.destroy(vm)

    def _answers(self, vm: Vm) -> bool:
        agent = self.agent(vm)
        deadline = Deadline.after(PROBE_SECONDS)
        while not deadline.passed:
            try:
                agent.command('{"execute": "guest-ping"}', timeout=5.0)
            except ChannelError:
                self._guard.sleep(0.2)
            else:
                return True
        return False


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
