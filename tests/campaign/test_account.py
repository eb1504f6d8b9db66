"""The account of a rehearsal: each thing that must never be is seen when it is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from labctl.campaign.account import NOT_RUN, account_of
from labctl.campaign.pacing import Shift
from labctl.campaign.rehearsal import Rehearsal
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, RunState
from labctl.model.result import CampaignRecord, CellRecord, RunRecord
from labctl.model.scenario import Scenario
from labctl.model.window import DAY, Day, Windows, WindowTime
from labctl.store import LeaseLine, VmRecord
from tests.values import a_campaign, a_lab, a_result

CELL = CellRecord(id="cell", levels={"scenario": "same-host"}, applicable=True)


def a_run(number: int, **changes: Any) -> RunRecord:
    values = {"state": RunState.DONE, "result": a_result(), "sequence": number - 1, "replicate": number}
    return RunRecord(id=number, cell="cell", **(values | changes))


def a_rehearsal(*runs: RunRecord, **changes: Any) -> Rehearsal:
    record = CampaignRecord(
        id=1, name="night", state="done", lab="lab", submitted=0.0, started=0.0, ended=90.0, campaign_text="",
        lab_text="", document={}, cells=(CELL,), runs=runs or (a_run(1), a_run(2)),
    )  # fmt: skip
    shifts = (
        Shift(attempt=1, campaign=1, run=1, hosts=("a",), began=0.0, ended=40.0),
        Shift(attempt=2, campaign=1, run=2, hosts=("a", "b"), began=40.0, ended=60.0),
        Shift(attempt=3, campaign=1, run=2, hosts=("b",), began=70.0, ended=90.0),
    )
    values = {
        "campaign": a_campaign(scenarios=(Scenario.SAME_HOST,)), "lab": a_lab(), "record": record,
        "state": CampaignState.DONE, "shifts": shifts, "began": 1000.0, "seconds": 95.0, "real_seconds": 2.0,
        "incidents": (), "hold": "", "stuck": False, "leases": (), "vms": (),
    }  # fmt: skip
    return Rehearsal(**(values | changes))


def test_a_rehearsal_without_faults_is_told_in_hours_and_hosts() -> None:
    account = account_of(a_rehearsal(), vms_left=())
    assert account.broken == ()
    assert account.outcomes == {"ok": 2}
    assert (account.seconds, account.busy_seconds) == (90.0, 80.0)
    assert [(line.host, line.attempts, line.seconds) for line in account.hosts] == [("a", 2, 60.0), ("b", 2, 40.0)]
    assert account.hosts[0].share == pytest.approx(0.75)
    first, second = account.runs
    assert (first.started, first.seconds, first.hosts, first.attempts) == (1000.0, 40.0, ("a",), 1)
    assert (second.started, second.seconds, second.hosts, second.attempts) == (1040.0, 50.0, ("b",), 2)
    (opening,) = account.openings
    assert (opening.start, opening.used, opening.attempts) == (1000.0, 90.0, 3)


def test_an_opening_that_was_open_already_is_told_from_the_beginning_of_the_rehearsal_on() -> None:
    friday = WindowTime(start=20 * 60, end=DAY, days=frozenset({Day.FRI}))
    windows = Windows(zone="UTC", times=(friday, WindowTime(start=0, end=DAY, days=frozenset({Day.SAT}))))
    saturday = datetime(2026, 10, 24, 18, tzinfo=UTC).timestamp()
    campaign = a_campaign(scenarios=(Scenario.SAME_HOST,), windows=windows)
    (opening,) = account_of(a_rehearsal(campaign=campaign, began=saturday), vms_left=()).openings
    assert (opening.start, opening.end) == (saturday, saturday + 6 * 3600.0)


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.ACTIVE, RunState.DONE])
def test_a_run_without_result_and_reason_is_lost(state: RunState) -> None:
    account = account_of(a_rehearsal(a_run(1), a_run(2, state=state, result=None)), vms_left=())
    assert account.lost_runs == 1
    assert "1 runs are lost" in account.broken[0]
    assert account.outcomes == {"ok": 1, NOT_RUN: 1}


def test_a_run_that_the_policy_ended_is_not_lost() -> None:
    why = OutcomeDetail(outcome=Outcome.FAILED, kind="cell-stopped", what="Its cell was stopped.")
    account = account_of(a_rehearsal(a_run(1), a_run(2, result=None, unrun=why)), vms_left=())
    assert (account.lost_runs, account.broken) == (0, ())
    assert account.not_run == {"Its cell was stopped.": 1}


def test_runs_that_wait_when_the_policy_stopped_the_campaign_are_not_lost() -> None:
    waiting = a_run(2, state=RunState.PENDING, result=None)
    rehearsal = a_rehearsal(a_run(1), waiting, state=CampaignState.STOPPED)
    rehearsal = replace(rehearsal, record=replace(rehearsal.record, why="Most cells failed alike."))
    account = account_of(rehearsal, vms_left=())
    assert account.broken == ()
    assert account.not_run == {"Most cells failed alike.": 1}


def test_runs_that_wait_for_ever_are_told_with_the_reason() -> None:
    waiting = a_run(2, state=RunState.PENDING, result=None)
    rehearsal = a_rehearsal(a_run(1), waiting, state=CampaignState.ACTIVE, hold="all hosts are out")
    account = account_of(rehearsal, vms_left=())
    assert account.broken == ()
    assert account.not_run == {"all hosts are out": 1}


def test_two_results_are_seen() -> None:
    again = a_run(2, earlier=(a_result(Outcome.LAB_ERROR, kind="x"), a_result(Outcome.FAILED, kind="y")))
    retried = a_run(1, earlier=(a_result(Outcome.LAB_ERROR, kind="x"),))
    assert account_of(a_rehearsal(retried, a_run(2)), vms_left=()).broken == ()
    account = account_of(a_rehearsal(a_run(1), again), vms_left=())
    assert account.doubled_runs == 1
    assert "two results: 2" in account.broken[0]


def test_what_is_left_is_seen() -> None:
    lease = LeaseLine(resource="host:a", campaign_id=1, campaign="night", attempt_id=3, taken=1.0, expected=2.0)
    assert "leases are left: host:a" in account_of(a_rehearsal(leases=(lease,)), vms_left=()).broken[0]
    assert "VMs are left: a/labctl-x" in account_of(a_rehearsal(), vms_left=("a/labctl-x",)).broken[0]
    record = VmRecord(
        uuid="u", name="labctl-x", lab="lab", host="a", campaign_id=1, run_id=1, attempt_id=1, role="sender", mac="",
        address="", shape="", state="live",
    )  # fmt: skip
    assert "believes in 1 VMs" in account_of(a_rehearsal(vms=(record,)), vms_left=()).broken[0]


def test_one_that_never_ended_is_seen() -> None:
    stuck = a_rehearsal(a_run(1), a_run(2, state=RunState.PENDING, result=None), stuck=True, state=CampaignState.ACTIVE)
    account = account_of(stuck, vms_left=())
    assert "never ended" in account.broken[0]
    assert account.lost_runs == 1
