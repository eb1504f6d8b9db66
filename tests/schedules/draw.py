"""Drawing a schedule from one number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

from labctl.model.campaign import Adaptive, Campaign, Override, Selection, Timeouts
from labctl.model.lab import Lab
from labctl.model.scenario import Scenario
from labctl.plan.matrix import count
from labctl.spec.simulated import SimulatedSpec, expand_simulated
from tests.schedules.schedule import Happening, Schedule, Stranger, Submitted, Trouble
from workers.hypervisors.simulated.faults import FOR_EVER, Fault, FaultKind

LAB = "night"
MOST_RUNS = 8
"""Of one campaign."""
_SECONDS_OF_WORK = 3.0
"""Troubles come within so many seconds, because by then most of the work is done."""
_TIMEOUTS = Timeouts(boot=1.5, command=1.0, transfer_grace=1.0, migration=1.5)
_SHORT = (("iperf", 0.2, 0.1), ("iperf", 0.3, 0.1), ("iperf", 0.6, 0.2))
"""Tools with seconds of transfers and warm-ups; iperf3 takes whole seconds only."""
_MIGRATIONS = Override(
    when=Selection(levels={"scenario": (Scenario.DURING_MIGRATION,)}),
    settings={"tool": "iperf", "seconds": 1.75, "migrate_at": 0.2},
)
"""A transfer that is too short shows no migration, and is refused."""
_SCENARIOS = {
    Scenario.SAME_HOST: 4,
    Scenario.CROSS_HOST: 4,
    Scenario.DURING_MIGRATION: 4,
    Scenario.VM_TO_HOST: 1,
    Scenario.HOST_TO_VM: 1,
    Scenario.HOST_TO_HOST: 1,
}
"""How often each is drawn."""


def draw(seed: int) -> Schedule:
    """The schedule of this number. Of numbers in a row each has another trouble among its own, so that all come up."""
    chance = random.Random(f"schedule {seed}")
    lab = _lab(chance, seed)
    campaigns = tuple(
        Submitted(campaign=_campaign(chance, number, lab), at=0.0 if number == 1 else chance.choice((0.0, 0.5, 1.5)))
        for number in range(1, chance.choice((1, 2, 2, 3)) + 1)
    )
    troubles = list(Trouble)
    chosen = [troubles[seed % len(troubles)], *chance.sample(troubles, k=chance.choice((1, 2, 2, 3, 4)))]
    return Schedule(
        seed=seed,
        lab=lab,
        strangers=_strangers(chance, lab),
        campaigns=campaigns,
        services=chance.choice((1, 1, 2)),
        shared_redis=chance.random() < 0.5,
        cold=chance.random() < 0.3,
        happenings=tuple(_happening(chance, trouble, lab) for trouble in dict.fromkeys(chosen)),
    )


def _lab(chance: random.Random, seed: int) -> Lab:
    """A simulated lab some of whose hosts share a machine, and not all of which can migrate to each other."""
    names = tuple(f"h{number}" for number in range(1, chance.randint(2, 6) + 1))
    spec = SimulatedSpec(hosts=names, machines=("box",), seed=seed, directory=PurePosixPath())
    lab = expand_simulated(LAB, "tests", spec)
    hosts = dict(lab.hosts)
    if len(names) > 2 and chance.random() < 0.5:
        first, second = chance.sample(names, 2)
        hosts[second] = replace(hosts[second], machine=hosts[first].machine)
    pairs = sorted(lab.migration_pairs)
    if chance.random() < 0.4:
        pairs = chance.sample(pairs, max(1, len(pairs) // 2))
    return replace(lab, hosts=hosts, migration_pairs=frozenset(pairs))


def _campaign(chance: random.Random, number: int, lab: Lab) -> Campaign:
    kinds, weights = list(_SCENARIOS), list(_SCENARIOS.values())
    scenarios = dict.fromkeys(chance.choices(kinds, weights, k=chance.randint(1, 3)))
    factors = chance.choice(({}, {"nic_model": ("virtio", "e1000")}, {"streams": (1, 2)}))
    repeats = chance.randint(1, 3)
    tool, seconds, warmup = chance.choice((("iperf3", 1.0, 1.0), *_SHORT))
    slow = tool == "iperf3" or Scenario.DURING_MIGRATION in scenarios
    campaign = Campaign(
        name=f"c{number}",
        scenarios=tuple(scenarios),
        factors=factors,
        settings={"tool": tool, "seconds": seconds, "warmup_seconds": warmup, "interval": 0.1},
        overrides=(_MIGRATIONS,),
        repeats=repeats,
        warmups=0 if slow else chance.choice((0, 0, 1)),
        transfers=1 if slow else chance.choice((1, 1, 2)),
        reuse=chance.random() < 0.25,
        seed=number,
        timeouts=_TIMEOUTS,
        lab_error_retries=chance.randint(1, 3),
        priority=chance.choice((0, 0, 5)),
        adaptive=Adaptive(maximum=repeats + 2, within=0.0001) if chance.random() < 0.25 else None,
        back_off=0.1,
    )
    most = MOST_RUNS // 2 if slow else MOST_RUNS
    while count(campaign, lab).applicable * campaign.repeats > most and campaign.repeats > 1:
        campaign = replace(campaign, repeats=campaign.repeats - 1)
    return campaign


def _strangers(chance: random.Random, lab: Lab) -> tuple[Stranger, ...]:
    """VMs that were there before: with no mark, also under names like ours; seldom one of another labctl, because nothing
    is measured beside it."""
    hosts = list(lab.hosts)
    found = [
        Stranger(host=chance.choice(hosts), name="accounting", mark="none"),
        Stranger(host=chance.choice(hosts), name=f"labctl-{lab.name}-c9-r9-a9-sender", mark="none"),
        Stranger(host=chance.choice(hosts), name="labctl-elsewhere-c1-r1-a1-sender", mark="other lab"),
    ]
    if len(hosts) > 2 and chance.random() < 0.1:
        name = f"labctl-{lab.name}-c1-r1-a1-receiver"
        found.append(Stranger(host=chance.choice(hosts), name=name, mark="other store"))
    return tuple(found)


def _happening(chance: random.Random, trouble: Trouble, lab: Lab) -> Happening:
    host, pick = chance.choice(list(lab.hosts)), chance.randrange(100)
    at = round(chance.uniform(0.1, _SECONDS_OF_WORK), 2)
    happening = Happening(trouble=trouble, at=at, pick=pick)
    if trouble in _FAULTS:
        return replace(happening, at=0.0, pick=0, faults=_FAULTS[trouble](chance, host, at))
    if trouble in _LASTS:
        happening = replace(happening, seconds=round(chance.uniform(*_LASTS[trouble]), 2))
    if trouble in _NTH:
        least, most = _NTH[trouble]
        happening = replace(happening, at=0.0, nth=int(least * (most / least) ** chance.random()))
    if trouble in (Trouble.CLOCK_STEPPED, Trouble.CLOCK_STEPPED_AND_BACK):
        happening = replace(happening, amount=chance.choice((-3600.0, 3600.0)))
    if trouble is Trouble.PRIORITY:
        happening = replace(happening, amount=chance.choice((-10, 0, 10)))
    return happening


_OPERATIONS = ("create", "destroy", "locate", "read_back", "run", "start", "wait", "finished", "wait_ready", "migrate",
               "hand-over", "pause", "unpause", "owned", "host_facts")  # fmt: skip
"""Operations on the lab; the others are like one of these."""


def _failing(chance: random.Random, host: str, _at: float) -> tuple[Fault, ...]:
    operation = chance.choice(_OPERATIONS)
    return tuple(
        Fault(kind=FaultKind.FAIL, operation=operation, host=chance.choice((host, "")), nth=nth)
        for nth in sorted(chance.sample(range(1, 12), k=chance.randint(1, 4)))
    )


def _hanging(chance: random.Random, host: str, at: float) -> tuple[Fault, ...]:
    if chance.random() < 0.5:
        return (Fault(kind=FaultKind.HANG, host=host, start=at, end=at + chance.uniform(0.2, 1.0)),)
    operation = chance.choice(_OPERATIONS)
    return tuple(Fault(kind=FaultKind.HANG, operation=operation, nth=nth) for nth in range(1, chance.randint(1, 3) + 1))


_FAULTS: dict[Trouble, Callable[[random.Random, str, float], tuple[Fault, ...]]] = {
    Trouble.HOST_LOST: lambda chance, host, at: (
        Fault(kind=FaultKind.HOST_LOST, host=host, start=at, end=at + chance.uniform(0.3, 2.5)),
    ),
    Trouble.HOST_LOST_TILL_MORNING: lambda _, host, at: (
        Fault(kind=FaultKind.HOST_LOST, host=host, start=at, end=FOR_EVER),
    ),
    Trouble.HOST_HANGS: _hanging,
    Trouble.CREATE_FAILS: lambda chance, host, _: tuple(
        Fault(kind=FaultKind.FAIL, operation="create", host=host, nth=nth) for nth in range(1, chance.randint(1, 8) + 1)
    ),
    Trouble.NEVER_BOOTS: lambda chance, host, _: tuple(
        Fault(kind=FaultKind.NEVER_BOOTS, operation="create", host=host, nth=nth)
        for nth in chance.sample(range(1, 9), k=2)
    ),
    Trouble.VM_VANISHES: lambda chance, _host, _at: tuple(
        Fault(kind=FaultKind.VANISH, operation=chance.choice(_OPERATIONS), nth=chance.randint(1, 10)) for _ in range(3)
    ),
    Trouble.OPERATION_FAILS: _failing,
    Trouble.CONNECTION_LOST: lambda chance, _host, _at: tuple(
        Fault(kind=FaultKind.CONNECTION_LOST, operation="start", nth=nth) for nth in chance.sample(range(1, 12), k=2)
    ),
    Trouble.NEVER_CONVERGES: lambda chance, _host, _at: tuple(
        Fault(kind=FaultKind.NEVER_CONVERGES, operation="migrate", nth=nth) for nth in chance.sample(range(1, 6), k=2)
    ),
    Trouble.WORKER_DIES_AT_OPERATION: lambda chance, host, _: tuple(
        Fault(
            kind=FaultKind.DIE,
            operation=chance.choice(("", "", *_OPERATIONS)),
            host=chance.choice((host, "", "")),
            nth=chance.choice((chance.randint(1, 12), chance.randint(1, 250))),
        )
        for _ in range(chance.randint(1, 3))
    ),
}

_LASTS: dict[Trouble, tuple[float, float]] = {
    Trouble.WORKER_STOPS_AT_OPERATION: (2.5, 4.5),
    Trouble.WORKER_STOPPED: (2.5, 4.5),
    Trouble.WORKER_STOPPED_BRIEFLY: (0.2, 1.0),
    Trouble.MAIN_STOPPED: (0.3, 3.0),
    Trouble.SERVICE_STOPPED: (0.3, 4.0),
    Trouble.SERVICE_KILLED: (0.1, 2.0),
    Trouble.SERVICE_DIES_AT_STORE: (0.1, 1.5),
    Trouble.SERVICE_DIES_AT_LINE: (0.1, 1.5),
    Trouble.EVERYTHING_KILLED: (0.1, 2.0),
    Trouble.REDIS_KILLED: (0.1, 0.5),
    Trouble.REDIS_GONE: (3.5, 5.0),
    Trouble.REDIS_STOPPED: (0.5, 3.0),
    Trouble.STORE_LOCKED: (0.3, 1.2),
    Trouble.STORE_LOCKED_FOR_LONG: (2.5, 4.0),
    Trouble.CLOCK_STEPPED_AND_BACK: (0.3, 2.5),
    Trouble.PAUSE: (0.3, 1.5),
    Trouble.PAUSE_NOW: (0.3, 1.5),
    Trouble.HOST_TAKEN_OUT: (0.3, 2.0),
}
"""How long troubles last, in seconds, from and to. Times of the engine are shortened; see `shortened`."""

_NTH: dict[Trouble, tuple[float, float]] = {
    Trouble.WORKER_DIES_AT_LINE: (1, 30_000),
    Trouble.WORKER_DIES_AT_STORE: (1, 120),
    Trouble.WORKER_STOPS_AT_OPERATION: (1, 250),
    Trouble.SERVICE_DIES_AT_STORE: (1, 60),
    Trouble.SERVICE_DIES_AT_LINE: (100, 100_000),
}
"""The first and the last occurrence that may be meant; small ones are as likely as large ones."""
