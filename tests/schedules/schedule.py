"""A schedule: one short night with a simulated lab, a few campaigns, and everything that goes wrong in it.

All of it is drawn from one number (`draw`), so a night that broke a promise can be had again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from workers.hypervisors.simulated.faults import Fault


class Trouble(StrEnum):
    """What happens in a night, by whom it happens."""

    # To hosts and VMs: the simulated lab does it.
    HOST_LOST = "a host answers nothing for a while"
    HOST_LOST_TILL_MORNING = "a host answers nothing until the morning"
    HOST_HANGS = "calls to a host hang until their deadline"
    CREATE_FAILS = "VMs are not created"
    NEVER_BOOTS = "guests never boot"
    VM_VANISHES = "VMs vanish"
    OPERATION_FAILS = "an operation fails"
    CONNECTION_LOST = "transfers lose their connection"
    NEVER_CONVERGES = "migrations never converge"
    # To processes.
    WORKER_DIES_AT_OPERATION = "a worker is killed before its n-th operation on the lab"
    WORKER_DIES_AT_LINE = "a worker is killed before its n-th line of Python"
    WORKER_DIES_AT_STORE = "a worker is killed before or after its n-th call of the store"
    WORKER_STOPS_AT_OPERATION = "a worker is stopped before its n-th operation for longer than its lease"
    WORKER_STOPPED = "a worker is stopped at some moment for longer than its lease"
    WORKER_STOPPED_BRIEFLY = "a worker is stopped for a moment"
    WORKER_KILLED = "a worker is killed at some moment"
    ALL_WORKERS_KILLED = "all workers of a service are killed at once"
    MAIN_KILLED = "Celery's main process is killed"
    MAIN_STOPPED = "Celery's main process is stopped for a while"
    SERVICE_DIES_AT_STORE = "a service is killed before or after its n-th call of the store"
    SERVICE_DIES_AT_LINE = "a service is killed before its n-th line of Python"
    SERVICE_KILLED = "a service is killed and started again"
    SERVICE_STOPPED = "a service is stopped for a while"
    SERVICE_RESTARTED = "a service is ended and started again"
    EVERYTHING_KILLED = "all processes are killed at once, Redis too, and the services are started again"
    # To what they share.
    REDIS_KILLED = "Redis is killed"
    REDIS_GONE = "Redis is gone for longer than a message is waited for"
    REDIS_STOPPED = "Redis is stopped for a while"
    REDIS_FLUSHED = "Redis forgets everything"
    DELIVERED_TWICE_EARLY = "the messages of attempts are delivered again at once"
    DELIVERED_TWICE_LATE = "the messages of attempts that have ended are delivered again"
    STORE_LOCKED = "another process locks the store"
    STORE_LOCKED_FOR_LONG = "another process locks the store for longer than anybody is patient"
    CLOCK_STEPPED = "the wall clock is stepped by an hour"
    CLOCK_STEPPED_AND_BACK = "the wall clock is stepped by an hour and back"
    # By people.
    CANCEL = "a campaign is cancelled"
    CANCEL_NOW = "a campaign is cancelled and its attempts are ended"
    PAUSE = "a campaign is paused and goes on later"
    PAUSE_NOW = "a campaign is paused, its attempts are ended, and it goes on later"
    PAUSE_FOR_GOOD = "a campaign is paused and stays so"
    RETRY = "what failed is tried again"
    PRIORITY = "a campaign is given another priority"
    HOST_TAKEN_OUT = "a host is taken out and let in again"


IN_THE_LAB = frozenset(list(Trouble)[: list(Trouble).index(Trouble.WORKER_DIES_AT_OPERATION)])
"""What the simulated lab does by itself, by its plan of faults."""


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One trouble of a night. `at` is when, in seconds after its beginning; what the other figures mean is up to it."""

    trouble: Trouble
    at: float = 0.0
    seconds: float = 0.0
    """How long it lasts."""
    pick: int = 0
    """Which of those that it may happen to, counted around."""
    nth: int = 0
    amount: float = 0.0
    """Seconds of a step of a clock; a priority."""
    faults: tuple[Fault, ...] = ()
    """What the simulated lab is told; times are seconds after the beginning."""

    def __str__(self) -> str:
        figures = {"at": self.at, "for": self.seconds, "nth": self.nth, "pick": self.pick, "amount": self.amount}
        said = [f"{name} {value:g}" for name, value in figures.items() if value]
        said += [
            f"{fault.kind} {fault.operation or 'any operation'} on {fault.host or 'any host'}"
            + (f" #{fault.nth}" if fault.nth else "")
            for fault in self.faults
        ]
        return f"{self.trouble} ({', '.join(said)})"


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """A VM on a host of the lab that is not ours, and that nobody may touch."""

    host: str
    name: str
    mark: str
    """`none`, or whose mark it carries: `other store`, `other lab`."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A campaign, and when it is submitted, in seconds after the beginning."""

    campaign: Campaign
    at: float


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One night."""

    seed: int
    lab: Lab
    """Its world is in the directory `.`: where it really is, is known when the night begins."""
    strangers: tuple[Stranger, ...]
    campaigns: tuple[Submitted, ...]
    services: int
    """How many services work on the store at once."""
    shared_redis: bool
    """Whether they share one Redis, which they were not the ones to start."""
    cold: bool
    """Whether the campaigns are there before the services."""
    happenings: tuple[Happening, ...]

    @property
    def troubles(self) -> frozenset[Trouble]:
        """What happens in it."""
        return frozenset(happening.trouble for happening in self.happenings)

    def __str__(self) -> str:
        lab = ", ".join(
            host.name if host.machine == host.name else f"{host.name} (on {host.machine})"
            for host in self.lab.hosts.values()
        )
        redis = "one Redis for all" if self.shared_redis else "a Redis each"
        lines = [
            f"seed {self.seed}: hosts {lab}; {len(self.lab.migration_pairs)} migration paths; "
            f"{self.services} service(s) with {redis}, started {'after' if self.cold else 'before'} the campaigns came",
            *(
                f"  campaign {each.campaign.name} at {each.at:.1f} s: {in_words(each.campaign)}"
                for each in self.campaigns
            ),
            *(f"  stranger {each.name} on {each.host}, mark: {each.mark}" for each in self.strangers),
            *(f"  {happening}" for happening in self.happenings),
        ]
        return "\n".join(lines)


def in_words(campaign: Campaign) -> str:
    """What a campaign asks for, in short."""
    factors = "".join(f", {name} in {list(levels)}" for name, levels in campaign.factors.items())
    more = f", up to {campaign.adaptive.maximum} repeats" if campaign.adaptive else ""
    more += ", with reuse" if campaign.reuse else ""
    return (
        f"{', '.join(campaign.scenarios)}{factors}, {campaign.repeats} repeats{more}, "
        f"{campaign.lab_error_retries} retries, priority {campaign.priority}"
    )
