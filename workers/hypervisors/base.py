"""What every driver of a hypervisor offers. The words are those of `labctl.model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Protocol

from labctl.model.lab import Image, Network
from labctl.model.order import MigrationOrder, VmShape
from labctl.model.result import Fact, MigrationSample
from workers.channels.base import Channel

NAME_PREFIX = "labctl-"
"""Every VM of ours has a name that begins so. The prefix alone never justifies a deletion."""


@dataclass(frozen=True, kw_only=True)
class OwnershipMark:
    """Who made a VM, kept in the hypervisor beside the VM. Deleting needs this mark and a record in the store."""

    lab: str
    campaign: int
    run: int
    attempt: int
    role: str
    """`sender`, `receiver`, or `probe`."""
    store: str
    """The identity of the store that holds the record, so that two stores never clean each other's VMs."""


@dataclass(frozen=True, kw_only=True)
class VmRequest:
    """A VM that should be there: its name, what it is asked to be, and the mark it carries.

    `passthrough` is the PCI address of the device for `vt-d` and `sr-iov`, empty for others.
    """

    name: str
    uuid: str
    shape: VmShape
    image: Image
    network: Network
    address: IPv4Interface | None
    """Static address; None with DHCP."""
    mac: str
    mark: OwnershipMark
    passthrough: str = ""


@dataclass(frozen=True, kw_only=True)
class Vm:
    """A VM that was created."""

    name: str
    uuid: str
    host: str
    """Where it was created. Where it runs now is asked of the hypervisors (`VmDriver.locate`)."""
    mac: str
    address: IPv4Interface | None


@dataclass(frozen=True, kw_only=True)
class OwnedVm:
    """A VM that carries an ownership mark, as found on a host."""

    name: str
    uuid: str
    host: str
    active: bool
    mark: OwnershipMark


@dataclass(frozen=True, kw_only=True)
class MigrationOutcome:
    """How a migration ended. Milliseconds and bytes are the hypervisor's; None is unknown. Times are epoch seconds."""

    completed: bool
    started: float
    ended: float
    error: str = ""
    error_kind: str = ""
    """`deadline`, `refused` (before it began), `failed` (on the way), `unreachable`, `cancelled`; empty: completed."""
    total_ms: int | None = None
    downtime_ms: int | None = None
    no_downtime: str = ""
    """Why a migration that completed has no `downtime_ms`."""
    setup_ms: int | None = None
    bytes_moved: int | None = None
    iterations: int | None = None
    stats_source: str = ""
    queued_ms: int | None = None
    """How long the hypervisor let it wait for its turn, which is no part of `total_ms`."""
    samples: tuple[MigrationSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """What a host was doing for a moment. None is unknown: the lab gives no way to learn it."""

    cpu: float
    """Share of all its cores that were busy, 0 to 1."""
    running: frozenset[str] = frozenset()
    """UUIDs of the VMs that ran, whoever's they are; paused ones don't run."""
    load: float | None = None
    """Load average over one minute, per core. It remembers what ran before, labctl's own work too."""
    network: float | None = None
    """bit/s over all its physical interfaces, both ways."""


@dataclass(frozen=True, kw_only=True)
class Lack:
    """Something that a host lacks for the work of labctl: a right, a network, a datastore, an image."""

    what: str
    """In a sentence, with the object that it is missing on."""
    todo: str = ""


class VmDriver(Protocol):
    """VMs on the hosts of one hypervisor kind in one lab. Connections are made lazily, in the process that uses them.

    Every method has a deadline of its own or takes one; errors are `LabError` with the host named.
    """

    def create(self, host: str, request: VmRequest, *, timeout: float) -> Vm:
        """Create and start a VM. `LabError`: `name-taken`, `mac-taken` (somebody else's VM, untouched),
        `nic-unsupported`, `host-unreachable`, `create-failed`. Nothing is left behind on failure."""

    def channel(self, vm: Vm, image: Image) -> Channel:
        """The channel into the VM, wherever it runs now."""

    def address(self, vm: Vm, *, timeout: float) -> IPv4Address:
        """The VM's address on the test network: the one it was created with, or with DHCP the one that its adapter got,
        waited for. `LabError` (`no-guest-address`) when it has none in time; link-local ones are none."""

    def locate(self, vm: Vm) -> str | None:
        """The host on which the VM is running now, by asking every host it may be on; None when on none."""

    def read_back(self, vm: Vm) -> Mapping[str, Fact]:
        """What was really created: `nic.model`, `nic.mac`, `nic.backend`, `nic.queues`, `machine`, `accelerator`,
        `vcpus`, `memory_bytes`, `domain_xml`, `qemu_arguments`, ... as the hypervisor and its process say."""

    def migrate(
        self,
        vm: Vm,
        destination: str,
        order: MigrationOrder,
        *,
        on_sample: Callable[[MigrationSample], None] | None = None,
    ) -> MigrationOutcome:
        """Move a running VM. Never raises for a migration that failed: its outcome says so, after both sides are clean.

        Past `order.deadline` it is aborted (`error_kind` `deadline`) and the VM is on its source again.
        """

    def pause(self, vm: Vm) -> None:
        """Stop its virtual CPUs, so that it costs nothing until `unpause`."""

    def unpause(self, vm: Vm) -> None:
        """Let a paused VM go on."""

    def destroy(self, vm: Vm) -> None:
        """End the VM on whichever host it is, and remove all that was made for it. No error when it is gone already.

        A VM whose mark is missing or names another store, campaign or lab is never touched: `LabError` (`not-ours`).
        """

    def owned(self, host: str) -> tuple[OwnedVm, ...]:
        """All VMs on the host that carry a mark of ours, whichever store they name."""

    def host_facts(self, host: str) -> Mapping[str, Fact]:
        """Versions, kernel, CPU, memory, load, other running VMs of a host."""

    def load(self, host: str) -> HostLoad:
        """What the host is doing, watched for less than a second in which nobody asks it anything."""

    def check_migration(self, source: str, destination: str) -> str:
        """Why a VM can't be migrated between two hosts, in a sentence; empty when nothing speaks against it."""

    def incidents(self, vm: Vm, *, since: float) -> tuple[str, ...]:
        """What others did to the VM since then (epoch seconds) as far as the hypervisor remembers it, in sentences: moved
        by DRS, restarted by HA, reconfigured. Empty where nothing happened or nobody remembers."""

    def lacks(self, host: str) -> tuple[Lack, ...]:
        """What the host lacks for the work of labctl, all of it at once. Starts and changes nothing."""

    def close(self) -> None:
        """Close all connections."""
