"""The expansion of a `simulated:` section."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath

import pytest

from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab, Limits, SimulatedLayout
from labctl.model.nic import NIC_MODELS, Hypervisor
from labctl.model.scenario import Scenario
from labctl.plan.matrix import planned_cells
from labctl.plan.resources import machines_of
from labctl.spec.documents import from_json, to_json
from labctl.spec.embedded import BENCHMARK_NETWORK
from labctl.spec.lab import parse_lab
from labctl.spec.simulated import MOST_MEMBERS, default_directory


def lab_of(section: str, *, base: Path | None = None) -> Lab:
    return parse_lab(f"lab: mine\nsimulated: {section}\n", base=base)


def addresses(lab: Lab) -> Iterator[IPv4Address]:
    """Every address that the lab gives to somebody, and both ends of the range for guests."""
    for host in lab.hosts.values():
        assert host.address is not None
        assert host.migration_address is not None
        assert host.ssh is not None
        yield from (host.address.ip, host.migration_address, IPv4Address(host.ssh.address))
    for machine in lab.machines.values():
        yield from (machine.address.ip, IPv4Address(machine.ssh.address))
    guests = lab.network().guest_range
    assert guests is not None
    yield from guests


def test_a_number_of_hosts_stands_for_their_names() -> None:
    lab = lab_of("{hosts: 3, machines: 1}")
    assert list(lab.hosts) == ["host-1", "host-2", "host-3"]
    assert list(lab.machines) == ["box-1"]


def test_everything_that_the_section_can_say(tmp_path: Path) -> None:
    lab = lab_of(
        "{hosts: [a, 10], machines: [box], seed: 7, directory: world, hypervisor: vsphere, "
        "host_facts: {a: {rack: 010}}, limits: {vms_per_host: 3}}",
        base=tmp_path,
    )
    assert list(lab.hosts) == ["a", "10"]
    assert lab.simulated == SimulatedLayout(directory=PurePosixPath(tmp_path / "world"), seed=7)
    assert lab.hosts["a"].hypervisor is Hypervisor.VSPHERE
    assert lab.hosts["a"].facts == {"rack": "010"}
    assert lab.limits == Limits(vms_per_host=3)
    assert "vmxnet3" in lab.images["probe"].drivers


def test_without_a_directory_the_lab_is_below_the_users_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABCTL_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lab = lab_of("{hosts: 1}")
    assert lab.simulated is not None
    assert lab.simulated.directory == default_directory("mine") == PurePosixPath(tmp_path / "labctl/simulated/mine")


def test_without_a_directory_the_lab_is_in_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_STATE", str(tmp_path / "mine"))
    lab = lab_of("{hosts: 1}")
    assert lab.simulated is not None
    assert lab.simulated.directory == PurePosixPath(tmp_path / "mine/simulated/mine")


def test_a_directory_may_start_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    lab = lab_of("{hosts: 1, directory: ~/world}")
    assert lab.simulated is not None
    assert lab.simulated.directory == PurePosixPath("/home/me/world")


def test_every_host_is_a_machine_of_its_own_and_reached_by_nothing_real() -> None:
    lab = lab_of("{hosts: 5, machines: [box]}")
    assert machines_of(lab) == 5
    assert lab.machines["box"].machine == "box"
    assert lab.hosts["host-2"].uri == "simulated:///host-2"
    assert lab.embedded is None


@pytest.mark.parametrize("hosts", [1, 8, 250, MOST_MEMBERS - 20])
def test_no_address_is_given_twice_and_guests_have_room(hosts: int) -> None:
    lab = lab_of(f"{{hosts: {hosts}, machines: 20}}")
    given = list(addresses(lab))
    assert len(set(given)) == len(given)
    assert all(address in BENCHMARK_NETWORK for address in given)
    first, last = lab.network().guest_range or (None, None)
    assert first is not None
    assert last is not None
    assert int(last) - int(first) > 10 * 2 * hosts
    network = lab.machines["box-1"].address.network
    assert network.prefixlen == lab.network().prefix_length
    assert first in network
    assert last in network
    assert all(host.address is not None and host.address.network == network for host in lab.hosts.values())


def test_two_hundred_hosts_are_a_lab_in_which_everything_is_applicable() -> None:
    lab = lab_of("{hosts: 200}")
    assert len(lab.migration_pairs) == 200 * 199
    campaign = Campaign(
        name="x",
        scenarios=tuple(Scenario),
        factors={"peer": ("own-host", "other-host")},
        settings={"seconds": 20.0, "interval": 0.1},
    )
    assert [planned.reason for planned in planned_cells(campaign, lab) if planned.reason] == []
    assert from_json(Lab, to_json(lab)) == lab


@pytest.mark.parametrize("hypervisor", list(Hypervisor))
def test_guests_have_a_driver_for_every_emulated_adapter(hypervisor: Hypervisor) -> None:
    lab = lab_of(f"{{hosts: 2, hypervisor: {hypervisor}}}")
    models = tuple(
        model.name for model in NIC_MODELS.values() if hypervisor in model.hypervisors and not model.passthrough
    )
    campaign = Campaign(name="x", scenarios=(Scenario.CROSS_HOST,), factors={"nic_model": models}, settings={})
    assert models
    assert [planned.reason for planned in planned_cells(campaign, lab) if planned.reason] == []


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ("{hosts: 0}", "simulated.hosts", "0 entries"),
        ("{hosts: []}", "simulated.hosts", "0 entries"),
        ("{hosts: -1}", "simulated.hosts", "no such number"),
        (f"{{hosts: {MOST_MEMBERS + 1}}}", "simulated.hosts", "no such number"),
        (f"{{hosts: {MOST_MEMBERS}, machines: 1}}", "simulated", f"{MOST_MEMBERS + 1} members"),
        ("{hosts: some}", "simulated.hosts", "a number or a list"),
        ("{hosts: yes}", "simulated.hosts", "a number or a list"),
        ("{hosts: [a, a]}", "simulated", "one name: a"),
        ("{hosts: [a], machines: [a]}", "simulated", "one name: a"),
        ("{hosts: [../a]}", "simulated.hosts[0]", "characters"),
        ("{hosts: [own-host]}", "simulated", "meaning of their own"),
        ("{hosts: 1, host_facts: {b: {rack: left}}}", "simulated", "doesn't have: b"),
        ("{hosts: 1, seed: -1}", "simulated.seed", "too small"),
        ("{hosts: 1, hypervisor: xen}", "simulated.hypervisor", "not one of"),
        ("{machines: 1}", "simulated", "`hosts` is missing"),
        ("{hosts: 1}\nembedded: {hosts: [a]}", "simulated", "either embedded (line 3) or simulated"),
        ("{hosts: 1}\nhosts: {}", "hosts", "under `simulated`"),
        ("{hosts: 1}\nquiet: {}", "quiet", "no limit"),
    ],
)
def test_what_can_not_be_is_told_with_its_place(section: str, key: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        lab_of(section)
    problem = next(problem for problem in caught.value.problems if problem.key == key)
    assert words in problem.message
    assert problem.line >= 2
