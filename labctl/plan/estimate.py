"""How long a campaign takes: seconds of work from the transfers that are asked for and what goes around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import GuestSystem, Lab
from labctl.model.nic import Hypervisor
from labctl.model.scenario import OTHER_HOST, OWN_HOST, Scenario
from labctl.plan.applicability import HOSTS
from labctl.plan.matrix import Matrix
from labctl.plan.placement import hosts_for
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


_CLONED = Costs(boot=60.0, verify=5.0, transfer=2.0, migration=5.0, teardown=10.0)
"""A guess until runs were measured: VMs with disks, whose hosts and guests are asked by calls that take a second each."""
_WINDOWS_BOOT = 150.0


def usual_costs(lab: Lab) -> Costs:
    """What runs in this lab presumably take beside their transfers, as long as none was measured."""
    if lab.simulated is not None or any(host.hypervisor is Hypervisor.KVM for host in lab.hosts.values()):
        return Costs()
    windows = any(image.system is GuestSystem.WINDOWS for image in lab.images.values())
    return replace(_CLONED, boot=_WINDOWS_BOOT) if windows else _CLONED


@dataclass(frozen=True, kw_only=True)
class Share:
    """What the runs of one scenario, or of the anchor, take: seconds of all of them, one after the other."""

    runs: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, order=True)
class Needs:
    """What a run needs: `seconds`, and physical machines with hosts. `at_once`: so many like it the lab can do at once."""

    seconds: float
    machines: int = 1
    at_once: int = 1


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the campaign takes in all. `seconds` is its work, one run after the other."""

    seconds: float
    by_scenario: Mapping[Scenario, Share]
    """The runs that measure."""
    anchors: Share
    """The further runs of the anchor cell."""
    needs: Mapping[Needs, int]
    """All runs, anchors among them, by what they need."""

    @property
    def runs(self) -> int:
        """How many runs there are in all."""
        return sum(self.needs.values())


def run_seconds(campaign: Campaign, cell: Cell, *, costs: Costs | None = None) -> float:
    """How long one run of the cell takes."""
    settings = settings_of(campaign, cell)
    seconds, warmup = float(settings["seconds"]), float(settings["warmup_seconds"])
    return _run_seconds(campaign, cell.scenario, seconds, warmup, costs or Costs())


def needs_of(campaign: Campaign, cell: Cell, lab: Lab, *, costs: Costs | None = None) -> Needs:
    """What one run of the cell needs."""
    settings = settings_of(campaign, cell)
    seconds = run_seconds(campaign, cell, costs=costs or usual_costs(lab))
    return _needs(lab, cell.scenario, seconds, str(settings.get("peer", OWN_HOST)), hosts_for(settings, lab))


def estimate(
    campaign: Campaign, lab: Lab, *, costs: Costs | None = None, matrix: Matrix | None = None, most: bool = False
) -> Estimate:
    """How long all runs of the campaign take in the lab: the least, or with adaptive repeats the `most` that they can.

    With its `matrix` the campaign is judged once.
    """
    costs = costs or usual_costs(lab)
    cells = _tally(campaign, lab, matrix or Matrix(campaign, lab), costs)
    measured = _repeated(campaign, cells, most=most)
    anchors = _anchors(campaign, lab, sum(measured.values()), costs)
    needs: Counter[Needs] = Counter(anchors)
    for (_, each), runs in measured.items():
        needs[each] += runs
    return Estimate(
        seconds=_share(needs).seconds,
        by_scenario=_by_scenario(measured),
        anchors=_share(anchors),
        needs={each: needs[each] for each in sorted(needs) if needs[each]},
    )


def longest_run(campaign: Campaign, lab: Lab, *, costs: Costs | None = None, matrix: Matrix | None = None) -> float:
    """Seconds of the longest of the campaign's runs; 0 when it has none."""
    cells = _tally(campaign, lab, matrix or Matrix(campaign, lab), costs or usual_costs(lab))
    return max((needs.seconds for _, needs in cells), default=0.0)


Tally = Mapping[tuple[Scenario, Needs], int]


def _tally(campaign: Campaign, lab: Lab, matrix: Matrix, costs: Costs) -> Tally:
    """Applicable cells by scenario and by what their runs need."""
    found: Counter[tuple[Scenario, Needs]] = Counter()
    for (scenario, levels), cells in matrix.tally("seconds", "warmup_seconds", "peer", HOSTS).items():
        seconds, warmup, peer, hosts = levels
        assert isinstance(seconds, float)
        assert isinstance(warmup, float)
        assert isinstance(hosts, frozenset)
        each = _run_seconds(campaign, scenario, seconds, warmup, costs)
        found[scenario, _needs(lab, scenario, each, str(peer), hosts)] += cells
    return found


def _needs(lab: Lab, scenario: Scenario, seconds: float, peer: str, hosts: Iterable[str]) -> Needs:
    there = len({lab.hosts[name].machine for name in hosts})
    two = scenario in (Scenario.CROSS_HOST, Scenario.DURING_MIGRATION) or (scenario.has_peer and peer == OTHER_HOST)
    machines = max(1, min(2 if two else 1, there))
    at_once = max(1, there // machines)
    if scenario.migrates:
        at_once = min(at_once, lab.limits.migrations_at_once)
    if scenario.has_peer and peer not in (OWN_HOST, OTHER_HOST):
        at_once = 1  # a plain machine takes part in one run at a time
    return Needs(seconds=seconds, machines=machines, at_once=at_once)


def _repeated(campaign: Campaign, cells: Tally, *, most: bool) -> Tally:
    """Runs that measure, by scenario and need. Those beyond the least number take no more work than the budget."""
    runs = {key: number * campaign.repeats for key, number in cells.items()}
    if not most or campaign.adaptive is None:
        return runs
    further = {key: number * (campaign.adaptive.maximum - campaign.repeats) for key, number in cells.items()}
    work, budget = sum(needs.seconds * number for (_, needs), number in further.items()), campaign.adaptive.budget
    share = 1.0 if budget is None or work <= budget else budget / work
    return {key: number + int(further[key] * share) for key, number in runs.items()}


def _anchors(campaign: Campaign, lab: Lab, measured: int, costs: Costs) -> dict[Needs, int]:
    """The anchor's further runs beside so many that measure."""
    if campaign.anchor is None:
        return {}
    needs = needs_of(campaign, Cell(levels=campaign.anchor.levels), lab, costs=costs)
    return {needs: measured // campaign.anchor.every}


def _by_scenario(measured: Tally) -> dict[Scenario, Share]:
    found: dict[Scenario, Share] = {}
    for scenario in Scenario:
        here = {needs: runs for (each, needs), runs in measured.items() if each is scenario}
        if here:
            found[scenario] = _share(here)
    return found


def _share(needs: Mapping[Needs, int]) -> Share:
    return Share(runs=sum(needs.values()), seconds=sum(each.seconds * runs for each, runs in needs.items()))


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
