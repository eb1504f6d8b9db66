"""What a run must have for itself: its hosts, the physical machines that they are on, and a turn to migrate."""

from __future__ import annotations

from collections.abc import Iterable

from labctl.model.lab import Lab
from labctl.model.order import Placement

_MACHINE = "machine:"


def machines_of(lab: Lab) -> int:
    """How many physical machines have hosts: as many attempts at once there can be at the most."""
    return max(1, len({host.machine for host in lab.hosts.values()}))


def resources_of(placement: Placement, lab: Lab) -> frozenset[str]:
    """Names of everything that an attempt leases in a placement: `host:a`, `machine:blade-1`.

    Two hosts on one physical machine would disturb each other's measurements, so the machine is leased too.
    """
    found: set[str] = set()
    for name in placement.hosts:
        machine = lab.hosts[name].machine if name in lab.hosts else lab.machines[name].machine
        found |= {host_resource(name), machine_resource(machine)}
    return frozenset(found)


def host_resource(host: str) -> str:
    """The name under which a host, or a plain machine as an endpoint, is leased."""
    return f"host:{host}"


def machine_resource(machine: str) -> str:
    """The name under which a physical machine is leased."""
    return f"{_MACHINE}{machine}"


def migration_slots(lab: Lab) -> tuple[str, ...]:
    """Names of which a run that migrates leases any one: there are as many as the lab allows such runs at once."""
    return tuple(f"migration:{number}" for number in range(1, lab.limits.migrations_at_once + 1))


def machines_in(resources: Iterable[str]) -> int:
    """How many physical machines are among these resources."""
    return sum(name.startswith(_MACHINE) for name in resources)
