"""What a run must have for itself: its hosts, and the physical machines that they are on."""

from __future__ import annotations

from labctl.model.lab import Lab
from labctl.model.order import Placement


def machines_of(lab: Lab) -> int:
    """How many physical machines have hosts: as many attempts at once there can be at the most."""
    return max(1, len({host.machine for host in lab.hosts.values()}))


def resources_of(placement: Placement, lab: Lab) -> frozenset[str]:
    """Names of everything that an attempt leases: `host:a`, `machine:blade-1`.

    Two hosts on one physical machine would disturb each other's measurements, so the machine is leased too.
    """
    found: set[str] = set()
    for name in placement.hosts:
        if name in lab.hosts:
            found |= {f"host:{name}", f"machine:{lab.hosts[name].machine}"}
        else:
            found |= {f"host:{name}", f"machine:{lab.machines[name].machine}"}
    return frozenset(found)
