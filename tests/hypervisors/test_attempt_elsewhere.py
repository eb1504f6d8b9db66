"""What attempts do where others share the hosts: addresses by DHCP, incidents. By the simulated hypervisor, which is told
what real ones would say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from labctl.campaign.rehearsal import simulated
from labctl.conductor import Conductor
from labctl.errors import LabError
from labctl.model.lab import Customisation, Lab
from labctl.model.outcome import Outcome
from labctl.model.result import AttemptResult
from labctl.model.scenario import Scenario
from labctl.spec.lab import load_lab
from labctl.store import Store, open_store
from tests.simulated import a_simulated_lab, attempt, conducted, virtual_time, vms_left
from tests.values import a_campaign
from workers.hypervisors.base import Vm
from workers.hypervisors.simulated.driver import SimulatedDriver

LABS = Path(__file__).parents[2] / "configs" / "labs"
LEASED = {"sender": IPv4Address("198.18.128.77"), "receiver": IPv4Address("198.18.129.78")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    with virtual_time(tmp_path / "clock") as made:
        yield made


def run(store: Store, conductor: Conductor, lab: Lab, scenario: Scenario = Scenario.SAME_HOST) -> AttemptResult:
    campaign = a_campaign(
        scenarios=(scenario,), factors={"nic_model": ("virtio",)}, settings={"seconds": 12.0}, repeats=1
    )
    return conducted(conductor, lambda: attempt(store, lab, campaign))


@pytest.fixture
def dhcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab whose VMs get their addresses from somebody else, after they were made."""
    lab = a_simulated_lab(tmp_path / "world")
    create = SimulatedDriver.create

    def created(driver: SimulatedDriver, host: str, request: Any, *, timeout: float) -> Vm:
        assert request.address is None
        given = IPv4Interface((LEASED[request.mark.role], 16))
        vm = create(driver, host, replace(request, address=given), timeout=timeout)
        return replace(vm, address=None)

    def address(_: SimulatedDriver, vm: Vm, *, timeout: float) -> IPv4Address:
        assert 0 < timeout <= 60
        return LEASED[vm.name.rpartition("-")[2]]

    monkeypatch.setattr(SimulatedDriver, "create", created)
    monkeypatch.setattr(SimulatedDriver, "address", address)
    network = replace(lab.network(), addressing="dhcp", guest_range=None)
    return replace(lab, networks={network.name: network})


def test_the_address_that_a_vm_got_is_recorded_and_measured_to(
    store: Store, conductor: Conductor, dhcp: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[IPv4Interface | None] = []
    destroy = SimulatedDriver.destroy

    def destroyed(driver: SimulatedDriver, vm: Vm) -> None:
        recorded.append(vm.address)
        destroy(driver, vm)

    monkeypatch.setattr(SimulatedDriver, "destroy", destroyed)
    result = run(store, conductor, dhcp)
    assert result.detail.outcome is Outcome.OK, result.detail
    assert any(str(address) in result.transfers[-1].client_command for address in LEASED.values())
    macs = [item.facts["nic.mac"] for item in result.facts if item.when == "created"]
    assert len(set(macs)) == 2
    assert vms_left(dhcp) == []
    assert set(recorded) == {IPv4Interface((address, 16)) for address in LEASED.values()}, (
        "by the records of the store, which VMs are removed by"
    )


def test_a_vm_without_an_address_is_a_lab_error_that_says_so(
    store: Store, conductor: Conductor, dhcp: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: SimulatedDriver, vm: Vm, *, timeout: float) -> IPv4Address:
        raise LabError(f"VM {vm.name} got no address.", kind="no-guest-address", why=f"{timeout:g} s", host=vm.host)

    monkeypatch.setattr(SimulatedDriver, "address", none)
    result = run(store, conductor, dhcp)
    assert (result.detail.outcome, result.detail.kind, result.detail.host) == (
        Outcome.LAB_ERROR,
        "no-guest-address",
        "a",
    )
    assert vms_left(dhcp) == []


def test_what_others_did_to_a_vm_makes_a_lab_error_of_a_whole_figure(
    store: Store, conductor: Conductor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V10: DRS may have moved it to and fro, so that it is where it should be."""
    asked: list[float] = []

    def incidents(_: SimulatedDriver, vm: Vm, *, since: float) -> tuple[str, ...]:
        asked.append(since)
        return ("DRS moved it from a to b.", "DRS moved it from b to a.") if vm.name.endswith("receiver") else ()

    monkeypatch.setattr(SimulatedDriver, "incidents", incidents)
    began = conductor.moment
    result = run(store, conductor, a_simulated_lab(tmp_path / "world"))
    assert (result.detail.outcome, result.detail.kind, result.detail.host) == (Outcome.LAB_ERROR, "disturbed", "a")
    assert result.detail.why == "DRS moved it from a to b. DRS moved it from b to a."
    assert [transfer.counted for transfer in result.transfers] == [False], "it is noticed before more is measured"
    assert set(asked) == {1_792_850_400.0 + began}, "since it was made"


def test_a_vm_is_looked_for_after_every_transfer(
    store: Store, conductor: Conductor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V10."""
    locate, asked = SimulatedDriver.locate, []

    def elsewhere(driver: SimulatedDriver, vm: Vm) -> str | None:
        asked.append(vm.name)
        return "b" if len(asked) > 2 else locate(driver, vm)

    monkeypatch.setattr(SimulatedDriver, "locate", elsewhere)
    result = run(store, conductor, a_simulated_lab(tmp_path / "world"))
    assert (result.detail.outcome, result.detail.kind) == (Outcome.LAB_ERROR, "moved")
    assert [transfer.counted for transfer in result.transfers] == [False]


def test_our_own_migration_is_no_incident(store: Store, conductor: Conductor, tmp_path: Path) -> None:
    result = run(store, conductor, a_simulated_lab(tmp_path / "world"), Scenario.DURING_MIGRATION)
    assert result.detail.outcome is Outcome.OK, result.detail
    assert [item.completed for item in result.migrations] == [True]


@pytest.mark.parametrize(("name", "model"), [("vsphere", "vmxnet3"), ("hyperv", "legacy")])
def test_labs_of_all_kinds_can_be_rehearsed(
    store: Store, conductor: Conductor, tmp_path: Path, name: str, model: str
) -> None:
    """Among them those whose guests get their addresses by DHCP, and have other channels than simulated ones."""
    lab = simulated(load_lab(LABS / f"{name}.yaml"), tmp_path / "world")
    images = [image for image, made in lab.images.items() if made.generation == 1 or model != "legacy"]
    settings = {"image": images[-1], "seconds": 5.0}
    lab = replace(lab, images={image: replace(lab.images[image], customisation=Customisation.NONE) for image in images})
    campaign = a_campaign(factors={"nic_model": (model,)}, settings=settings, repeats=1)
    result = conducted(conductor, lambda: attempt(store, lab, campaign))
    assert result.detail.outcome is Outcome.OK, result.detail
    assert vms_left(lab) == []
