"""`labctl pause`, `resume`, `cancel` and `retry` as people type them."""

from __future__ import annotations

import pytest

from labctl.campaign import commands
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail
from tests.cli.terminal import Terminal

COMMANDS = ("pause", "resume", "cancel", "retry")


def test_a_paused_campaign_goes_on_when_asked(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    handle = terminal.begin(campaign)
    assert terminal.said("pause", campaign, "--why", "the lab is needed") == (
        f"Campaign {campaign} is paused: 1 attempt in progress finishes."
    )
    assert terminal.store.head(campaign).why == "the lab is needed"
    terminal.end(handle)
    assert terminal.said("pause", campaign) == f"Campaign {campaign} is paused: nothing of it is in progress."
    assert terminal.said("resume", campaign).startswith(f"Campaign {campaign} goes on. No worker serves queue")
    assert terminal.store.state(campaign) is CampaignState.ACTIVE


def test_what_is_in_progress_is_stopped_now(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    handles = [terminal.begin(campaign, host) for host in ("a", "b")]
    assert "2 attempts in progress are being stopped." in terminal.said("pause", campaign, "--now")
    assert all(terminal.store.heartbeat(handle, phase="transfer") for handle in handles)


def test_a_campaign_that_goes_on_may_get_another_rank(terminal: Terminal) -> None:
    first, second = terminal.submitted(name="one"), terminal.submitted(name="two")
    assert "goes on, with priority 9." in terminal.said("resume", second, "--priority", 9)
    assert [queued.id for queued in terminal.store.queue()] == [second, first]
    assert "--priority" in terminal.said("resume", second, "--priority", "high", code=2)


def test_a_cancelled_campaign_says_what_will_not_be_run(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.end(terminal.begin(campaign))
    terminal.begin(campaign)
    said = terminal.said("cancel", campaign, "--now", "--why", "wrong image")
    assert said == f"Campaign {campaign} is cancelled: 2 runs will not be run; 1 attempt in progress is being stopped."
    assert "can't be resumed: it is cancelled. Why: wrong image" in terminal.said("resume", campaign, code=2)


def test_only_what_ended_for_the_labs_fault_is_run_again_unless_told_otherwise(terminal: Terminal) -> None:
    campaign = terminal.submitted(retries=0)
    terminal.finish(campaign, Outcome.FAILED, Outcome.LAB_ERROR)
    assert terminal.said("retry", campaign).startswith(f"1 run of campaign {campaign} will be run again.")
    assert terminal.store.run_counts(campaign) == {"ok": 2, "failed": 1, "pending": 1}
    said = terminal.said("retry", campaign)
    assert "no runs that ended as lab-error or stopped; nothing was changed." in said
    assert "1 run failed, which is a result; --outcome failed runs them again." in said
    terminal.said("retry", campaign, "--outcome", "failed")
    assert terminal.store.run_counts(campaign) == {"ok": 2, "pending": 2}
    assert "lab-error" in terminal.said("retry", campaign, "--outcome", "ok", code=2)


def test_runs_of_cells_that_were_given_up_are_run_again(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    why = OutcomeDetail(outcome=Outcome.CANCELLED, kind=commands.CELL_STOPPED, what="It fails on every host.")
    terminal.store.end_pending(campaign, why)
    terminal.store.set_state(campaign, CampaignState.STOPPED, why="most cells fail alike")
    assert terminal.said("retry", campaign).startswith("4 runs of campaign")
    assert terminal.store.state(campaign) is CampaignState.ACTIVE


def test_a_retry_of_a_paused_campaign_says_how_it_goes_on(terminal: Terminal) -> None:
    campaign = terminal.submitted(retries=0)
    terminal.end(terminal.begin(campaign), Outcome.LAB_ERROR, kind="boot-timeout")
    terminal.said("pause", campaign)
    assert f"It is paused: `labctl resume {campaign}` lets it go on." in terminal.said("retry", campaign)


@pytest.mark.parametrize("command", ["pause", "resume", "cancel"])
def test_several_campaigns_at_once(terminal: Terminal, command: str) -> None:
    ids = [terminal.submitted(name=name) for name in ("one", "two", "three")]
    terminal.said(command, *ids)
    wanted = {"pause": "paused", "resume": "active", "cancel": "cancelled"}[command]
    assert [terminal.store.state(campaign) for campaign in ids] == [wanted] * 3


@pytest.mark.parametrize("command", COMMANDS)
def test_they_need_an_id_that_there_is(terminal: Terminal, command: str) -> None:
    assert "There is no store in" in terminal.said(command, 1, code=2)
    terminal.submitted()
    assert "Missing argument 'ID...'" in terminal.said(command, code=2)
    assert "There is no campaign 7 in this store." in terminal.said(command, 7, code=2)
    assert "'x' is not a valid integer" in terminal.said(command, "x", code=2)


@pytest.mark.parametrize(("command", "done"), [("pause", "paused"), ("resume", "resumed"), ("cancel", "cancelled")])
def test_what_is_done_is_left_alone(terminal: Terminal, command: str, done: str) -> None:
    campaign = terminal.submitted()
    terminal.finish(campaign)
    said = terminal.said(command, campaign, code=2)
    assert f"Campaign {campaign} can't be {done}: it is done." in said
    assert f"labctl report {campaign}" in said
