"""The network of the embedded lab as values: which namespaces there are and what is in each. Pure.

A star, so that any number of hosts makes no loop:

    this machine                     switch namespace                      host namespace
      labctl-XXXXXXXX ──── mgmt-0 ─┐ bridge management ┌─ mgmt-N ──────────── mgmt0        (sshd)
                                   └───────────────────┘
                                     bridge migration  ── migr-N ──────────── migration0   (QEMU to QEMU)
                                     bridge data       ── data-N ──────────── data0 ─ bridge labctl0 ─ taps

A plain machine has mgmt0, and its data address on data0. Hardware addresses follow from names, so that a part which is
remade is found under the address that its neighbours remember.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Interface

from labctl.errors import LabError
from labctl.model.lab import EmbeddedLayout, Lab


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface. `peer` is its other end in the switch namespace; without one it is a bridge."""

    name: str
    mac: str
    mtu: int
    peer: str = ""
    master: str = ""
    address: IPv4Interface | None = None


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """One network namespace, by its name for `ip netns`, with the interfaces that make it complete.

    `attachments` are the ends of its veth pairs in the switch, each with its bridge there.
    """

    name: str
    interfaces: tuple[Interface, ...]
    attachments: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """All namespaces of a lab. `uplink` is the only interface of ours in the namespace of this machine."""

    switch: Namespace
    members: Mapping[str, Namespace]
    uplink: Interface
    mtu: int


SWITCH_DATA = "data"
SWITCH_MIGRATION = "migration"
SWITCH_MANAGEMENT = "management"
UPLINK_PORT = "mgmt-0"


def namespace_prefix(lab: Lab) -> str:
    """With this all namespaces of a lab begin. No name has a dot, so no lab's prefix begins another's names."""
    return f"labctl-{lab.name}."


def hostname(lab: Lab, member: str) -> str:
    """The host name that a member has inside."""
    return f"labctl-{lab.name}-{member}"


def layout(lab: Lab) -> EmbeddedLayout:
    """The layout of an embedded lab, or `LabError` (`not-embedded`) for one with hosts of its own."""
    if lab.embedded is None:
        raise LabError(
            f"The lab {lab.name!r} is not an embedded one, so there is nothing to bring up or down.",
            kind="not-embedded",
            why="Its file has no `embedded:` section; its hosts are real machines.",
            todo="Give the file of an embedded lab, for example configs/labs/local.yaml.",
        )
    return lab.embedded


def topology(lab: Lab) -> Topology:
    """The namespaces and interfaces of an embedded lab."""
    uplink = layout(lab).uplink
    mtu = lab.network().mtu
    prefix = namespace_prefix(lab)

    def mac(owner: str, interface: str) -> str:
        digits = sha256(f"{lab.name}/{owner}/{interface}".encode()).hexdigest()[:10]
        return ":".join(("02", *(digits[at : at + 2] for at in range(0, 10, 2))))

    def management(member: str, address: str, number: int) -> Interface:
        own = IPv4Interface((IPv4Address(address), uplink.network.prefixlen))
        return Interface(name="mgmt0", mac=mac(member, "mgmt0"), mtu=1500, peer=f"mgmt-{number}", address=own)

    members: dict[str, Namespace] = {}
    for number, host in enumerate(lab.hosts.values(), start=1):
        if host.ssh is None or host.address is None or host.migration_address is None:
            raise ValueError(f"host {host.name} of an embedded lab lacks an address")
        bridge = lab.network().bridge
        migration = IPv4Interface((host.migration_address, uplink.network.prefixlen))
        members[host.name] = Namespace(
            name=prefix + host.name,
            interfaces=(
                Interface(name=bridge, mac=mac(host.name, bridge), mtu=mtu, address=host.address),
                Interface(name="data0", mac=mac(host.name, "data0"), mtu=mtu, peer=f"data-{number}", master=bridge),
                Interface(
                    name="migration0",
                    mac=mac(host.name, "migration0"),
                    mtu=1500,
                    peer=f"migr-{number}",
                    address=migration,
                ),
                management(host.name, host.ssh.address, number),
            ),
            attachments={
                f"data-{number}": SWITCH_DATA,
                f"migr-{number}": SWITCH_MIGRATION,
                f"mgmt-{number}": SWITCH_MANAGEMENT,
            },
        )
    for number, machine in enumerate(lab.machines.values(), start=len(lab.hosts) + 1):
        data = Interface(
            name="data0", mac=mac(machine.name, "data0"), mtu=mtu, peer=f"data-{number}", address=machine.address
        )
        members[machine.name] = Namespace(
            name=prefix + machine.name,
            interfaces=(data, management(machine.name, machine.ssh.address, number)),
            attachments={f"data-{number}": SWITCH_DATA, f"mgmt-{number}": SWITCH_MANAGEMENT},
        )
    return Topology(
        switch=Namespace(
            name=prefix + "switch",
            interfaces=tuple(
                Interface(name=name, mac=mac("switch", name), mtu=mtu if name == SWITCH_DATA else 1500)
                for name in (SWITCH_DATA, SWITCH_MIGRATION, SWITCH_MANAGEMENT)
            ),
            attachments={},
        ),
        members=members,
        uplink=Interface(
            name=f"labctl-{sha256(lab.name.encode()).hexdigest()[:8]}",
            mac=mac("uplink", "uplink"),
            mtu=1500,
            peer=UPLINK_PORT,
            address=uplink,
        ),
        mtu=mtu,
    )
