"""The expansion of an `embedded:` section."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations
from pathlib import PurePosixPath
from typing import Any

import pytest

from labctl.errors import SpecError
from labctl.model.lab import Accelerator, Lab, Limits
from labctl.spec.embedded import BENCHMARK_NETWORK, EmbeddedSpec, expand_embedded


def expand(name: str = "mine", **spec: Any) -> Lab:
    return expand_embedded(name, "site", EmbeddedSpec(**({"hosts": ("a", "b"), "machines": ("box",)} | spec)))


def addresses(lab: Lab) -> Iterator[IPv4Address]:
    """Every address that the lab gives to somebody, and both ends of the range for guests."""
    for host in lab.hosts.values():
        assert host.address is not None
        assert host.migration_address is not None
        assert host.ssh is not None
        yield from (host.address.ip, host.migration_address, IPv4Address(host.ssh.address))
    for machine in lab.machines.values():
        yield from (machine.address.ip, IPv4Address(machine.ssh.address))
    assert lab.embedded is not None
    yield lab.embedded.uplink.ip
    guests = lab.network().guest_range
    assert guests is not None
    yield from guests


def test_every_host_has_what_a_real_one_would_name_in_its_file() -> None:
    lab = expand(host_facts={"b": {"rack": "left"}}, limits=Limits(vms_per_host=3))
    assert list(lab.hosts) == ["a", "b"]
    assert list(lab.machines) == ["box"]
    assert lab.migration_pairs == {("a", "b"), ("b", "a")}
    assert lab.hosts["a"].uri == ("qemu+unix:///system?socket=/run/labctl/mine/members/a/libvirt/run/libvirt-sock")
    assert lab.hosts["b"].facts == {"rack": "left"}
    assert lab.hosts["a"].facts == {}
    assert lab.hosts["a"].ssh is not None
    assert str(lab.hosts["a"].ssh.key) == "file:/run/labctl/mine/ssh/key"
    assert lab.limits.vms_per_host == 3
    assert lab.hosts["a"].accelerator is Accelerator.AUTO


def test_all_members_share_one_physical_machine() -> None:
    lab = expand(hosts=("a", "b", "c"))
    machines = {host.machine for host in lab.hosts.values()} | {machine.machine for machine in lab.machines.values()}
    assert len(machines) == 1


@pytest.mark.parametrize("hosts", [("a",), ("a", "b"), tuple(f"host-{n}" for n in range(150))], ids=len)
def test_no_address_is_given_twice_and_all_are_in_the_labs_block(hosts: tuple[str, ...]) -> None:
    lab = expand(hosts=hosts, machines=tuple(f"box-{n}" for n in range(50)))
    given = list(addresses(lab))
    assert len(set(given)) == len(given)
    first = IPv4Network((min(given), 22), strict=False)
    assert all(address in first for address in given)
    assert first.subnet_of(BENCHMARK_NETWORK)


def test_hosts_machines_and_guests_are_on_one_network_and_guests_apart_in_it() -> None:
    lab = expand()
    host, machine = lab.hosts["a"].address, lab.machines["box"].address
    assert host is not None
    assert host.network == machine.network
    guests = lab.network().guest_range
    assert guests is not None
    assert host.network.prefixlen == lab.network().prefix_length
    assert all(end in host.network for end in guests)
    assert max(host.ip, machine.ip) < guests[0] < guests[1] < host.network.broadcast_address
    assert lab.hosts["a"].migration_address not in host.network


def test_labs_of_different_names_mostly_have_different_blocks_and_equal_names_the_same() -> None:
    def uplink(name: str) -> IPv4Network:
        embedded = expand(name).embedded
        assert embedded is not None
        return embedded.uplink.network

    names = [f"lab-{n}" for n in range(12)]
    clashes = sum(uplink(one).overlaps(uplink(other)) for one, other in combinations(names, 2))
    assert clashes <= 2
    assert uplink("lab-1") == uplink("lab-1")


def test_a_subnet_of_the_users_own_is_used_from_its_beginning() -> None:
    lab = expand(subnet=IPv4Network("10.20.0.0/16"), mtu=9000, directory=PurePosixPath("/srv/lab"))
    assert lab.hosts["a"].address is not None
    assert str(lab.hosts["a"].address) == "10.20.0.1/23"
    assert lab.network().mtu == 9000
    assert "/srv/lab/" in lab.hosts["a"].uri


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"hosts": ()}, "no hosts"),
        ({"hosts": ("a", "a")}, "a"),
        ({"hosts": ("a",), "machines": ("a",)}, "one name"),
        ({"hosts": ("A",)}, "'A'"),
        ({"hosts": ("a b",)}, "'a b'"),
        ({"hosts": ("a.b",)}, "'a.b'"),
        ({"hosts": ("a" * 25,)}, "24 at most"),
        ({"hosts": ("switch",)}, "switch"),
        ({"hosts": tuple(f"h{n}" for n in range(201)), "machines": ()}, "201"),
        ({"host_facts": {"c": {"rack": "left"}}}, "c"),
        ({"subnet": IPv4Network("198.18.0.0/24")}, "/22"),
        ({"directory": PurePosixPath("here")}, "absolute"),
        ({"directory": PurePosixPath("/" + "d" * 90)}, "107"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(spec: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError) as refused:
        expand(**spec)
    assert word in str(refused.value)


def test_a_labs_name_becomes_part_of_host_names_so_it_has_to_look_like_one() -> None:
    with pytest.raises(SpecError, match="My Lab"):
        expand("My Lab")
