"""The command, its worker or its broker ends at the worst moment: nothing is left, and the campaign goes on later."""

from __future__ import annotations

import os
import signal

import pytest

from labctl.campaign.processes import pid_of
from labctl.model.outcome import CampaignState
from tests.desk import Command, Desk, outcomes, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def assert_interrupted(desk: Desk, command: Command) -> None:
    ended = command.wait()
    assert ended.code == 130, ended.said
    assert "Interrupted. `labctl run --resume 1` goes on" in ended.out
    assert desk.store.state(1) is CampaignState.PAUSED
    desk.assert_nothing_left()


def assert_finished(desk: Desk, command: Command, *, runs: int) -> None:
    ended = command.wait()
    assert ended.code == 0, ended.said
    assert outcomes(desk.record()) == {"ok": runs}
    accepted = desk.query("SELECT accepted_attempt FROM runs")
    assert len(set(accepted)) == runs, "every run has one result of its own"
    assert (None,) not in accepted
    desk.assert_nothing_left()


def test_ctrl_c_at_five_moments_leaves_nothing_and_loses_nothing(desk: Desk) -> None:
    campaign = desk.campaign(
        scenarios=["during-migration"],
        settings={"seconds": 7, "warmup_seconds": 4, "interval": 0.5, "migrate_bandwidth": "80M"},
        repeats=2,
        warmups=1,
        timeouts={"boot": 120, "command": 60, "transfer_grace": 60, "migration": 120},
    )
    command = desk.run(campaign)
    until("the campaign is stored", lambda: desk.query("SELECT id FROM campaigns"))
    command.interrupt()
    assert_interrupted(desk, command)
    assert desk.query("SELECT id FROM attempts") == [], "interrupted before the worker was up"

    for phase in ("place", "warm-up", "migrating"):
        command = desk.resume()
        desk.phase(command, phase)
        command.interrupt()
        assert_interrupted(desk, command)
        assert outcomes(desk.record()) == {"none": 2}, phase

    command = desk.resume()
    until("a run is done", lambda: desk.store.run_counts(1).get("ok") or command.process.poll() is not None)
    command.interrupt()
    assert_interrupted(desk, command)
    assert outcomes(desk.record()) == {"ok": 1, "none": 1}, "what was done stays done"

    assert_finished(desk, desk.resume(), runs=2)


def test_when_the_command_is_killed_its_worker_cleans_up_and_ends(desk: Desk) -> None:
    command = desk.run(desk.campaign(scenarios=["same-host"], settings={"seconds": 12}))
    desk.phase(command, "transfer")
    command.kill()
    desk.assert_nothing_left(within=90)
    assert outcomes(desk.record()) == {"none": 1}
    assert_finished(desk, desk.resume(), runs=1)


def test_when_the_worker_process_is_killed_the_run_is_tried_again(desk: Desk) -> None:
    command = desk.run(desk.campaign(scenarios=["same-host"], settings={"seconds": 6}))
    attempt = desk.phase(command, "transfer")
    pid = pid_of(attempt.worker)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert_finished(desk, command, runs=1)
    assert desk.record().runs[0].attempts >= 2
    assert desk.query("SELECT state, outcome, kind FROM attempts ORDER BY id")[0] == (
        "lost",
        "lab-error",
        "worker-lost",
    )


def test_m3_when_redis_is_killed_it_is_started_again_and_no_attempt_is_lost(desk: Desk) -> None:
    command = desk.run(desk.campaign(scenarios=["same-host"], settings={"seconds": 6}, repeats=2))
    desk.phase(command, "transfer")
    (redis,) = [pid for pid, line in desk.processes().items() if "redis-server" in line]
    os.kill(redis, signal.SIGKILL)
    assert_finished(desk, command, runs=2)
    assert "The private Redis was ended by signal SIGKILL. It is started again." in command.said
    assert desk.query("SELECT id FROM attempts WHERE state = 'lost'") == []


def test_when_the_main_process_of_the_worker_is_killed_its_attempt_goes_on(desk: Desk) -> None:
    command = desk.run(desk.campaign(scenarios=["same-host"], settings={"seconds": 6}, repeats=2))
    desk.phase(command, "transfer")
    (main,) = [row.pid for row in desk.store.workers() if row.role == "worker"]
    os.kill(main, signal.SIGKILL)
    assert_finished(desk, command, runs=2)
    assert "The worker was ended by signal SIGKILL. It is started again." in command.said
    assert desk.query("SELECT id FROM attempts WHERE state = 'lost'") == []
