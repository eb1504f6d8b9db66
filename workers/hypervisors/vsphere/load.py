"""What an ESXi host is doing, without asking it anything: from what the vCenter has heard of it already.

Hosts tell their vCenter averages over 20 s, so what is told is that old, and a load that has just begun doesn't show yet.
Sources: `HostListSummaryQuickStats`; `PerformanceManager`, counters `net.usage.average` (KB/s) and
`rescpu.runav1.latest` (processors in use over a minute, in ten-thousandths of one).
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from pyVmomi import vim, vmodl

from workers.hypervisors.base import HostLoad
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import related
from workers.hypervisors.vsphere.places import HostPlace, Places

INTERVAL_SECONDS = 20
"""The realtime interval of hosts, of which the newest average is taken."""

_NETWORK, _RUNNING = "net.usage.average", "rescpu.runav1.latest"

_COUNTERS: WeakKeyDictionary[Session, dict[str, int]] = WeakKeyDictionary()
_ASKING = threading.Lock()


def host_load(places: Places, host: str) -> HostLoad:
    """What a host is doing, by three calls. `load` and `network` are None where the vCenter keeps no such counter."""
    place, row = places.look(host, ("summary.hardware", "summary.quickStats"))
    hardware, quick = row["summary.hardware"], row["summary.quickStats"]
    capacity = hardware.cpuMhz * hardware.numCpuCores
    busy = (quick.overallCpuUsage or 0) / capacity if capacity else 0.0
    counted = _counted(place)
    running = counted.get(_RUNNING)
    network = counted.get(_NETWORK)
    return HostLoad(
        cpu=min(1.0, max(0.0, busy)),
        running=running_vms(place),
        load=running / 10_000 / max(1, hardware.numCpuThreads) if running is not None else None,
        network=network * 1024 * 8 if network is not None else None,
    )


def running_vms(place: HostPlace) -> frozenset[str]:
    """Instance UUIDs of the VMs that run on a host; suspended ones don't."""
    rows = related(place.session, place.host, "vm", vim.VirtualMachine, ("config.instanceUuid", "runtime.powerState"))
    return frozenset(
        str(row["config.instanceUuid"])
        for row in rows
        if str(row["runtime.powerState"]) == "poweredOn" and row["config.instanceUuid"]
    )


def _counted(place: HostPlace) -> dict[str, float]:
    """The newest averages of a host by the names of their counters, of those that the vCenter has. Never negative."""
    session = place.session
    wanted = {number: name for name, number in _numbers(session).items() if name in (_NETWORK, _RUNNING)}
    if not wanted:
        return {}
    metrics = [vim.PerformanceManager.MetricId(counterId=number, instance="") for number in wanted]
    spec = vim.PerformanceManager.QuerySpec(
        entity=place.host, metricId=metrics, intervalId=INTERVAL_SECONDS, maxSample=1
    )
    try:
        answers = session.content.perfManager.QueryPerf(querySpec=[spec])
    except (vmodl.fault.InvalidArgument, vmodl.fault.NotSupported):
        return {}
    series: list[Any] = [one for answer in answers or () for one in answer.value or ()]
    return {wanted[one.id.counterId]: max(0.0, float(one.value[-1])) for one in series if one.value}


def _numbers(session: Session) -> dict[str, int]:
    """The numbers that this vCenter gives its counters, which it is asked for once."""
    with _ASKING:
        if session not in _COUNTERS:
            _COUNTERS[session] = {
                f"{one.groupInfo.key}.{one.nameInfo.key}.{one.rollupType}": one.key
                for one in session.content.perfManager.perfCounter or ()
            }
        return _COUNTERS[session]
