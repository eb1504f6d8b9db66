"""What an endpoint has done since it booted: CPU time and bytes of its adapters, in one round trip.

Linux: `/proc/stat` (proc(5); its unit is 1/100 s on every architecture that guests have), and the counters of
`/sys/class/net`. Windows: the same by `Win32_PerfRawData_PerfOS_Processor` and `Get-NetAdapterStatistics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from labctl.model.lab import GuestSystem
from labctl.model.result import EndpointCost
from labctl.model.scenario import Side

_TICKS = 100.0

LINUX_SCRIPT = r"""
read -r up rest < /proc/uptime; echo "uptime $up"
while read -r name user nice system idle wait irq soft steal rest; do
  case $name in
    cpu) echo "cpu $user $nice $system $irq $soft ${steal:-0}" ;;
    cpu*) echo core ;;
    *) break ;;
  esac
done < /proc/stat
for at in /sys/class/net/*; do
  mtu=; rx=; tx=
  read -r mtu < "$at/mtu"; read -r rx < "$at/statistics/rx_bytes"; read -r tx < "$at/statistics/tx_bytes"
  echo "nic ${at##*/} $mtu $rx $tx"
done 2>/dev/null
ip -o addr show | while read -r index name family address rest; do
  case $family in inet*) echo "address $name ${address%/*}" ;; esac
done
"""

WINDOWS_SCRIPT = r"""
$ErrorActionPreference = 'Stop'
$cpu = Get-CimInstance -ClassName Win32_PerfRawData_PerfOS_Processor | Where-Object Name -eq '_Total'
$cores = [Environment]::ProcessorCount
$hundreds = 1e5
$now = [long]($cpu.Timestamp_Sys100NS / $hundreds)
$busy = [long](($cpu.Timestamp_Sys100NS - $cpu.PercentProcessorTime) / $hundreds * $cores)
$invariant = [Globalization.CultureInfo]::InvariantCulture
"uptime " + ($now / 100).ToString('0.00', $invariant)
"cpu $busy 0 0 0 0 0"
1..$cores | ForEach-Object { 'core' }
$names = @{}
foreach ($one in Get-NetAdapter) { $names[$one.ifIndex] = 'if' + $one.ifIndex }
foreach ($one in Get-NetAdapterStatistics) {
  $adapter = Get-NetAdapter -Name $one.Name
  "nic if$($adapter.ifIndex) $($adapter.MtuSize) $($one.ReceivedBytes) $($one.SentBytes)"
}
foreach ($one in Get-NetIPAddress) {
  if ($names.ContainsKey([int]$one.InterfaceIndex)) { "address if$($one.InterfaceIndex) $(($one.IPAddress -split '%')[0])" }
}
"""


def command(system: GuestSystem) -> tuple[str, ...]:
    """The command that prints them on such a system."""
    if system is GuestSystem.WINDOWS:
        return ("powershell.exe", "-NoProfile", "-NonInteractive", "-Command", WINDOWS_SCRIPT)
    return ("/bin/sh", "-c", LINUX_SCRIPT)


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One adapter. Bytes since boot, headers included."""

    name: str
    mtu: int
    received: int
    sent: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What an endpoint printed. `uptime` in seconds; CPU times in seconds over all cores."""

    uptime: float
    busy: float
    stolen: float
    cores: int
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    def adapter(self, address: str) -> Adapter | None:
        """The adapter that has the address."""
        return next((one for one in self.adapters.values() if address in one.addresses), None)

    def ipv6(self, address: str) -> str:
        """The IPv6 address of the adapter with this IPv4 one: a global one if it has any, else a link-local one; or empty."""
        adapter = self.adapter(address)
        found = [IPv6Address(one) for one in adapter.addresses if ":" in one] if adapter is not None else []
        return str(min(found, key=lambda one: one.is_link_local)) if found else ""


def parse(printed: bytes) -> Counters | None:
    """The counters that were printed; None where they can't be read. Never raises."""
    uptime: float | None = None
    cpu: list[float] = []
    cores = 0
    adapters: dict[str, Adapter] = {}
    addresses: dict[str, list[str]] = {}
    for line in printed.decode(errors="replace").splitlines():
        match line.split():
            case ["uptime", seconds]:
                uptime = _number(seconds)
            case ["cpu", *ticks]:
                cpu = [one / _TICKS for one in map(_number, ticks) if one is not None]
            case ["core"]:
                cores += 1
            case ["nic", name, *digits] if len(digits) == 3 and all(map(str.isdecimal, digits)):
                mtu, received, sent = map(int, digits)
                adapters[name] = Adapter(name=name, mtu=mtu, received=received, sent=sent)
            case ["address", name, address] if _is_address(address):
                addresses.setdefault(name.partition("@")[0], []).append(address)
    if uptime is None or len(cpu) != 6:
        return None
    known = {
        name: Adapter(
            name=name, mtu=one.mtu, received=one.received, sent=one.sent, addresses=tuple(addresses.get(name, ()))
        )
        for name, one in adapters.items()
    }
    return Counters(uptime=uptime, busy=sum(cpu[:5]), stolen=cpu[5], cores=cores, adapters=known)


def cost(side: Side, address: str, before: Counters, after: Counters, *, bits: float | None) -> EndpointCost | None:
    """What happened between two readings of one endpoint; None when it was restarted in between.

    A counter that went back (an adapter that was made anew) is not known. `bits` is what the transfer moved.
    """
    seconds = after.uptime - before.uptime
    if seconds < 0:
        return None
    old, new = before.adapter(address), after.adapter(address)
    same = old is not None and new is not None and old.name == new.name
    cpu = _since(before.busy, after.busy)
    return EndpointCost(
        side=side,
        seconds=round(seconds, 3),
        cores=after.cores or None,
        cpu_seconds=cpu,
        stolen_seconds=_since(before.stolen, after.stolen),
        sent_bytes=_more(old.sent, new.sent) if same and old and new else None,
        received_bytes=_more(old.received, new.received) if same and old and new else None,
        bits_per_cpu_second=bits / cpu if bits and cpu else None,
    )


def _since(before: float, after: float) -> float | None:
    return round(after - before, 3) if after >= before else None


def _more(before: int, after: int) -> int | None:
    return after - before if after >= before else None


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < 1e15 else None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
