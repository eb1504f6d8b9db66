"""The expansion of a `simulated:` section into a whole lab that only pretends: nothing of it is ever connected to.

The engine, the plan and the attempts see what they would see of real machines: addresses, migration paths, an image, a
way into every host. Each host is a physical machine of its own, so that as many runs go on side by side as there are
hosts. The addresses come out of 198.18.0.0/15, which RFC 2544 (appendix C.2.2) sets aside for benchmarking:

| network | who |
|---|---|
| 198.18.0.0/16, data | hosts and machines from 198.18.0.1 up, guests 198.18.128.0 to 198.18.255.254 |
| 198.19.0.0/17, migration | hosts, in the same order |
| 198.19.128.0/17, management | hosts and machines, in the same order |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from itertools import permutations
from pathlib import Path, PurePosixPath

from labctl.errors import SpecError
from labctl.model.lab import (
    ChannelKind,
    Host,
    Image,
    ImageKind,
    Lab,
    Limits,
    Machine,
    Network,
    SecretRef,
    SimulatedLayout,
    SshAccess,
)
from labctl.model.nic import NIC_MODELS, Hypervisor
from labctl.model.scenario import OTHER_HOST, OWN_HOST
from labctl.spec.embedded import DATA_BRIDGE, DATA_NETWORK, PROBE_IMAGE

MOST_MEMBERS = 500
"""Hosts and plain machines together. Every two hosts have a migration path, so a lab grows with the square of them."""

DATA = IPv4Network("198.18.0.0/16")
"""The network that transfers pretend to be on."""
GUESTS = (DATA[DATA.num_addresses // 2], DATA[-2])
"""First and last address of guests in it."""
_MIGRATION = IPv4Network("198.19.0.0/17")
_MANAGEMENT = IPv4Network("198.19.128.0/17")


@dataclass(frozen=True, kw_only=True)
class SimulatedSpec:
    """The `simulated:` section of a lab file. `seed` decides how the hosts differ and how their figures scatter."""

    hosts: tuple[str, ...]
    machines: tuple[str, ...] = ()
    seed: int = SimulatedLayout.seed
    directory: PurePosixPath | None = None
    """Where hosts, VMs and links are kept as files; by default `default_directory`."""
    hypervisor: Hypervisor = Hypervisor.KVM
    host_facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


def default_directory(lab: str) -> PurePosixPath:
    """`simulated/LAB` in the state directory, so that labs of one name in two state directories share nothing.

    That directory is `$LABCTL_STATE`, which every command sets to what `--state` says, else `$XDG_STATE_HOME/labctl`, by
    default below `~/.local/state` (XDG Base Directory Specification).
    """
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    state = Path(os.environ.get("LABCTL_STATE") or f"{home}/labctl").expanduser().absolute()
    return PurePosixPath(state) / "simulated" / lab


def expand_simulated(name: str, site: str, simulated: SimulatedSpec) -> Lab:
    """The whole lab that a simulated section stands for. Raises `SpecError` for members that can't be."""
    _check(simulated)
    directory = simulated.directory or default_directory(name)
    numbers = {member: number for number, member in enumerate((*simulated.hosts, *simulated.machines), start=1)}

    def address(member: str) -> IPv4Interface:
        return IPv4Interface((DATA[numbers[member]], DATA.prefixlen))

    def ssh(member: str) -> SshAccess:
        return SshAccess(
            address=str(_MANAGEMENT[numbers[member]]),
            user="root",
            key=SecretRef(scheme="file", locator=str(directory / "no-key")),
            known_hosts=str(directory / "no-known-hosts"),
        )

    hosts = {
        host: Host(
            name=host,
            hypervisor=simulated.hypervisor,
            uri=f"simulated:///{host}",
            machine=host,
            address=address(host),
            migration_address=_MIGRATION[numbers[host]],
            ssh=ssh(host),
            facts=simulated.host_facts.get(host, {}),
        )
        for host in simulated.hosts
    }
    return Lab(
        name=name,
        site=site,
        hosts=hosts,
        machines={
            machine: Machine(name=machine, address=address(machine), ssh=ssh(machine), machine=machine)
            for machine in simulated.machines
        },
        networks={DATA_NETWORK: _network()},
        images={PROBE_IMAGE: _image(directory, simulated.hypervisor)},
        migration_pairs=frozenset(permutations(simulated.hosts, 2)),
        test_network=DATA_NETWORK,
        limits=simulated.limits,
        simulated=SimulatedLayout(directory=directory, seed=simulated.seed),
    )


def _network() -> Network:
    return Network(name=DATA_NETWORK, bridge=DATA_BRIDGE, guest_range=GUESTS, prefix_length=DATA.prefixlen)


def _image(directory: PurePosixPath, hypervisor: Hypervisor) -> Image:
    """A guest that boots at once and has a driver for every emulated adapter of its hypervisor."""
    models = (model for model in NIC_MODELS.values() if hypervisor in model.hypervisors and not model.passthrough)
    return Image(
        name=PROBE_IMAGE,
        kind=ImageKind.KERNEL,
        channel=ChannelKind.QEMU_AGENT,
        kernel=str(directory / "no-kernel"),
        initrd=str(directory / "no-initrd"),
        generation=1,
        drivers=frozenset(model.name for model in models),
    )


def _check(simulated: SimulatedSpec) -> None:
    members = (*simulated.hosts, *simulated.machines)
    if len(set(members)) != len(members):
        twice = sorted({member for member in members if members.count(member) > 1})
        raise SpecError(f"Two members of the simulated lab have one name: {', '.join(twice)}.", todo="Rename one.")
    if OWN_HOST in members or OTHER_HOST in members:
        raise SpecError(f"{OWN_HOST} and {OTHER_HOST} can't be names: they have a meaning of their own (see `peer`).")
    if len(members) > MOST_MEMBERS:
        raise SpecError(
            f"The simulated lab has {len(members)} members.", todo=f"Name {MOST_MEMBERS} at most, hosts and machines."
        )
    strangers = sorted(set(simulated.host_facts) - set(simulated.hosts))
    if strangers:
        raise SpecError(
            f"Facts are given for hosts that the simulated lab doesn't have: {', '.join(strangers[:5])}.",
            todo=f"It has {', '.join(simulated.hosts[:5])}{', ...' if len(simulated.hosts) > 5 else ''}.",
        )
