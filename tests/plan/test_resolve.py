from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labctl.model.campaign import Cell
from labctl.model.order import RunOrder
from labctl.model.scenario import Scenario, Side
from labctl.plan.applicability import reason
from labctl.plan.matrix import cells, count
from labctl.plan.resolve import resolve
from labctl.plan.settings import settings_of
from labctl.spec.campaign import load_campaign, parse_campaign
from labctl.spec.documents import from_json, to_json
from labctl.spec.lab import load_lab, parse_lab

CONFIGS = Path(__file__).parents[2] / "configs"
LAB = parse_lab("lab: two\nembedded: {hosts: [a, b], machines: [box]}\n")
CAMPAIGN = parse_campaign(
    """
campaign: x
scenarios: [same-host, during-migration, host-to-host]
factors:
  nic_model: [virtio, e1000]
  offload.tso: [on, off, default]
  own.rmem: ["4 MiB; reboot", 2]
settings: {seconds: 5, window: 64k, client_args: "-O 1 --title 'two words'", rate: default, memory: 256 MiB, mtu: 1400}
overrides:
  - {when: {scenario: [during-migration, same-host]}, set: {seconds: 20, interval: 0.5}}
  - {when: {scenario: during-migration, nic_model: e1000}, set: {seconds: 30, migrate_bandwidth: 100M}}
prepare: [[sysctl, -w, "x={own.rmem}"], ["{own.rmem}"]]
warmups: 2
transfers: 3
timeouts: {migration: 45}
"""
)


def cell(scenario: str, nic_model: str = "virtio", tso: bool | str = True) -> Cell:
    levels = {"scenario": scenario, "own.rmem": "4 MiB; reboot"}
    if scenario == "host-to-host":
        return Cell(levels=levels)
    return Cell(levels=levels | {"nic_model": nic_model, "offload.tso": tso})


def test_later_overrides_win_and_levels_win_over_all() -> None:
    assert settings_of(CAMPAIGN, cell("host-to-host"))["seconds"] == 5.0
    assert settings_of(CAMPAIGN, cell("same-host"))["seconds"] == 20.0
    moved = settings_of(CAMPAIGN, cell("during-migration", "e1000"))
    assert (moved["seconds"], moved["interval"], moved["nic_model"]) == (30.0, 0.5, "e1000")


def test_only_settings_that_concern_the_scenario_are_kept() -> None:
    assert "nic_model" not in settings_of(CAMPAIGN, cell("host-to-host"))
    assert "migrate_at" not in settings_of(CAMPAIGN, cell("same-host"))
    assert "peer" not in settings_of(CAMPAIGN, cell("same-host"))
    assert settings_of(CAMPAIGN, cell("host-to-host"))["peer"] == "own-host"


def test_an_order_holds_all_that_an_attempt_must_know() -> None:
    order = resolve(CAMPAIGN, cell("during-migration", "e1000", tso=False), LAB)
    assert order.scenario is Scenario.DURING_MIGRATION
    assert (order.placement.sender.host, order.placement.receiver.host, order.placement.destination) == ("a", "a", "b")
    assert order.vm is not None
    assert (order.vm.nic_model, order.vm.memory, order.vm.mtu, order.vm.vhost) == ("e1000", 256 * 2**20, 1400, None)
    assert order.vm.offloads == {"tso": False}
    assert (order.transfer.seconds, order.transfer.interval, order.transfer.window) == (30.0, 0.5, 65536)
    assert order.transfer.rate is None
    assert order.transfer.client_args == ("-O", "1", "--title", "two words")
    assert (order.warmup.seconds, order.warmups, order.transfers) == (2.0, 2, 3)
    assert order.migration is not None
    assert (order.migration.mover, order.migration.at, order.migration.bandwidth, order.migration.deadline) == (
        Side.RECEIVER,
        1 / 3,
        100_000_000,
        45.0,
    )


def test_levels_go_into_commands_as_one_argument() -> None:
    assert resolve(CAMPAIGN, cell("same-host"), LAB).prepare == (
        ("sysctl", "-w", "x=4 MiB; reboot"),
        ("4 MiB; reboot",),
    )


def test_default_leaves_an_offload_alone() -> None:
    order = resolve(CAMPAIGN, cell("same-host", tso="default"), LAB)
    assert order.vm is not None
    assert order.vm.offloads == {}
    assert order.settings["offload.tso"] == "default"


def test_hosts_as_endpoints_have_no_vm_and_no_preparation() -> None:
    order = resolve(CAMPAIGN, cell("host-to-host"), LAB)
    assert (order.vm, order.migration, order.prepare) == (None, None, ())
    assert order.placement.hosts == ("a",)


def test_a_cell_without_a_placement_has_no_order() -> None:
    one = parse_lab("lab: one\nembedded: {hosts: [a]}\n")
    with pytest.raises(ValueError, match="no placement"):
        resolve(CAMPAIGN, cell("during-migration"), one)


def test_every_cell_of_the_campaigns_that_come_along_becomes_an_order_that_travels() -> None:
    labs = {name: load_lab(CONFIGS / "labs" / f"{name}.yaml") for name in ("local", "vsphere", "hyperv")}
    for path in (CONFIGS / "campaigns").glob("*.yaml"):
        campaign, lab = load_campaign(path), labs.get(path.stem.partition("-")[0], labs["local"])
        made = 0
        for each in cells(campaign):
            if each.levels.get("nic_model") == "vt-d":
                continue
            order = resolve(campaign, each, lab)
            assert from_json(RunOrder, to_json(order)) == order
            made += 1
        assert made == count(campaign, lab).applicable


def test_several_transfers_of_a_run_with_a_migration_must_each_start_at_home() -> None:
    several = replace(CAMPAIGN, transfers=2)
    moving = cell("during-migration")
    assert "migrate_back" in reason(several, moving, LAB)
    assert "migrate_back" not in reason(replace(several, transfers=1), moving, LAB)
    back = replace(several, settings={**several.settings, "migrate_back": True})
    assert "ask for migrate_back" not in reason(back, moving, LAB)
