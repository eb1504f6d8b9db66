"""Which address a guest has on the test network, of all that VMware Tools tell of it.

Tools tell every address of every adapter: those of bridges that containers made, of VPNs, and those that a guest gives
itself while no DHCP server answers. So an address counts only on the adapter with the VM's own MAC address, when it is a
usable IPv4 address of the expected subnet. vSphere's own choice (`guest.ipAddress`) is not asked for.
Source: vSphere Web Services API, GuestNicInfo and NetIpConfigInfoIpAddress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_address

from pyVmomi import vim

from labctl.errors import LabError
from labctl.model.lab import Host, Network
from workers.guard import Deadline, Guard
from workers.hypervisors.base import Vm
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import properties
from workers.hypervisors.vsphere.tasks import Pace

LOOK_SECONDS = 2.0
"""Time between two looks at most. Tools tell vCenter of a new address some seconds after the guest got it."""

_USABLE = (None, "", "preferred", "deprecated", "unknown")
"""States of an address in which a guest uses it; the others are `tentative`, `duplicate`, `invalid`, `inaccessible`."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One address that Tools told of."""

    mac: str
    network: str
    """The port group of its adapter; empty: an adapter that the VM does not have, such as a bridge in the guest."""
    address: str
    state: str = ""


def expected_subnets(network: Network, hosts: Sequence[Host]) -> tuple[IPv4Network, ...]:
    """Where addresses on the test network are, as far as the lab file tells: by its guest range, or by the addresses of
    hosts on it. Empty: it doesn't tell."""
    if network.guest_range is not None:
        return (IPv4Network(f"{network.guest_range[0]}/{network.prefix_length}", strict=False),)
    return tuple(dict.fromkeys(host.address.network for host in hosts if host.address is not None))


def seen_by_tools(adapters: Sequence[vim.vm.GuestInfo.NicInfo]) -> Iterator[Seen]:
    """All addresses that Tools tell of, in their order."""
    for adapter in adapters:
        mac, network = (adapter.macAddress or "").lower(), adapter.network or ""
        told = adapter.ipConfig.ipAddress if adapter.ipConfig is not None else []
        for address in told:
            yield Seen(mac=mac, network=network, address=address.ipAddress, state=str(address.state or ""))
        if not told:
            for plain in adapter.ipAddress or []:
                yield Seen(mac=mac, network=network, address=plain)


def objection(seen: Seen, *, mac: str, subnets: Sequence[IPv4Network]) -> str:
    """Why an address is not the one on the test network; empty when it is."""
    address = ip_address(seen.address.partition("%")[0])
    if seen.mac != mac.lower():
        return "of another adapter"
    if not isinstance(address, IPv4Address):
        return "no IPv4 address"
    if address.is_link_local:
        return "link-local: no DHCP server answered"
    if address.is_loopback or address.is_multicast or address.is_unspecified:
        return "no address of a machine"
    if seen.state not in _USABLE:
        return seen.state
    if subnets and not any(address in subnet for subnet in subnets):
        return f"not in {' or '.join(map(str, subnets))}"
    return ""


def await_address(
    session: Session,
    machine: vim.VirtualMachine,
    vm: Vm,
    *,
    subnets: Sequence[IPv4Network],
    timeout: float,
    guard: Guard,
) -> IPv4Address:
    """The address on the test network of a VM that got one by DHCP, waited for up to `timeout` seconds.

    Raises `LabError` (`no-guest-address`) that says what was seen instead. A vCenter that doesn't answer is waited for.
    """
    deadline = Deadline.after(timeout)
    pause = Pace(guard, most=LOOK_SECONDS)
    why = "vCenter did not answer."
    while True:
        try:
            found, why = _look(session, machine, vm.mac, subnets)
        except LabError as error:
            if error.kind != "host-unreachable":
                raise
            found, why = None, f"{error.what} {error.why}"
        if found is not None:
            return found
        if deadline.passed:
            raise LabError(
                f"The VM {vm.name} got no address on the test network within {timeout:g} s.",
                kind="no-guest-address",
                why=why,
                todo="See that VMware Tools run in the guest, and that a DHCP server answers on the network's port group.",
                host=vm.host,
            )
        pause.wait(deadline)


def _look(
    session: Session, machine: vim.VirtualMachine, mac: str, subnets: Sequence[IPv4Network]
) -> tuple[IPv4Address | None, str]:
    """The address, or what was seen instead of it in a sentence."""
    names = ("guest.net", "guest.toolsRunningStatus", "runtime.powerState")
    rows = properties(session, (machine,), names)
    if not rows:
        return None, "vCenter no longer has the VM."
    row = rows[0]
    refused = []
    for seen in seen_by_tools(row["guest.net"] or []):
        reason = objection(seen, mac=mac, subnets=subnets)
        if not reason:
            return IPv4Address(seen.address), ""
        refused.append(f"{seen.address} ({reason}; {seen.mac}{', ' + seen.network if seen.network else ''})")
    if refused:
        return None, f"Its adapter is {mac.lower()}. Seen: {', '.join(refused)}."
    if row["runtime.powerState"] != vim.VirtualMachine.PowerState.poweredOn:
        return None, f"The VM is {row['runtime.powerState'] or 'in an unknown power state'}."
    if row["guest.toolsRunningStatus"] != "guestToolsRunning":
        return None, f"No address was seen at all: VMware Tools say {row['guest.toolsRunningStatus'] or 'nothing'}."
    return None, "No address was seen at all, though VMware Tools run."
