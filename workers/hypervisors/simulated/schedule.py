"""Schedules of faults: a seed decides what goes wrong in a rehearsal, on which host, when, and how often."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from labctl.campaign.incidents import Incident, IncidentKind
from labctl.model.lab import Lab
from workers.hypervisors.simulated.faults import Fault, FaultKind

LINES_OF_A_RUN = 25
"""About how many operations a run with two VMs has, each a line at which a process can be killed."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What goes wrong: on the hosts, and to the engine."""

    faults: tuple[Fault, ...]
    incidents: tuple[Incident, ...]


@dataclass(frozen=True, kw_only=True)
class Night:
    """What a schedule is made for: so many runs, the first of which may begin `start` seconds after the rehearsal does, and
    which take about `seconds` in all."""

    lab: Lab
    runs: int
    start: float
    seconds: float
    migrates: bool


def schedule_of(seed: int, night: Night) -> Schedule:
    """Between six and a dozen faults and up to four incidents. The same seed gives the same ones for the same night."""
    chance = random.Random(f"faults:{seed}")  # noqa: S311 - a rehearsal, not a secret
    hosts = list(night.lab.hosts)
    made = [make(chance, night, hosts) for make in chance.choices(_MAKERS, k=chance.randint(6, 12))]
    if not night.migrates:
        made = [fault for fault in made if fault.kind is not FaultKind.NEVER_CONVERGES]
    return Schedule(faults=tuple(made), incidents=tuple(_incidents(chance, night)))


def _moment(chance: random.Random, night: Night) -> float:
    return night.start + chance.uniform(0.02, 0.95) * night.seconds


def _nth(chance: random.Random, night: Night, per_run: float) -> int:
    """The number of an operation of which a run has so many."""
    return chance.randint(1, max(1, round(per_run * night.runs)))


def _killed(chance: random.Random, night: Night, _hosts: Sequence[str]) -> Fault:
    return Fault(kind=FaultKind.DIE, nth=_nth(chance, night, LINES_OF_A_RUN))


def _lost(chance: random.Random, night: Night, hosts: Sequence[str]) -> Fault:
    start = _moment(chance, night)
    seconds = chance.choice([5.0, 60.0, 600.0])
    return Fault(kind=FaultKind.HOST_LOST, host=chance.choice(hosts), start=start, end=start + seconds)


def _hanging(chance: random.Random, night: Night, _hosts: Sequence[str]) -> Fault:
    operation = chance.choice(["create", "destroy", "run", "start", "locate", "owned"])
    return Fault(kind=FaultKind.HANG, operation=operation, nth=_nth(chance, night, 2))


def _failing(chance: random.Random, night: Night, _hosts: Sequence[str]) -> Fault:
    operation = chance.choice(["create", "destroy", "read_back", "host_facts", "run"])
    return Fault(kind=FaultKind.FAIL, operation=operation, nth=_nth(chance, night, 2))


def _never_booting(chance: random.Random, night: Night, _hosts: Sequence[str]) -> Fault:
    return Fault(kind=FaultKind.NEVER_BOOTS, operation="create", nth=_nth(chance, night, 2))


def _cut(chance: random.Random, night: Night, _hosts: Sequence[str]) -> Fault:
    return Fault(kind=FaultKind.CONNECTION_LOST, operation="start", nth=_nth(chance, night, 2))


def _vanishing(chance: random.Random, night: Night, _hosts: Sequence[str]) -> Fault:
    operation = chance.choice(["run", "start", "wait", "answer", "locate", "destroy"])
    return Fault(kind=FaultKind.VANISH, operation=operation, nth=_nth(chance, night, 2))


def _stuck(chance: random.Random, night: Night, _hosts: Sequence[str]) -> Fault:
    return Fault(kind=FaultKind.NEVER_CONVERGES, operation="migrate", nth=_nth(chance, night, 0.5))


def _slow(chance: random.Random, night: Night, hosts: Sequence[str]) -> Fault:
    start, factor = _moment(chance, night), chance.uniform(1.5, 4.0)
    return Fault(kind=FaultKind.SLOW, host=chance.choice(hosts), start=start, end=start + 600, factor=factor)


_Maker = Callable[[random.Random, Night, Sequence[str]], Fault]
_MAKERS: tuple[_Maker, ...] = (
    _killed, _killed, _lost, _hanging, _failing, _never_booting, _cut, _vanishing, _stuck, _slow,
)  # fmt: skip


def _incidents(chance: random.Random, night: Night) -> Iterator[Incident]:
    for kind in chance.sample(list(IncidentKind), chance.randint(0, len(IncidentKind))):
        step = chance.choice([-3600.0, -30.0, 30.0, 3600.0]) if kind is IncidentKind.CLOCK_STEPPED else 0.0
        yield Incident(kind=kind, at=_moment(chance, night), step=step)
