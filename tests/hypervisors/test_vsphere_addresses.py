"""Which of the addresses that VMware Tools tell is the one on the test network."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_interface
from typing import Any

import pytest
from pyVmomi import vim

from labctl.model.lab import Host, Network
from labctl.model.nic import Hypervisor
from workers.hypervisors.vsphere.addresses import expected_subnets, objection, seen_by_tools

MAC = "00:50:56:11:22:33"
SUBNET = IPv4Network("192.0.2.0/24")


def adapter(mac: str, *addresses: str, network: str = "VM Network", state: str = "preferred") -> Any:
    """An adapter as Tools tell of it."""
    told = [vim.net.IpConfigInfo.IpAddress(ipAddress=address, prefixLength=24, state=state) for address in addresses]
    return vim.vm.GuestInfo.NicInfo(
        macAddress=mac,
        network=network,
        connected=True,
        deviceConfigId=4000,
        ipAddress=list(addresses),
        ipConfig=vim.net.IpConfigInfo(ipAddress=told),
    )


def usable(adapters: list[Any], *, subnets: tuple[IPv4Network, ...] = (SUBNET,)) -> list[str]:
    return [seen.address for seen in seen_by_tools(adapters) if not objection(seen, mac=MAC, subnets=subnets)]


def why(seen_adapter: Any, *, subnets: tuple[IPv4Network, ...] = (SUBNET,)) -> list[str]:
    return [objection(seen, mac=MAC, subnets=subnets) for seen in seen_by_tools([seen_adapter])]


def test_v4_the_address_of_the_test_adapter_wins_whatever_comes_first() -> None:
    """V4: docker's bridge, another adapter, IPv6 and a link-local address before the right one."""
    adapters = [
        adapter("02:42:ac:11:00:01", "172.17.0.1", network=""),
        adapter("00:50:56:99:99:99", "192.0.2.77"),
        adapter(MAC.upper(), "fe80::250:56ff:fe11:2233", "2001:db8::5", "169.254.7.8", "192.0.2.5"),
    ]
    assert usable(adapters) == ["192.0.2.5"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("169.254.7.8", "link-local"),
        ("fe80::1%eth0", "no IPv4"),
        ("2001:db8::5", "no IPv4"),
        ("127.0.0.1", "no address of a machine"),
        ("0.0.0.0", "no address of a machine"),
        ("198.51.100.5", "not in 192.0.2.0/24"),
    ],
)
def test_v4_what_is_no_address_on_the_test_network_is_refused_with_the_reason(address: str, reason: str) -> None:
    """V4: link-local, IPv6, others' subnets."""
    (told,) = why(adapter(MAC, address))
    assert reason in told


@pytest.mark.parametrize("state", ["tentative", "duplicate", "invalid", "inaccessible"])
def test_v4_an_address_that_the_guest_does_not_use_yet_is_refused(state: str) -> None:
    """V4: an address may be in trial, or somebody else's."""
    assert why(adapter(MAC, "192.0.2.5", state=state)) == [state]


def test_v4_another_adapters_address_is_refused_though_its_subnet_fits() -> None:
    """V4: by the MAC of the VM's own adapter."""
    assert why(adapter("00:50:56:99:99:99", "192.0.2.5")) == ["of another adapter"]


def test_old_tools_tell_addresses_without_their_state() -> None:
    told = vim.vm.GuestInfo.NicInfo(macAddress=MAC, connected=True, deviceConfigId=4000, ipAddress=["192.0.2.5"])
    assert usable([told]) == ["192.0.2.5"]


def test_without_a_known_subnet_every_other_rule_still_holds() -> None:
    assert usable([adapter(MAC, "169.254.1.1", "198.51.100.5")], subnets=()) == ["198.51.100.5"]


def test_the_expected_subnet_is_that_of_the_guest_range_else_that_of_the_hosts() -> None:
    def host(name: str, address: IPv4Interface | None) -> Host:
        return Host(name=name, hypervisor=Hypervisor.VSPHERE, uri="", machine=name, address=address)

    hosts = [host("a", IPv4Interface("192.0.2.1/25")), host("b", None), host("c", IPv4Interface("192.0.2.2/25"))]
    ranged = Network(
        name="n", bridge="p", guest_range=(IPv4Address("198.51.100.10"), IPv4Address("198.51.100.20")), prefix_length=26
    )
    assert expected_subnets(ranged, hosts) == (IPv4Network("198.51.100.0/26"),)
    assert expected_subnets(Network(name="n", bridge="p", addressing="dhcp"), hosts) == (
        ip_interface("192.0.2.1/25").network,
    )
    assert expected_subnets(Network(name="n", bridge="p", addressing="dhcp"), []) == ()
