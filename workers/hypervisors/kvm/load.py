"""What a KVM host is doing: its processors and VMs as libvirt says, load average and network over SSH when it has that.

Two looks, a moment apart, in which nobody asks the host anything: what asking costs (a connection, a shell) would else be
taken for load, above all where workers and hosts share one machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import libvirt

from workers.channels.base import Channel
from workers.guard import Guard
from workers.hypervisors.base import HostLoad
from workers.hypervisors.kvm.connection import Connections, lab_error

WINDOW_SECONDS = 0.5
"""How long a host is watched. libvirt's figures have a resolution of 0.01 s of each core."""
COMMAND_SECONDS = 10.0

# No programs, only what the shell does itself. Kinds: `device` is hardware, or what a hypervisor below gives as such.
_COUNTERS = """
read -r up rest < /proc/uptime; echo "uptime $up"
read -r load rest < /proc/loadavg; echo "load $load"
for at in /sys/class/net/*; do
  kind=other
  if [ -e "$at/device" ]; then kind=device
  elif [ -e "$at/bridge" ]; then kind=bridge
  elif [ -e "$at/tun_flags" ]; then kind=tap
  fi
  rx=0; tx=0
  read -r rx < "$at/statistics/rx_bytes"; read -r tx < "$at/statistics/tx_bytes"
  echo "interface ${at##*/} $kind $rx $tx"
done
"""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What a host has counted up to a moment: `uptime` in seconds, `octets` over its interfaces, both ways."""

    uptime: float
    load: float
    octets: int


def host_load(connections: Connections, host: str, channel: Channel | None, guard: Guard) -> HostLoad:
    """What a host does for a moment. Raises `LabError` (`host-unreachable`, `libvirt`, and those of a channel)."""
    before = _counters(channel) if channel is not None else None
    try:
        busy, total = connections.read(host, _processor_seconds)
        guard.sleep(WINDOW_SECONDS)
        busy_later, total_later = connections.read(host, _processor_seconds)
        cores, running = connections.read(host, _cores_and_vms)
    except libvirt.libvirtError as error:
        raise lab_error(host, f"What host {host} is doing can't be read.", error) from error
    after = _counters(channel) if channel is not None else None
    return HostLoad(
        cpu=min(1.0, max(0.0, (busy_later - busy) / (total_later - total))) if total_later > total else 0.0,
        running=running,
        load=after.load / cores if after is not None else None,
        network=_rate(before, after) if before is not None and after is not None else None,
    )


def parse_counters(text: str) -> Counters:
    """What the script has printed.

    All hardware counts, bonds and bridges on top of it don't. Where there is no hardware, as in a network namespace, all
    counts but the loopback, bridges, and the taps of VMs.
    """
    words = [line.split() for line in text.splitlines()]
    values = {line[0]: line[1] for line in words if len(line) == 2}
    interfaces = [line[1:] for line in words if len(line) == 5 and line[0] == "interface"]
    hardware = [one for one in interfaces if one[1] == "device"]
    counted = hardware or [one for one in interfaces if one[1] == "other" and one[0] != "lo"]
    return Counters(
        uptime=float(values["uptime"]),
        load=float(values["load"]),
        octets=sum(int(received) + int(sent) for _, _, received, sent in counted),
    )


def _counters(channel: Channel) -> Counters:
    result = channel.run(["/bin/sh", "-c", _COUNTERS], timeout=COMMAND_SECONDS)
    said = result.require(f"Reading the load of {channel.endpoint}").stdout
    return parse_counters(said.decode(errors="replace"))


def _rate(before: Counters, after: Counters) -> float:
    """bit/s between two looks. A counter that began anew in between counts as nothing moved."""
    seconds = after.uptime - before.uptime
    return 8 * max(0, after.octets - before.octets) / seconds if seconds > 0 else 0.0


def _processor_seconds(connection: libvirt.virConnect) -> tuple[float, float]:
    """(busy, all) seconds of all processors since the host started."""
    nanoseconds = connection.getCPUStats(libvirt.VIR_NODE_CPU_STATS_ALL_CPUS)
    busy = nanoseconds.get("kernel", 0) + nanoseconds.get("user", 0)
    return busy / 1e9, sum(nanoseconds.values()) / 1e9


def _cores_and_vms(connection: libvirt.virConnect) -> tuple[int, frozenset[str]]:
    """How many processors there are, and the VMs whose processors run; paused ones do nothing."""
    running = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_RUNNING)
    return max(1, connection.getInfo()[2]), frozenset(domain.UUIDString() for domain in running)
