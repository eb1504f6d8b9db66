"""What scheduling asks of a campaign again and again and what never changes, worked out once a process.

Campaigns and labs don't change once they are submitted, so neither does where the runs of a cell may be, what they lease
there, and what they have to do. What is learnt is only how long runs take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from labctl import clock
from labctl.model.campaign import Cell
from labctl.model.nic import NIC_MODELS
from labctl.model.order import Placement, RunOrder
from labctl.model.scenario import OWN_HOST, Scenario
from labctl.model.settings import Level
from labctl.plan.applicability import HOSTS
from labctl.plan.choose import Places, Resources, WaitingRun
from labctl.plan.estimate import Costs, run_seconds, usual_costs
from labctl.plan.hypervisors import hosts_for_vms
from labctl.plan.matrix import Matrix
from labctl.plan.placement import find_placements, hosts_for
from labctl.plan.resolve import resolve
from labctl.plan.resources import host_resource, machine_resource, machines_of, migration_slots, resources_of
from labctl.plan.settings import settings_of
from labctl.plan.windows import Opening, longest_opening, next_opening, opening_at
from labctl.store import CampaignHead, PendingRun, Store

LEARN_SECONDS = 10.0
"""For so long is good what was learnt of the seconds of runs."""
_LEARN_CELLS = 200
_DAY = 86_400.0
_MOST_CELLS = 8192
"""So many cells of a campaign are kept in mind."""


@dataclass(frozen=True, kw_only=True)
class Spots:
    """The placements that runs of some cells may have, and the same as it is chosen from: a position is the same in
    both. `hosts` are all hosts and plain machines that are part of any."""

    placements: tuple[Placement, ...]
    places: Places
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KnownCell:
    """Where the runs of a cell may be, and what they have to do, in the first of these placements."""

    spots: Spots
    order: RunOrder


class KnownCampaign:
    """A campaign that is worked on."""

    def __init__(self, head: CampaignHead, resources: Resources) -> None:
        self.id, self.name, self.purpose = head.id, head.name, head.purpose
        self.campaign, self.lab = head.campaign, head.lab
        self.machines = machines_of(head.lab)
        self._resources = resources
        self._spots: dict[tuple[Scenario, frozenset[str], str, str], Spots] = {}
        self._cells: dict[tuple[tuple[str, Level], ...], KnownCell] = {}
        self._opening: Opening | None = None
        self._next_opening: Opening | None = None
        self._looked_at = 0.0
        self._longest: tuple[float, float] | None = None
        self._costs = usual_costs(self.lab)
        self._learnt_at: float | None = None
        self._seconds: dict[str, float] = {}
        self._name_resources()
        self.places = self._all_places()

    def cell(self, cell: Cell) -> KnownCell:
        """What is known of a cell."""
        key = tuple(cell.levels.items())
        found = self._cells.get(key)
        if found is None:
            settings = settings_of(self.campaign, cell)
            nic_model, image = str(settings.get("nic_model", "")), str(settings.get("image", ""))
            peer = str(settings.get("peer", OWN_HOST))
            spots = self._spots_of(cell.scenario, hosts_for(settings, self.lab), nic_model, image, peer)
            found = KnownCell(spots=spots, order=resolve(self.campaign, cell, self.lab, placement=spots.placements[0]))
            if len(self._cells) >= _MOST_CELLS:
                self._cells.clear()
            self._cells[key] = found
        return found

    def waiting_run(self, store: Store, run: PendingRun) -> WaitingRun:
        """A pending run as it is chosen from.

        Hosts are a blocking factor. Replicate 1 of every cell would rather be in one placement (which one is the seed's to
        say), replicate 2 of every cell in the next, and a run that is tried again in the one after that: so cells meet
        hosts equally, as far as that can be had without waiting for hosts.
        """
        # With `reuse` all blocks wish for the same hosts: that is where their VMs are parked.
        block = 0 if self.campaign.reuse else run.replicate - 1
        wish = self.campaign.seed + block + run.attempts
        return WaitingRun(
            id=run.id, places=self.cell(run.cell).spots.places, seconds=self._seconds_of(store, run), wish=wish
        )

    def order(self, cell: Cell, position: int) -> RunOrder:
        """What an attempt at a run of the cell has to do in a placement."""
        known = self.cell(cell)
        return replace(known.order, placement=known.spots.placements[position])

    def spots_of(self, places: Places) -> Spots:
        """The placements that these places of its runs stand for."""
        return next(spots for spots in self._spots.values() if spots.places is places)

    def opening(self, now: float) -> Opening | None:
        """The opening of its windows that this instant lies in."""
        if self._opening is None or now not in self._opening:
            self._opening = opening_at(self.campaign.windows, now)
        return self._opening

    def next_opening(self, now: float) -> Opening | None:
        """The first opening of its windows that starts after this instant; None when there is none any more."""
        known = self._next_opening
        if known is None or not self._looked_at <= now < known.start:
            self._next_opening, self._looked_at = next_opening(self.campaign.windows, now), now
        return self._next_opening

    def longest_opening(self, now: float) -> float:
        """The seconds of the longest opening of the year from this instant on."""
        if self._longest is None or not self._longest[0] <= now < self._longest[0] + _DAY:
            found = longest_opening(self.campaign.windows, now)
            self._longest = now, found.seconds if found is not None else 0.0
        return self._longest[1]

    def _seconds_of(self, store: Store, run: PendingRun) -> float:
        """How long a run presumably keeps its hosts: as long as others of its cell did, or else what its transfers take
        and what went around those of other cells of its scenario."""
        if run.seconds is not None:
            return run.seconds
        self._learn(store)
        cell = run.cell.id
        if cell not in self._seconds:
            self._seconds[cell] = run_seconds(self.campaign, run.cell, costs=self._costs)
        return self._seconds[cell]

    def _learn(self, store: Store) -> None:
        now = clock.monotonic()
        if self._learnt_at is not None and now - self._learnt_at < LEARN_SECONDS:
            return
        around: dict[Scenario, list[float]] = {}
        for cell, seconds in store.timed_cells(self.id, limit=_LEARN_CELLS):
            transfers = run_seconds(self.campaign, cell, costs=Costs(measured={cell.scenario: 0.0}))
            around.setdefault(cell.scenario, []).append(max(0.0, seconds - transfers))
        self._costs = Costs(measured={scenario: fmean(some) for scenario, some in around.items()})
        self._learnt_at = now
        self._seconds = {}

    def _name_resources(self) -> None:
        """Give numbers to all that any run may lease, so that none is new when runs are chosen."""
        lab = self.lab
        machines = {name: host.machine for name, host in lab.hosts.items()}
        machines |= {name: machine.machine for name, machine in lab.machines.items()}
        for name, machine in machines.items():
            self._resources.number(host_resource(name))
            self._resources.number(machine_resource(machine))
        for slot in migration_slots(lab):
            self._resources.number(slot)

    def _all_places(self) -> frozenset[Places]:
        """The places of all runs that the campaign can have."""
        found: set[Places] = set()
        asked = HOSTS, "nic_model", "image", "peer"
        for scenario, (hosts, nic_model, image, peer) in Matrix(self.campaign, self.lab).tally(*asked):
            assert isinstance(hosts, frozenset)
            found.add(self._spots_of(scenario, hosts, str(nic_model), str(image), str(peer)).places)
        return frozenset(found)

    def _spots_of(self, scenario: Scenario, hosts: frozenset[str], nic_model: str, image: str, peer: str) -> Spots:
        """One for all cells that have the same placements: an adapter that all hosts have is as good as another."""
        if scenario.vms:
            hosts = frozenset(host.name for host in hosts_for_vms(hosts, nic_model, image, self.lab))
        device = nic_model if scenario.vms and NIC_MODELS[nic_model].passthrough else ""
        key = scenario, hosts, device, peer if scenario.has_peer else ""
        if key not in self._spots:
            found, _ = find_placements(scenario, self.lab, hosts=hosts, nic_model=nic_model, image=image, peer=peer)
            self._spots[key] = self._make_spots(scenario, found)
        return self._spots[key]

    def _make_spots(self, scenario: Scenario, found: tuple[Placement, ...]) -> Spots:
        placements = _spread(found, [*self.lab.hosts, *self.lab.machines])
        return Spots(
            placements=placements,
            places=Places(
                self._resources,
                [resources_of(placement, self.lab) for placement in placements],
                slots=migration_slots(self.lab) if scenario.migrates else (),
            ),
            hosts=tuple(dict.fromkeys(name for placement in placements for name in placement.hosts)),
        )


def _spread(placements: tuple[Placement, ...], names: list[str]) -> tuple[Placement, ...]:
    """Placements in an order in which neighbours have no host in common where that can be had: of pairs first each host
    with the next one, then each with the next but one."""
    number = {name: at for at, name in enumerate(names)}

    def rank(placement: Placement) -> tuple[int, int]:
        first, last = number[placement.hosts[0]], number[placement.hosts[-1]]
        return (last - first) % len(names), first

    return tuple(sorted(placements, key=rank))
