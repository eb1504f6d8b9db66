"""Whole campaigns rehearsed: real store, Redis, worker and engine, simulated hosts, a clock of their own."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from labctl import clock
from labctl.campaign.account import NOT_RUN, Account, account_of
from labctl.campaign.incidents import Incident, IncidentKind
from labctl.campaign.rehearsal import Rehearsal, rehearse, simulated
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState
from labctl.model.scenario import Scenario
from labctl.model.window import Windows, WindowTime
from labctl.plan.estimate import estimate
from labctl.plan.resources import machines_of
from labctl.plan.windows import opening_at
from labctl.report.data import report_of
from labctl.spec.simulated import SimulatedSpec, expand_simulated
from tests.simulated import vms_left
from tests.values import a_campaign, a_lab
from workers.hypervisors.simulated.faults import Fault, FaultKind, hits, write_faults
from workers.hypervisors.simulated.schedule import Night, schedule_of

pytestmark = pytest.mark.services

DUBLIN = ZoneInfo("Europe/Dublin")
EVENING = datetime(2026, 10, 24, 18, 0, tzinfo=DUBLIN).timestamp()
"""The evening before the clock goes back."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path, because Unix sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="labctl-test-") as name:
        yield Path(name)


def a_night_lab(directory: Path, *, hosts: int = 3) -> Lab:
    spec = SimulatedSpec(hosts=tuple(f"h{number}" for number in range(1, hosts + 1)))
    return simulated(expand_simulated("night", "tests", spec), directory / "world")


def a_night(**changes: object) -> Campaign:
    values: dict[str, object] = {"name": "night", "scenarios": (Scenario.SAME_HOST, Scenario.CROSS_HOST), "repeats": 3}
    return a_campaign(**(values | changes))


def told(rehearsal: Rehearsal, lab: Lab) -> Account:
    return account_of(rehearsal, vms_left=tuple(vms_left(lab)))


def test_a_night_takes_seconds_and_is_as_a_night_is(directory: Path) -> None:
    lab, campaign = a_night_lab(directory), a_night(settings={"seconds": 600.0, "interval": 60.0})
    environment, started = dict(os.environ), time.time()
    found = rehearse(campaign, lab, directory=directory, begin=EVENING)
    account = told(found, lab)
    assert account.broken == ()
    assert account.outcomes == {"ok": 12}
    assert account.state == CampaignState.DONE
    assert 600 * 4 < account.seconds < 640 * 12, "time goes by as on real hosts, and runs go on side by side"
    assert sum(line.seconds for line in account.hosts) > 1.5 * account.busy_seconds
    assert report_of(found.record).simulated
    assert found.record.started is not None
    assert EVENING <= found.record.started < EVENING + account.seconds
    assert dict(os.environ) == environment, "nothing of the rehearsal's clock is left"
    assert abs(clock.now() - time.time()) < 60
    assert started <= clock.now()
    for run in account.runs:
        assert set(run.hosts) <= set(lab.hosts)
        assert len(run.hosts) == (2 if "cross-host" in run.cell else 1)
    for host in lab.hosts:
        shifts = sorted((one.began, one.ended) for one in found.shifts if host in one.hosts)
        assert len(shifts) > 1
        assert all(first[1] <= second[0] for first, second in pairwise(shifts)), "one after the other on each host"
    assert [run.replicate for run in account.runs] == sorted(run.replicate for run in account.runs), "block after block"


def test_s4_runs_begin_and_end_within_the_windows_also_in_the_night_of_25_hours(directory: Path) -> None:
    lab = a_night_lab(directory, hosts=2)
    windows = Windows(zone="Europe/Dublin", times=(WindowTime(start=22 * 60, end=6 * 60),))
    settings = {"seconds": 2 * 3600.0, "interval": 60.0}
    campaign = a_night(windows=windows, repeats=4, settings=settings, scenarios=(Scenario.SAME_HOST,))
    found = rehearse(campaign, lab, directory=directory, begin=EVENING)
    account = told(found, lab)
    assert account.broken == ()
    assert account.outcomes == {"ok": 8}
    for shift in found.shifts:
        opening = opening_at(windows, EVENING + shift.began)
        assert opening is not None
        assert EVENING + shift.ended <= opening.end
    assert [line.end - line.start for line in account.openings] == [9 * 3600.0], (
        "8 h and some seconds on each host fit into it"
    )


def test_what_does_not_fit_before_the_last_window_closes_is_told(directory: Path) -> None:
    lab = a_night_lab(directory, hosts=1)
    windows = Windows(zone="Europe/Dublin", times=(WindowTime(start=22 * 60, end=23 * 60),), until=date(2026, 10, 24))
    settings = {"seconds": 1200.0, "interval": 60.0}
    campaign = a_night(windows=windows, repeats=3, settings=settings, scenarios=(Scenario.SAME_HOST,))
    account = told(rehearse(campaign, lab, directory=directory, begin=EVENING), lab)
    assert account.broken == ()
    assert account.outcomes == {"ok": 2, NOT_RUN: 4}
    (reason,) = account.not_run
    assert reason


def test_a_real_labs_own_hosts_are_rehearsed_without_touching_them(directory: Path) -> None:
    lab = simulated(a_lab(machines=("one", "two")), directory / "world")
    account = told(rehearse(a_campaign(), lab, directory=directory, begin=EVENING), lab)
    assert account.outcomes == {"ok": 4}
    assert {line.host for line in account.hosts if line.attempts} == {"a", "b"}


@pytest.mark.parametrize("seed", [1, 9])
def test_whatever_goes_wrong_nothing_is_lost_doubled_or_left(directory: Path, seed: int) -> None:
    lab, campaign = a_night_lab(directory), a_night(scenarios=(Scenario.SAME_HOST, Scenario.DURING_MIGRATION))
    needed = estimate(campaign, lab)
    night = Night(lab=lab, runs=needed.runs, start=0.0, seconds=needed.seconds / machines_of(lab), migrates=True)
    schedule = schedule_of(seed, night)
    write_faults(directory / "world", schedule.faults)
    found = rehearse(campaign, lab, directory=directory, begin=EVENING, incidents=schedule.incidents)
    account = told(found, lab)
    assert account.broken == (), (account, hits(directory / "world"), found.incidents)
    assert hits(directory / "world") or found.incidents, "something went wrong"
    assert sum(account.outcomes.values()) == 12


def test_m6_a_worker_process_that_is_killed_costs_its_run_a_try(directory: Path) -> None:
    lab = a_night_lab(directory)
    write_faults(directory / "world", [Fault(kind=FaultKind.DIE, operation="destroy", nth=2)])
    found = rehearse(a_night(repeats=1), lab, directory=directory, begin=EVENING)
    account = told(found, lab)
    assert (account.broken, account.outcomes) == ((), {"ok": 4})
    assert [one.detail.kind for run in found.record.runs for one in run.earlier] == ["worker-lost"]


def test_incidents_happen_at_their_moments(directory: Path) -> None:
    lab, campaign = a_night_lab(directory), a_night()
    planned = (
        Incident(kind=IncidentKind.BROKER_FLUSHED, at=5.0),
        Incident(kind=IncidentKind.BROKER_KILLED, at=10.0),
        Incident(kind=IncidentKind.CLOCK_STEPPED, at=15.0, step=-7200.0),
    )
    found = rehearse(campaign, lab, directory=directory, begin=EVENING, incidents=planned)
    account = told(found, lab)
    assert account.broken == ()
    assert found.incidents == planned
    assert account.outcomes == {"ok": 12}
    assert found.record.ended is not None
    assert found.record.ended < EVENING, "the clock was set back by two hours"


def test_schedules_are_decided_by_their_seed() -> None:
    night = Night(lab=a_lab(), runs=100, start=0.0, seconds=3600.0, migrates=True)
    assert schedule_of(3, night) == schedule_of(3, night)
    assert schedule_of(3, night) != schedule_of(4, night)
    kinds = {fault.kind for seed in range(60) for fault in schedule_of(seed, night).faults}
    assert kinds >= set(FaultKind) - {FaultKind.BUSY}
    assert {one.kind for seed in range(60) for one in schedule_of(seed, night).incidents} == set(IncidentKind)
    for seed in range(60):
        assert all(fault.start < 3600 + 600 for fault in schedule_of(seed, night).faults)
