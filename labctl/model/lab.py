"""The lab: hosts, plain machines, networks, images, limits; which hosts can migrate to which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface
from pathlib import PurePosixPath

from labctl.model.nic import Hypervisor


class ChannelKind(StrEnum):
    """How commands reach the inside of an endpoint."""

    QEMU_AGENT = "qemu-agent"
    SSH = "ssh"


class ImageKind(StrEnum):
    """How a VM gets its operating system."""

    KERNEL = "kernel"
    """Kernel, initramfs and command line; all in RAM, no disk, so it migrates without shared storage."""
    DISK = "disk"
    """A disk image that is never written to: every VM gets a qcow2 overlay of its own."""


class Accelerator(StrEnum):
    """How QEMU runs guest code. `auto` is decided by booting a probe guest, never by looking at /dev/kvm."""

    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


@dataclass(frozen=True, kw_only=True)
class SecretRef:
    """Where a secret is, never the secret: `file:PATH`, `env:NAME` or `keyring:SERVICE/USER`."""

    scheme: str
    locator: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.locator}"


@dataclass(frozen=True, kw_only=True)
class SshAccess:
    """How to reach a machine by SSH. Host keys are always checked against `known_hosts`."""

    address: str
    user: str
    key: SecretRef
    known_hosts: str
    port: int = 22


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that VMs are attached to.

    `bridge` is the Linux bridge (KVM), port group or virtual switch of this network on every host. With static
    addressing a VM gets a free address of `guest_range` (first and last address, both included).
    """

    name: str
    bridge: str
    mtu: int = 1500
    addressing: str = "static"
    guest_range: tuple[IPv4Address, IPv4Address] | None = None
    prefix_length: int = 24


@dataclass(frozen=True, kw_only=True)
class Host:
    """One hypervisor machine.

    `machine` names the physical machine: hosts of one machine are never used at the same time, because the one would
    disturb the other. `address` is the host's own address on the test network (None: it can't be an endpoint) and
    `migration_address` the one that incoming migrations are sent to. `facts` are what the user declares of the host
    (driver, firmware, teaming, ...): factors `host.NAME` are compared with them.
    """

    name: str
    hypervisor: Hypervisor
    uri: str
    machine: str
    address: IPv4Interface | None = None
    migration_address: IPv4Address | None = None
    ssh: SshAccess | None = None
    accelerator: Accelerator = Accelerator.AUTO
    devices: tuple[str, ...] = ()
    """PCI addresses (`0000:3b:00.0`) that may be passed through as `vt-d`."""
    virtual_functions: tuple[str, ...] = ()
    """PCI addresses of virtual functions that may be passed through as `sr-iov`."""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A plain machine that is no hypervisor, an endpoint over SSH."""

    name: str
    address: IPv4Interface
    ssh: SshAccess
    machine: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a VM boots. Paths are on the hosts. `channel` says how commands reach a guest of it."""

    name: str
    kind: ImageKind
    channel: ChannelKind = ChannelKind.QEMU_AGENT
    kernel: str = ""
    initrd: str = ""
    command_line: str = ""
    disk: str = ""
    ssh_user: str = "root"
    ssh_key: SecretRef | None = None
    drivers: frozenset[str] = frozenset()
    """NIC models that the guest has a driver for; empty means: not known, assume all."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the lab allows at once."""

    vms_per_host: int = 8
    migrations_at_once: int = 1


@dataclass(frozen=True, kw_only=True)
class QuietLimits:
    """What a host may be doing beside a measurement; None: not looked at."""

    cpu: float | None = None
    """Share of all its cores that are busy, 0 to 1."""
    load: float | None = None
    """Load average over one minute, per core."""
    network: int | None = None
    """bit/s over all its physical interfaces, both ways."""
    other_vms: int | None = None
    """Running VMs that are not of the attempt."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedLayout:
    """Where the embedded lab keeps itself on this machine (see `labctl lab up`)."""

    directory: PurePosixPath
    uplink: IPv4Interface
    """The address of this machine on the management network of the embedded lab."""


@dataclass(frozen=True, kw_only=True)
class SimulatedLayout:
    """A lab that only pretends: its hosts, VMs and links are files in a directory, its figures no measurements."""

    directory: PurePosixPath
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Lab:
    """The whole inventory. `migration_pairs` holds every ordered pair (source, destination) that has a path."""

    name: str
    site: str
    hosts: Mapping[str, Host]
    machines: Mapping[str, Machine]
    networks: Mapping[str, Network]
    images: Mapping[str, Image]
    migration_pairs: frozenset[tuple[str, str]]
    test_network: str
    limits: Limits = field(default_factory=Limits)
    embedded: EmbeddedLayout | None = None
    simulated: SimulatedLayout | None = None
    quiet: QuietLimits | None = None

    def network(self) -> Network:
        """The network that transfers are measured on."""
        return self.networks[self.test_network]
