"""`labctl status` as people and programs read it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from labctl import clock
from labctl.campaign import commands
from labctl.campaign.processes import process_name
from labctl.cli import words
from labctl.model.outcome import CampaignState, HostState, Outcome, Purpose
from labctl.store import Event, open_store
from tests.cli.terminal import Terminal
from tests.values import a_campaign


def health_check(terminal: Terminal) -> int:
    lab = terminal.store.head(1).lab
    campaign = a_campaign(name="health check of a")
    return commands.submit(terminal.store, campaign, lab, campaign_text="", lab_text="", purpose=Purpose.HEALTH)


# The list


def test_all_campaigns_are_listed_newest_first_with_where_their_runs_stand(terminal: Terminal) -> None:
    first, second = terminal.submitted(name="one"), terminal.submitted(name="two", priority=3)
    terminal.finish(first, Outcome.FAILED)
    terminal.begin(second)
    rows = terminal.facts("status")
    assert [(row["id"], row["name"], row["state"], row["priority"]) for row in rows] == [
        (second, "two", "active", 3), (first, "one", "done", 0),
    ]  # fmt: skip
    assert [row["runs"] for row in rows] == [{"active": 1, "pending": 3}, {"failed": 1, "ok": 3}]
    assert (rows[0]["total"], rows[0]["done"]) == (4, 0)
    assert "left" not in rows[1]
    said = terminal.said("status")
    assert "3 ok, 1 failed" in said
    assert "1 in progress" in said
    assert "active" in said


def test_what_keeps_campaigns_from_going_on_is_said(terminal: Terminal) -> None:
    waiting, paused, stopped = (terminal.submitted(name=name) for name in ("one", "two", "three"))
    terminal.store.set_hold(waiting, "window opens Mon 22:00 Europe/Dublin")
    terminal.said("pause", paused, "--why", "the lab is needed")
    terminal.store.set_state(stopped, CampaignState.STOPPED, why="most cells fail alike")
    said = terminal.said("status")
    assert f"Campaign {waiting} waited when it was last served: window opens Mon 22:00 Europe/Dublin" in said
    assert f"Campaign {paused} is paused: the lab is needed" in said
    assert f"Campaign {stopped} is stopped: most cells fail alike" in said
    assert said.count("No worker serves queue here.kvm") == 1
    assert [(row["hold"] or row["why"]) for row in terminal.facts("status")][::-1] == [
        "window opens Mon 22:00 Europe/Dublin", "the lab is needed", "most cells fail alike",
    ]  # fmt: skip
    assert [bool(row["unserved"]) for row in terminal.facts("status")] == [False, False, True]
    terminal.worker()
    terminal.worker("engine", queues=())
    assert f"Campaign {waiting} waits: window opens Mon 22:00 Europe/Dublin" in terminal.said("status")


def test_health_checks_are_hidden_unless_asked_for(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    check = health_check(terminal)
    assert [row["id"] for row in terminal.facts("status")] == [campaign]
    assert [(row["id"], row["purpose"]) for row in terminal.facts("status", "--all")] == [
        (check, "health"), (campaign, "measure"),
    ]  # fmt: skip
    assert "health check of a" not in terminal.said("status")
    assert terminal.facts("status", campaign)["beside"] == []


def test_what_people_wrote_is_shown_as_they_wrote_it(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.said("pause", campaign, "--why", "[bold]50% [/red] :smile:")
    assert "is paused: [bold]50% [/red] :smile:" in terminal.said("status")
    assert "is paused: [bold]50% [/red] :smile:" in terminal.said("status", campaign)


# One campaign


def test_an_attempt_without_a_phase_waits_for_a_slot_or_begins(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.begin(campaign, "a", claimed=False)
    terminal.begin(campaign, "b")
    for command in (("status", campaign), ("hosts",)):
        said = terminal.said(*command)
        assert "waits for a slot" in said
        assert "begins" in said
        assert "claimed" not in said


def test_all_of_one_campaign(terminal: Terminal) -> None:
    campaign, other = terminal.submitted(priority=2), terminal.submitted(name="other")
    for _ in range(2):
        terminal.end(terminal.begin(campaign))
    terminal.begin(campaign, "b", phase="transfer 1")
    terminal.store.set_host(
        "night", "a", HostState.QUARANTINED, why="3 lab-errors in a row", next_check=clock.now() + 60
    )
    terminal.store.tell(
        Event(
            scope=f"campaign-{campaign}",
            key="started",
            kind="started",
            what="It has begun.",
            at=clock.now(),
            campaign_id=campaign,
        )
    )
    terminal.worker()
    terminal.worker("engine", queues=())
    facts, said = terminal.facts("status", campaign), terminal.said("status", campaign)
    assert (facts["state"], facts["priority"], facts["done"], facts["total"]) == ("active", 2, 2, 4)
    assert "active, priority 2" in said
    assert "2 of 4 runs done: 2 ok, 1 in progress, 1 waiting" in said
    assert facts["runs_per_hour"] > 0
    assert "runs/h lately" in said
    assert facts["left"]["from_attempts"] == 2
    assert "of work left (from 2 attempts); done" in said
    (attempt,) = facts["attempts"]
    assert (attempt["hosts"], attempt["phase"], attempt["worker"]) == (["b"], "transfer 1", "w:1")
    assert "transfer 1" in said
    assert facts["beside"] == [other]
    assert f"Campaign {other} wants hosts of the lab, too" in said
    assert [host["host"] for host in facts["bad_hosts"]] == ["a"]
    assert "Host a is quarantined since" in said
    assert [worker["role"] for worker in facts["workers"]] == ["engine", "worker"]
    assert "worker@host:1" in said
    assert [event["what"] for event in facts["events"]] == ["It has begun."]
    assert "It has begun." in said
    assert facts["unserved"] == ""
    assert "serves queue" not in said


def test_a_campaign_that_is_done_has_nothing_left(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.finish(campaign)
    facts, said = terminal.facts("status", campaign), terminal.said("status", campaign)
    assert facts["left"] == {"seconds": [0.0, 0.0], "done": [None, None], "nights": 0, "from_attempts": 4}
    assert "4 of 4 runs done: 4 ok" in said
    assert "left" not in said
    assert "No worker" not in said


def test_why_one_does_not_go_on(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.store.set_hold(campaign, "disk: 90 MB are free")
    assert "It waited when it was last served: disk: 90 MB are free" in terminal.said("status", campaign)
    terminal.said("pause", campaign, "--why", "noise")
    assert "It is paused: noise" in terminal.said("status", campaign)


# The lab file by now


def test_an_edited_lab_file_is_said_and_the_campaign_keeps_its_own(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    assert "says what campaign 1 was submitted with" in terminal.said("status", campaign, "--lab", terminal.lab_file)
    assert terminal.facts("status", campaign, "--lab", terminal.lab_file)["lab_edits"] == []
    assert "lab_edits" not in terminal.facts("status", campaign)
    terminal.lab(quiet={"cpu": "20%"}, simulated={"hosts": ["a", "c"], "directory": str(terminal.directory / "world")})
    said = terminal.said("status", campaign, "--lab", terminal.lab_file)
    assert "Campaign 1 keeps the lab that it was submitted with" in said
    assert "hosts.b is gone hosts.c is new" in said
    edits = terminal.facts("status", campaign, "--lab", terminal.lab_file)["lab_edits"]
    assert {"key": "hosts.c", "kept": None, "now": "there"} in edits
    assert {"key": "quiet", "kept": "not given", "now": "given"} in edits


def test_only_the_first_differences_of_many_are_listed(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    large = terminal.lab(simulated={"hosts": 30, "directory": str(terminal.directory / "world")})
    assert " more" in terminal.said("status", campaign, "--lab", large)


# What makes no sense


def test_mistakes_are_said(terminal: Terminal) -> None:
    assert "There is no store in" in terminal.said("status", code=2)
    assert not terminal.state.exists(), "looking makes nothing"
    terminal.submitted()
    assert "There is no campaign 9 in this store." in terminal.said("status", 9, code=2)
    assert "needs the ID of a campaign" in terminal.said("status", "--lab", terminal.lab_file, code=2)
    other = terminal.lab("day", file="day.yaml")
    assert "describes the lab day; campaign 1 is of the lab night" in terminal.said("status", 1, "--lab", other, code=2)
    wrong = terminal.lab(file="wrong.yaml", simulatd={})
    assert "wrong.yaml" in terminal.said("status", 1, "--lab", wrong, code=2)


def test_any_number_of_terminals_may_look_at_once_while_others_work(terminal: Terminal) -> None:
    campaign = terminal.submitted(repeats=20)
    found: list[str] = []

    def look() -> None:
        store = open_store(terminal.state)
        for _ in range(10):
            found.append(json.dumps(store.run_counts(campaign)))
        store.close()

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    terminal.finish(campaign)
    for thread in threads:
        thread.join()
    assert all(sum(json.loads(counts).values()) == 40 for counts in found)
    assert len(found) == 60


# Words


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (3, 3.2, "3 s"),
        (30, 50, "30 to 50 s"),
        (40, 130, "40 s to 2 min"),
        (600, 900, "10 to 15 min"),
        (3000, 9000, "50 min to 2 h 30 min"),
    ],
)
def test_ranges_of_time_are_said_with_one_unit_where_they_can(low: float, high: float, said: str) -> None:
    assert words.durations(low, high) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (163840, "160 KiB"),
        (1023 * 1024, "1023 KiB"),
        (1.5 * 2**30, "1.5 GiB"),
    ],
)
def test_sizes_have_binary_prefixes(count: float, said: str) -> None:
    assert words.size(count) == said


def test_looking_waits_for_no_charts_and_no_statistics() -> None:
    script = "import sys, labctl.cli.status, labctl.cli.watch, labctl.cli.hosts; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "scipy", "celery", "libvirt"} & set(done.stdout.split())


def test_a_service_of_this_machine_that_was_killed_serves_nobody_from_then_on(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.store.set_hold(campaign, "host a is out")
    terminal.worker("engine", queues=())
    service = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    terminal.worker(process=process_name(service.pid))
    assert "It waits: host a is out" in terminal.said("status", campaign)
    service.kill()
    service.communicate()
    said = terminal.said("status", campaign)
    assert "No worker serves queue here.kvm" in said
    assert "It waited when it was last served: host a is out" in said
    assert "has died" in said
