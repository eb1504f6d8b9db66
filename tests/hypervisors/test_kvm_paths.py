"""Whether VMs can be migrated from one host to another, as the lab file and real hosts say before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from labctl.model.lab import Accelerator, Lab
from tests.hypervisors.guests import Guests, guests_of
from tests.values import a_lab
from workers.channels.base import Channel
from workers.channels.ssh import SshChannel
from workers.guard import Guard
from workers.hypervisors.kvm import paths
from workers.hypervisors.kvm.connection import Connections
from workers.hypervisors.kvm.facts import offers_kvm

ORDINARY = "<cpu><model fallback='forbid'>qemu64</model></cpu>"
NOWHERE = """<cpu>
  <model fallback='forbid'>qemu64</model>
  <feature policy='require' name='avx512-4vnniw'/><feature policy='require' name='sse4a'/>
</cpu>"""
"""A processor with features that no processor has together: the one is Intel's, the other AMD's."""


def test_what_the_lab_file_says_against_a_migration() -> None:
    lab = a_lab()
    assert "same host" in paths.check_inventory(lab, "a", "a")
    assert "no migration path" in paths.check_inventory(replace(lab, migration_pairs=frozenset()), "a", "b")
    hosts = {**lab.hosts, "b": replace(lab.hosts["b"], migration_address=None)}
    assert "no migration address" in paths.check_inventory(replace(lab, hosts=hosts), "a", "b")
    assert paths.check_inventory(lab, "a", "b") == ""


@pytest.mark.lab
def test_l4_m18_hosts_with_one_uuid_are_one_host_for_libvirt(embedded_lab: Lab) -> None:
    with guests_of(embedded_lab) as guests:
        assert guests.driver.check_migration("a", "b") == ""
        hosts = {**embedded_lab.hosts, "b": replace(embedded_lab.hosts["b"], uri=embedded_lab.hosts["a"].uri)}
        twins = guests.another_driver(lab=replace(embedded_lab, hosts=hosts))
        assert "same host UUID" in twins.check_migration("a", "b")
        twins.close()


@pytest.mark.lab
def test_l4_a_processor_that_the_destination_can_not_give_is_told(embedded_lab: Lab) -> None:
    connections = Connections(embedded_lab.hosts)
    assert paths.check_processor(connections, ORDINARY, "b", kind="qemu") == ""
    told = paths.check_processor(connections, NOWHERE, "b", kind="qemu")
    assert told.startswith("Host b can't give a VM the processor"), told
    assert "avx512-4vnniw" in told
    connections.close()


@pytest.mark.lab
def test_l4_the_processor_of_a_host_is_one_that_itself_can_give(embedded_lab: Lab) -> None:
    hosts = {name: replace(host, accelerator=Accelerator.KVM) for name, host in embedded_lab.hosts.items()}
    lab = replace(embedded_lab, hosts=hosts)
    connections = Connections(hosts)
    if not connections.read("a", offers_kvm):
        pytest.skip("this host has no KVM")
    processor = paths.processor_on(connections, lab, "a", "b")
    assert processor.startswith("<cpu>")
    assert "<model" in processor
    assert paths.check_processor(connections, processor, "b", kind="kvm") == ""
    hosts["b"] = replace(hosts["b"], accelerator=Accelerator.TCG)
    assert paths.processor_on(connections, replace(lab, hosts=hosts), "a", "b") == ""
    connections.close()


@pytest.fixture
def shell(guests: Guests) -> Iterator[Channel]:
    """The channel into host `a`."""
    access = guests.lab.hosts["a"].ssh
    assert access is not None
    channel = SshChannel(endpoint="host a", access=access, guard=Guard())
    yield channel
    channel.close()


@pytest.mark.lab
def test_l3_a_migration_address_that_the_source_does_not_reach_is_told(shell: Channel) -> None:
    told = paths.check_way(shell, "a", "b", "203.0.113.7")
    assert told.startswith("Host a doesn't reach port 49152 of 203.0.113.7"), told
    assert "unreachable" in told


@pytest.mark.lab
def test_l3_the_way_is_tried_from_the_source_with_nobody_listening(guests: Guests, shell: Channel) -> None:
    assert paths.check_way(shell, "a", "b", str(guests.lab.hosts["b"].migration_address)) == ""
    hosts = {**guests.lab.hosts, "b": replace(guests.lab.hosts["b"], migration_address=IPv4Address("203.0.113.7"))}
    driver = guests.another_driver(lab=replace(guests.lab, hosts=hosts))
    assert "203.0.113.7, the migration address of host b" in driver.check_migration("a", "b")
    driver.close()
