"""What is true of a simulated host: made up, and the same every time except for its load."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from labctl import clock
from labctl.model.result import Fact
from workers.hypervisors.base import HostLoad
from workers.hypervisors.simulated import vm as vms
from workers.hypervisors.simulated.faults import FaultKind
from workers.hypervisors.simulated.world import World

CPUS = 16
MEMORY = 64 * 2**30
_IDLE_SHARE = 0.01
"""What a host without VMs does by itself."""


def host_facts(world: World, host: str) -> Mapping[str, Fact]:
    """Facts of a host, as a driver of real ones gives them. CPU seconds are over all CPUs; sizes are bytes."""
    found = vms.everything(world, host)
    ours = sum(one.mark is not None for one in found)
    now = clock.monotonic()
    busy = _busy_seconds(world, host, now)
    return {
        "simulated": True,
        "hostname": host,
        "host.uuid": host_uuid(host),
        "kernel.version": "6.1.0-simulated",
        "libvirt.version": "simulated",
        "qemu.version": "simulated",
        "cpu.model": "simulated",
        "cpu.architecture": "x86_64",
        "cpu.count": CPUS,
        "cpu.busy_seconds": busy,
        "cpu.idle_seconds": CPUS * now - busy,
        "load.1min": CPUS * world.faults.factor(FaultKind.BUSY, host, otherwise=_IDLE_SHARE),
        "memory.bytes": MEMORY,
        "memory.free_bytes": MEMORY - sum(one.shape.memory for one in found),
        "vms.running": len(found),
        "vms.ours": ours,
        "vms.foreign": len(found) - ours,
    }


def host_load(world: World, host: str) -> HostLoad:
    """What a host is doing now. Its network is idle between transfers."""
    busy = world.faults.factor(FaultKind.BUSY, host, otherwise=_IDLE_SHARE)
    running = frozenset(one.uuid for one in vms.everything(world, host) if not one.paused)
    return HostLoad(cpu=busy, load=busy, network=0.0, running=running)


def host_uuid(host: str) -> str:
    """The UUID of a host, always the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"simulated:///{host}"))


def _busy_seconds(world: World, host: str, now: float) -> float:
    """CPU seconds since the clock's zero: a little all the time, and what the faults `busy` add."""
    busy = CPUS * now * _IDLE_SHARE
    for fault in world.faults.spans(FaultKind.BUSY, host):
        busy += CPUS * fault.factor * max(0.0, min(now, fault.end) - fault.start)
    return busy
