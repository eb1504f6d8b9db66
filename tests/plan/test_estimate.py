from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.model.campaign import Adaptive, Anchor, Campaign, Cell
from labctl.model.scenario import Scenario
from labctl.plan.estimate import Costs, Needs, Share, estimate, longest_run, run_seconds
from labctl.plan.matrix import count, planned_cells
from labctl.spec.campaign import load_campaign, parse_campaign
from labctl.spec.lab import load_lab, parse_lab

CONFIGS = Path(__file__).parents[2] / "configs"
LAB = parse_lab("lab: two\nembedded: {hosts: [a, b], machines: [box]}\n")
RACK = parse_lab(
    "lab: rack\nsimulated: {hosts: 9, machines: [box], host_facts: {host-1: {rack: left}, host-2: {rack: left}},"
    " limits: {migrations_at_once: 3}}\n"
)
CAMPAIGN = parse_campaign(
    """
campaign: x
scenarios: [same-host, during-migration, host-to-host]
factors: {nic_model: [virtio, e1000], offload.tso: [on, off]}
settings: {seconds: 5}
overrides:
  - {when: {scenario: [during-migration, same-host]}, set: {seconds: 20, interval: 0.5}}
  - {when: {scenario: during-migration, nic_model: e1000}, set: {seconds: 30}}
warmups: 2
transfers: 3
"""
)
CAMPAIGN = replace(CAMPAIGN, settings={**CAMPAIGN.settings, "migrate_back": True})


def cell(scenario: str) -> Cell:
    if scenario == "host-to-host":
        return Cell(levels={"scenario": scenario})
    return Cell(levels={"scenario": scenario, "nic_model": "virtio", "offload.tso": True})


def by_hand(campaign: Campaign) -> float:
    applicable = (planned.cell for planned in planned_cells(campaign, LAB) if not planned.reason)
    return sum(run_seconds(campaign, each) for each in applicable)


def test_the_seconds_of_a_run_are_its_transfers_and_what_goes_around_them() -> None:
    costs = Costs(boot=10, verify=1, transfer=0.5, migration=2, teardown=3)
    each = {
        "same-host": 2 * 2 + 3 * 20 + 1 + 5 * 0.5 + 13,
        "during-migration": 2 * 2 + 3 * 20 + 1 + 5 * 0.5 + 13 + 3 * 2,
        "host-to-host": 2 * 2 + 3 * 5 + 1 + 5 * 0.5,
    }
    for scenario, seconds in each.items():
        assert run_seconds(CAMPAIGN, cell(scenario), costs=costs) == pytest.approx(seconds)
    measured = Costs(measured={Scenario.SAME_HOST: 100.0})
    assert run_seconds(CAMPAIGN, cell("same-host"), costs=measured) == pytest.approx(2 * 2 + 3 * 20 + 100)


def test_the_estimate_is_the_sum_over_all_runs() -> None:
    found = estimate(CAMPAIGN, LAB)
    assert found.seconds == pytest.approx(CAMPAIGN.repeats * by_hand(CAMPAIGN))
    assert found.runs == sum(share.runs for share in found.by_scenario.values()) == count(CAMPAIGN, LAB).runs
    assert found.anchors == Share()


def test_the_longest_run_is_the_longest_of_all_cells() -> None:
    applicable = [planned.cell for planned in planned_cells(CAMPAIGN, LAB) if not planned.reason]
    assert longest_run(CAMPAIGN, LAB) == max(run_seconds(CAMPAIGN, each) for each in applicable)


@given(st.integers(1, 5), st.integers(1, 20), st.none() | st.floats(1, 5000), st.none() | st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_the_most_is_all_further_repeats_as_far_as_the_budget_goes(
    repeats: int, further: int, budget: float | None, every: int | None
) -> None:
    levels = {"scenario": "same-host", "nic_model": "virtio", "offload.tso": True}
    campaign = replace(
        CAMPAIGN,
        repeats=repeats,
        adaptive=Adaptive(maximum=repeats + further, within=0.05, budget=budget),
        anchor=Anchor(levels=levels, every=every) if every is not None else None,
        max_runs=100_000,
    )
    least, most = estimate(campaign, LAB), estimate(campaign, LAB, most=True)
    measured = [sum(share.runs for share in found.by_scenario.values()) for found in (least, most)]
    assert measured[0] == count(campaign, LAB).applicable * repeats
    if every is not None:
        assert [least.anchors.runs, most.anchors.runs] == [number // every for number in measured]
        assert most.anchors.seconds == pytest.approx(most.anchors.runs * run_seconds(campaign, Cell(levels=levels)))
    assert (least.runs, most.runs) == (measured[0] + least.anchors.runs, measured[1] + most.anchors.runs)
    further_work = (most.seconds - most.anchors.seconds) - (least.seconds - least.anchors.seconds)
    if budget is None:
        assert most.runs == count(campaign, LAB).most_runs
        assert further_work == pytest.approx(further * by_hand(campaign))
    else:
        assert further_work <= min(budget, further * by_hand(campaign)) + 1e-6


@pytest.mark.parametrize(
    ("text", "machines", "at_once"),
    [
        ("scenarios: same-host", 1, 9),
        ("scenarios: cross-host", 2, 4),
        ("scenarios: during-migration\nsettings: {seconds: 30}", 2, 3),
        ("scenarios: vm-to-host", 1, 9),
        ("scenarios: host-to-host\nsettings: {peer: other-host}", 2, 4),
        ("scenarios: vm-to-host\nsettings: {peer: box}", 1, 1),
        ("scenarios: same-host\nfactors: {host.rack: [left]}", 1, 2),
        ("scenarios: cross-host\nfactors: {host.rack: [left]}", 2, 1),
    ],
)
def test_what_a_run_needs_of_a_lab(text: str, machines: int, at_once: int) -> None:
    (needs,) = estimate(parse_campaign(f"campaign: x\n{text}\n"), RACK).needs
    assert (needs.machines, needs.at_once) == (machines, at_once)


def test_hosts_of_one_machine_are_never_used_at_once() -> None:
    found = estimate(CAMPAIGN, LAB)
    assert {(needs.machines, needs.at_once) for needs in found.needs} == {(1, 1)}
    assert sorted(found.needs) == list(found.needs)
    assert all(isinstance(needs, Needs) for needs in found.needs)


def test_the_demo_fits_into_a_quarter_of_an_hour() -> None:
    campaign = load_campaign(CONFIGS / "campaigns" / "kvm-nic-models.yaml")
    found = estimate(campaign, load_lab(CONFIGS / "labs" / "local.yaml"))
    assert found.seconds < 15 * 60
