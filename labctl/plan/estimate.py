"""How long a campaign takes: seconds of work from the transfers that are asked for and what goes around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Lab
from labctl.model.scenario import Scenario
from labctl.plan.matrix import Matrix
from labctl.plan.settings import settings_of


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that a run takes beside its transfers.

    The defaults are what was measured with the probe guest under software emulation; `measured` replaces the sum of
    them by the mean overhead seen per scenario (duration of a run less its seconds of transfer).
    """

    boot: float = 4.0
    """From creating the VMs, side by side, until their channels answer."""
    verify: float = 0.5
    """Reading facts and comparing them with what was asked for."""
    transfer: float = 0.5
    """Starting and ending one transfer."""
    migration: float = 1.0
    """Checks before and after a migration, which itself runs within the transfer."""
    teardown: float = 0.5
    """Removing the VMs and storing the result."""
    measured: Mapping[Scenario, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What the runs of one scenario take."""

    runs: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of work, one run after the other, in all and by scenario."""

    seconds: float
    by_scenario: Mapping[Scenario, Share]


def run_seconds(campaign: Campaign, cell: Cell, *, costs: Costs | None = None) -> float:
    """How long one run of the cell takes."""
    settings = settings_of(campaign, cell)
    seconds, warmup = float(settings["seconds"]), float(settings["warmup_seconds"])
    return _run_seconds(campaign, cell.scenario, seconds, warmup, costs or Costs())


def estimate(campaign: Campaign, lab: Lab, *, costs: Costs | None = None, matrix: Matrix | None = None) -> Estimate:
    """How long all runs of the campaign take in the lab, one after the other. With its `matrix` it is judged once."""
    tally = (matrix or Matrix(campaign, lab)).tally("seconds", "warmup_seconds")
    runs: dict[Scenario, int] = {}
    total: dict[Scenario, float] = {}
    for (scenario, (seconds, warmup)), cells in tally.items():
        assert isinstance(seconds, float)
        assert isinstance(warmup, float)
        here = cells * campaign.repeats
        each = _run_seconds(campaign, scenario, seconds, warmup, costs or Costs())
        runs[scenario] = runs.get(scenario, 0) + here
        total[scenario] = total.get(scenario, 0.0) + here * each
    ordered = [scenario for scenario in Scenario if scenario in runs]
    return Estimate(
        seconds=sum(total[scenario] for scenario in ordered),
        by_scenario={scenario: Share(runs=runs[scenario], seconds=total[scenario]) for scenario in ordered},
    )


def nights(seconds: float, window_seconds: float) -> int:
    """How many windows of this length the work takes; 0 when there is none."""
    if window_seconds <= 0:
        raise ValueError("a window has a length above 0")
    return ceil(seconds / window_seconds)


def _run_seconds(campaign: Campaign, scenario: Scenario, seconds: float, warmup_seconds: float, costs: Costs) -> float:
    moving = campaign.warmups * warmup_seconds + campaign.transfers * seconds
    if scenario in costs.measured:
        return moving + costs.measured[scenario]
    around = costs.verify + (campaign.warmups + campaign.transfers) * costs.transfer
    if scenario.vms:
        around += costs.boot + costs.teardown
    if scenario.migrates:
        around += campaign.transfers * costs.migration
    return moving + around
