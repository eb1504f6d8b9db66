"""The expansion of an `embedded:` section into a whole lab: addresses, sockets, keys, pairs. Pure.

Addresses come out of 198.18.0.0/15, which RFC 2544 (appendix C.2.2) sets aside for benchmarking, so that they meet no
real network. A lab takes one block of 1024 addresses (a /22), chosen by its name unless the file names one:

| part of the block | network | who |
|---|---|---|
| first /23 | data | hosts and machines from .0.1 up, guests .1.1 to .1.254 |
| third /24 | migration | hosts, the same last number |
| fourth /24 | management | hosts and machines, the same last number; this machine has .254 |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from itertools import permutations
from pathlib import PurePosixPath
from urllib.parse import quote

from labctl.errors import SpecError
from labctl.model.lab import (
    Accelerator,
    ChannelKind,
    EmbeddedLayout,
    Host,
    Image,
    ImageKind,
    Lab,
    Limits,
    Machine,
    Network,
    SecretRef,
    SshAccess,
)
from labctl.model.nic import Hypervisor

BENCHMARK_NETWORK = IPv4Network("198.18.0.0/15")
"""Set aside for benchmarks by RFC 2544."""

BLOCK_PREFIX_LENGTH = 22
"""One lab takes a block of this size."""

DATA_NETWORK = "data"
"""The name of the network that transfers are measured on."""

DATA_BRIDGE = "labctl0"
"""The bridge of every host that carries the host's data address and the taps of its VMs."""

PROBE_IMAGE = "probe"
"""The name of the image of the probe guest."""

PROBE_COMMAND_LINE = (
    "quiet loglevel=1 panic=-1 net.ifnames=0 tsc=reliable no_timer_check cryptomgr.notests rodata=off "
    "initcall_blacklist=init_kprobe_trace,tracer_init_tracefs"
)
"""Kernel command line of the probe guest; what a VM needs beyond it is the hypervisor driver's to add."""

PROBE_DRIVERS = frozenset({"virtio", "e1000", "e1000e", "rtl8139", "vmxnet3", "igb"})
"""NIC models that the probe guest has a driver for."""

MOST_MEMBERS = 200
"""Hosts and plain machines together."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_LONGEST_SOCKET = 107
"""Bytes in the path of a Unix socket on Linux, less the closing zero (unix(7))."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedSpec:
    """The `embedded:` section of a lab file.

    `directory` defaults to `/run/labctl/NAME`; `subnet` (a /22 or wider; its first 1024 addresses are used) to a block
    of 198.18.0.0/15 chosen by the lab's name; `mtu` is that of the data network in bytes.
    """

    hosts: tuple[str, ...]
    machines: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    directory: PurePosixPath | None = None
    accelerator: Accelerator = Accelerator.AUTO
    host_facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    subnet: IPv4Network | None = None
    mtu: int = 1500


def expand_embedded(name: str, site: str, embedded: EmbeddedSpec) -> Lab:
    """The whole lab that an embedded section stands for. Raises `SpecError` for names or networks that can't be."""
    _check(name, embedded)
    directory = _directory(name, embedded)
    block = _block(name, embedded.subnet)
    data, migration, management = _networks(block)
    numbers = {member: number for number, member in enumerate((*embedded.hosts, *embedded.machines), start=1)}

    def interface(network: IPv4Network, member: str) -> IPv4Interface:
        return IPv4Interface((network[numbers[member]], network.prefixlen))

    def ssh(member: str) -> SshAccess:
        return SshAccess(
            address=str(management[numbers[member]]),
            user="root",
            key=SecretRef(scheme="file", locator=str(directory / "ssh" / "key")),
            known_hosts=str(directory / "ssh" / "known_hosts"),
        )

    hosts = {
        host: Host(
            name=host,
            hypervisor=Hypervisor.KVM,
            uri=libvirt_uri(directory, host),
            machine=_MACHINE,
            address=interface(data, host),
            migration_address=migration[numbers[host]],
            ssh=ssh(host),
            accelerator=embedded.accelerator,
            facts=embedded.host_facts.get(host, {}),
        )
        for host in embedded.hosts
    }
    machines = {
        machine: Machine(name=machine, address=interface(data, machine), ssh=ssh(machine), machine=_MACHINE)
        for machine in embedded.machines
    }
    return Lab(
        name=name,
        site=site,
        hosts=hosts,
        machines=machines,
        networks={DATA_NETWORK: _data_network(data, embedded.mtu)},
        images={PROBE_IMAGE: _probe_image(directory)},
        migration_pairs=frozenset(permutations(embedded.hosts, 2)),
        test_network=DATA_NETWORK,
        limits=embedded.limits,
        embedded=EmbeddedLayout(directory=directory, uplink=IPv4Interface((management[254], management.prefixlen))),
    )


_MACHINE = "embedded"
"""All members share one physical machine, so that no two of them are used by two runs at the same time."""


def libvirt_uri(directory: PurePosixPath, host: str) -> str:
    """The connection URI of a host's libvirtd, by its socket in the lab's directory."""
    return f"qemu+unix:///system?socket={quote(str(libvirt_socket(directory, host)))}"


def libvirt_socket(directory: PurePosixPath, host: str) -> PurePosixPath:
    """The socket of a host's libvirtd, as seen from everywhere on this machine."""
    return directory / "members" / host / "libvirt" / "run" / "libvirt-sock"


def probe_directory(directory: PurePosixPath) -> PurePosixPath:
    """Where the lab's own links to kernel and initramfs of the probe guest are."""
    return directory / "images" / PROBE_IMAGE


def _probe_image(directory: PurePosixPath) -> Image:
    return Image(
        name=PROBE_IMAGE,
        kind=ImageKind.KERNEL,
        channel=ChannelKind.QEMU_AGENT,
        kernel=str(probe_directory(directory) / "kernel"),
        initrd=str(probe_directory(directory) / "initrd"),
        command_line=PROBE_COMMAND_LINE,
        drivers=PROBE_DRIVERS,
    )


def _directory(name: str, embedded: EmbeddedSpec) -> PurePosixPath:
    return embedded.directory or PurePosixPath("/run/labctl") / name


def _data_network(data: IPv4Network, mtu: int) -> Network:
    guests: tuple[IPv4Address, IPv4Address] = (data[257], data[510])
    return Network(name=DATA_NETWORK, bridge=DATA_BRIDGE, mtu=mtu, guest_range=guests, prefix_length=data.prefixlen)


def _networks(block: IPv4Network) -> tuple[IPv4Network, IPv4Network, IPv4Network]:
    data, rest = block.subnets(new_prefix=23)
    migration, management = rest.subnets(new_prefix=24)
    return data, migration, management


def _block(name: str, subnet: IPv4Network | None) -> IPv4Network:
    """The block of 1024 addresses of this lab."""
    if subnet is not None:
        return next(subnet.subnets(new_prefix=BLOCK_PREFIX_LENGTH))
    blocks = 1 << (BLOCK_PREFIX_LENGTH - BENCHMARK_NETWORK.prefixlen)
    index = int.from_bytes(sha256(name.encode()).digest()[:4]) % blocks
    first = BENCHMARK_NETWORK[index << (32 - BLOCK_PREFIX_LENGTH)]
    return IPv4Network((first, BLOCK_PREFIX_LENGTH))


def _check(name: str, embedded: EmbeddedSpec) -> None:
    members = (*embedded.hosts, *embedded.machines)
    for word in (name, *members):
        if not _NAME.fullmatch(word):
            raise SpecError(
                f"{word!r} can't be the name of an embedded lab, host or machine.",
                why="It becomes a host name, so it takes a small letter first, then small letters, digits and hyphens, "
                "24 at most.",
                todo="Choose another name in the lab file.",
            )
    if not embedded.hosts:
        raise SpecError("The embedded lab has no hosts.", todo="Name at least one under `embedded.hosts`.")
    if len(set(members)) != len(members):
        twice = sorted({member for member in members if members.count(member) > 1})
        raise SpecError(f"Two members of the embedded lab have one name: {', '.join(twice)}.", todo="Rename one.")
    if len(members) > MOST_MEMBERS:
        raise SpecError(
            f"The embedded lab has {len(members)} members; {MOST_MEMBERS} have addresses.", todo="Name fewer."
        )
    if "switch" in members:
        raise SpecError("'switch' is the name of the embedded lab's own switch.", todo="Choose another name.")
    strangers = sorted(set(embedded.host_facts) - set(embedded.hosts))
    if strangers:
        raise SpecError(f"Facts are given for hosts that the embedded lab doesn't have: {', '.join(strangers)}.")
    if embedded.subnet is not None and embedded.subnet.prefixlen > BLOCK_PREFIX_LENGTH:
        raise SpecError(
            f"The subnet {embedded.subnet} of the embedded lab is too small.",
            why=f"Data, migration and management networks take a /{BLOCK_PREFIX_LENGTH} together.",
            todo=f"Give a /{BLOCK_PREFIX_LENGTH}, or none: 198.18.0.0/15 is used then.",
        )
    if embedded.directory is not None and not embedded.directory.is_absolute():
        raise SpecError(f"The directory {embedded.directory} of the embedded lab is not an absolute path.")
    for host in embedded.hosts:
        if len(str(libvirt_socket(_directory(name, embedded), host))) > _LONGEST_SOCKET:
            raise SpecError(
                f"The directory {embedded.directory} of the embedded lab has too long a path.",
                why=f"The path of a Unix socket below it takes {_LONGEST_SOCKET} bytes at most.",
                todo="Choose a shorter one, or none: /run/labctl/NAME is used then.",
            )
