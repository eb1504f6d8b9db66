"""The published experiments on vSphere and Hyper-V, planned cell for cell in the labs that come along."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.settings import Level
from labctl.plan.estimate import Costs, estimate, usual_costs
from labctl.plan.matrix import count, planned_cells
from labctl.plan.resolve import resolve
from labctl.spec.cross_check import load_both
from labctl.spec.lab import load_lab
from labctl.spec.source import parse_document

CONFIGS = Path(__file__).parents[2] / "configs"

Cells = set[tuple[tuple[str, Level], ...]]


def published(name: str) -> dict[str, Any]:
    path = CONFIGS / "published" / f"{name}.yaml"
    document: dict[str, Any] = parse_document(path.read_text(), file=path.name, what="facts", base=path.parent).plain()
    return document


def loaded(name: str) -> tuple[Campaign, Lab]:
    lab = "vsphere" if name.startswith("vsphere") else "hyperv"
    return load_both(CONFIGS / "campaigns" / f"{name}.yaml", CONFIGS / "labs" / f"{lab}.yaml")


def as_cells(*cells: Mapping[str, Level]) -> Cells:
    return {tuple(sorted(cell.items())) for cell in cells}


def planned(campaign: Campaign, lab: Lab) -> Cells:
    found = list(planned_cells(campaign, lab))
    assert [each.reason for each in found if each.reason] == []
    return as_cells(*(each.cell.levels for each in found))


def of_vsphere_2014(cell: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Level]:
    return {"scenario": "same-host", "image": cell["guest_os"], "nic_model": cell["nic_model"]}


def of_scenarios_2009(cell: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Level]:
    return {"scenario": cell["scenario"]}


def of_offload_2009(cell: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Level]:
    return {"scenario": cell["scenario"], "host_offload.chimney": cell["tcp_offload"] == "enabled"}


def of_drivers_2010(cell: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Level]:
    return {
        "scenario": cell["scenario"],
        "host.nic_driver": source["host_facts"][cell["host_facts"]]["nic_driver"],
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("vsphere-vmxnet3-e1000-2014", of_vsphere_2014),
        ("hyperv-scenarios-2009", of_scenarios_2009),
        ("hyperv-tcp-offload-2009", of_offload_2009),
        ("hyperv-flex10-drivers-2010", of_drivers_2010),
    ],
)
def test_every_cell_of_the_source_is_planned_and_no_other(name: str, meant: Any) -> None:
    source = published(name)
    campaign, lab = loaded(name)
    assert campaign.published == source["id"] == name
    assert planned(campaign, lab) == as_cells(*(meant(cell, source) for cell in source["cells"]))
    assert count(campaign, lab).runs == len(source["cells"]) * source.get("repeats", 3)


def orders(name: str) -> list[Any]:
    campaign, lab = loaded(name)
    return [resolve(campaign, each.cell, lab) for each in planned_cells(campaign, lab)]


def test_transfers_are_those_of_the_source() -> None:
    for order in orders("vsphere-vmxnet3-e1000-2014"):
        asked = order.transfer
        assert (asked.tool, asked.streams, asked.window, asked.buffer, asked.seconds) == (
            "iperf", 16, 64 * 1024, 128 * 1024, 30.0,
        )  # fmt: skip
        assert len(order.placement.hosts) == 1
    for order in orders("hyperv-scenarios-2009"):
        assert (order.transfer.tool, order.transfer.size) == ("filecopy", pytest.approx(2.79 * 2**30, abs=1))
        assert order.vm is None or (order.vm.vcpus, order.vm.memory) == (1, 512 * 2**20)
    for order in orders("hyperv-flex10-drivers-2010"):
        assert order.transfer.tool == "ntttcp"
        assert (order.vm.vcpus, order.vm.memory) == (1, 2**30)


def test_the_vm_that_moves_starts_beside_the_other_and_ends_across() -> None:
    (order,) = [each for each in orders("hyperv-scenarios-2009") if each.migration is not None]
    placement = order.placement
    assert placement.sender.host == placement.receiver.host != placement.destination
    assert order.migration.mover == "receiver"


def test_hosts_of_one_driver_are_measured_with_each_other() -> None:
    _, lab = loaded("hyperv-flex10-drivers-2010")
    for order in orders("hyperv-flex10-drivers-2010"):
        drivers = {lab.hosts[name].facts["nic_driver"] for name in order.placement.hosts}
        assert drivers == {order.settings["host.nic_driver"]}


def test_the_offload_is_of_the_hosts() -> None:
    assert {order.host_offloads["chimney"] for order in orders("hyperv-tcp-offload-2009")} == {True, False}
    assert all(not order.vm.offloads for order in orders("hyperv-tcp-offload-2009"))


def test_vms_that_are_cloned_take_longer_than_a_probe_guest() -> None:
    campaign, lab = loaded("hyperv-flex10-drivers-2010")
    assert usual_costs(load_lab(CONFIGS / "labs" / "local.yaml")) == Costs()
    assert usual_costs(load_lab(CONFIGS / "labs" / "simulated.yaml")) == Costs()
    assert estimate(campaign, lab).seconds > estimate(campaign, lab, costs=Costs()).seconds + 40 * 60
