"""`labctl submit`: what is put into the store, what is said of it, and what is refused."""

from __future__ import annotations

import json
import os
from contextlib import closing
from datetime import date, timedelta

import pytest

from labctl import clock
from labctl.model.outcome import CampaignState, Purpose
from labctl.store import AttemptStart, open_store
from tests.campaign.wall import machine_in
from tests.cli.terminal import Terminal
from tests.values import an_order

NIGHTLY = {"window": "22:00-06:00", "zone": "Europe/Dublin"}


def test_a_campaign_is_submitted_and_left(terminal: Terminal) -> None:
    said = terminal.said("submit", terminal.campaign(), "--lab", terminal.lab_file)
    assert "Campaign 1 (small) is submitted to lab night: 4 runs." in said
    assert "of work, one run after the other; up to 2 runs go on at once" in said
    assert "It may start now." in said
    assert "No worker serves queue here.kvm: start `labctl worker`." in said
    assert "`labctl watch 1`" in said
    head = terminal.store.head(1)
    assert (head.state, head.purpose, head.name) == (CampaignState.ACTIVE, Purpose.MEASURE, "small")
    assert terminal.store.run_counts(1) == {"pending": 4}
    record = terminal.store.record(1)
    assert json.loads(record.campaign_text)["campaign"] == "small"
    assert json.loads(record.lab_text)["lab"] == "night"


def test_programs_get_the_same_facts(terminal: Terminal) -> None:
    (facts,) = terminal.facts("submit", terminal.campaign(), "--lab", terminal.lab_file)
    assert (facts["id"], facts["name"], facts["lab"], facts["runs"], facts["priority"]) == (1, "small", "night", 4, 0)
    assert facts["least"] == facts["most"]
    planned = terminal.facts("plan", terminal.campaign(), "--lab", terminal.lab_file)
    assert facts["least"]["seconds"] == pytest.approx(planned["seconds"])
    assert facts["starts"] is not None
    assert (facts["ahead"], facts["edits"]) == ([], [])
    assert "No worker serves queue here.kvm" in facts["unserved"]


def test_three_campaigns_are_submitted_in_the_order_of_the_command(terminal: Terminal) -> None:
    files = [terminal.campaign(name) for name in ("one", "two", "three")]
    facts = terminal.facts("submit", *files, "--lab", terminal.lab_file)
    assert [(each["id"], each["name"], each["ahead"]) for each in facts] == [
        (1, "one", []),
        (2, "two", [1]),
        (3, "three", [1, 2]),
    ]
    assert "as hosts become free: campaign 1, campaign 2 and campaign 3 want them, too" in terminal.said(
        "submit", terminal.campaign("four"), "--lab", terminal.lab_file
    )


def test_nothing_is_submitted_when_one_of_the_files_is_wrong(terminal: Terminal) -> None:
    good, bad = terminal.campaign("good"), terminal.campaign("bad", scenarios=["same-hst"])
    worse = terminal.campaign("worse", settings={"seconds": "long"})
    said = terminal.said("submit", good, bad, worse, "--lab", terminal.lab_file, code=2)
    assert "bad.yaml" in said
    assert "did you mean 'same-host'?" in said
    assert "worse.yaml" in said
    assert "good.yaml" not in said
    assert not terminal.state.exists()


def test_the_same_lab_mistake_is_told_once(terminal: Terminal) -> None:
    lab = terminal.lab(simulated={"hosts": 0})
    said = terminal.said("submit", terminal.campaign("one"), terminal.campaign("two"), "--lab", lab, code=2)
    assert said.count("simulated.hosts") == 1


# The same content


def test_the_same_content_is_submitted_twice_only_when_asked(terminal: Terminal) -> None:
    terminal.submitted()
    renamed = terminal.campaign(file="copy.yaml", priority=5)
    said = terminal.said("submit", renamed, "--lab", terminal.lab_file, code=2)
    assert "Campaign 1 (small) measures the same in the same lab and is active. Nothing was submitted." in said
    assert "--again" in said
    assert len(terminal.store.campaigns()) == 1
    assert "Campaign 2 (small)" in terminal.said("submit", renamed, "--lab", terminal.lab_file, "--again")


def test_one_file_named_twice_is_refused_before_anything_is_submitted(terminal: Terminal) -> None:
    file = terminal.campaign()
    said = terminal.said("submit", file, file, "--lab", terminal.lab_file, code=2)
    assert "measure the same. Nothing was submitted." in said
    assert terminal.store.campaigns() == ()
    assert len(terminal.facts("submit", file, file, "--lab", terminal.lab_file, "--again")) == 2


def test_what_has_ended_is_measured_anew_without_being_asked(terminal: Terminal) -> None:
    terminal.finish(terminal.submitted())
    assert terminal.submitted() == 2


# Options


def test_options_stand_over_the_file(terminal: Terminal) -> None:
    campaign_id = terminal.submitted(
        "--priority", 7, "--window", "00:00-24:00", "--zone", "Asia/Kolkata", "--max-runs", 4
    )
    head = terminal.store.head(campaign_id)
    assert head.priority == head.campaign.priority == 7
    assert head.campaign.windows is not None
    assert head.campaign.windows.zone == "Asia/Kolkata"
    assert head.campaign.max_runs == 4


def test_a_campaign_starts_when_its_window_opens(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    evening = 1_792_774_800.0  # Friday 2026-10-23 18:00 in Dublin (IST)
    monkeypatch.setattr(clock, "now", lambda: evening)
    with machine_in("America/New_York"):
        said = terminal.said("submit", terminal.campaign(**NIGHTLY), "--lab", terminal.lab_file)
    assert "1 night needed; it would end about Fri 2026-10-23 17:00 EDT." in said
    assert "It may start Fri 2026-10-23 17:00 EDT, when its window opens (22:00 Europe/Dublin)." in said
    (facts,) = terminal.facts("submit", terminal.campaign(**NIGHTLY), "--lab", terminal.lab_file, "--again")
    assert facts["starts"] == "2026-10-23T21:00:00+00:00"
    assert facts["least"]["nights"] == 1


@pytest.mark.parametrize(
    ("keys", "options", "words"),
    [
        ({}, ["--window", "late", "--zone", "Europe/Dublin"], ["--window late"]),
        ({}, ["--window", "22:00-06:00"], ["needs a time zone", "--zone"]),
        ({}, ["--zone", "Europe/Dublin"], ["says nothing without a window"]),
        ({}, ["--window", "22:00-06:00", "--zone", "Europe/Dublon"], ["Europe/Dublin"]),
        ({}, ["--priority", "101"], ["--priority", "-100<=x<=100"]),
        ({}, ["--max-runs", "3"], ["4 runs; the cap is 3"]),
        ({}, ["--max-runs", "0"], ["--max-runs"]),
        (NIGHTLY | {"zone": "Europe/Dublon"}, [], ["zone", "did you mean 'Europe/Dublin'?"]),
        (NIGHTLY | {"window": "22:00-22:01", "settings": {"seconds": 100}}, [], ["shorter than one of its runs"]),
        (NIGHTLY | {"until": str(date.today() - timedelta(days=2))}, [], ["have ended", "until"]),
        (
            {
                "zone": "Europe/Dublin",
                "windows": [{"days": ["mon"], "time": "22:00-06:00"}, {"days": ["tue"], "time": "05:00-07:00"}],
            },
            [],
            ["overlaps with the window at line"],
        ),
        ({"factors": {"nic_model": ["vt-d"]}}, [], ["no cell that can be run in this lab"]),
    ],
)
def test_what_could_never_run_is_refused(
    terminal: Terminal, keys: dict[str, object], options: list[str], words: list[str]
) -> None:
    said = terminal.said("submit", terminal.campaign(**keys), "--lab", terminal.lab_file, *options, code=2)
    assert all(word in said for word in words), said
    assert not terminal.state.exists()


def test_missing_files_and_options_are_the_users_input(terminal: Terminal) -> None:
    terminal.said("submit", terminal.directory / "none.yaml", "--lab", terminal.lab_file, code=2)
    terminal.said("submit", terminal.campaign(), code=2)
    terminal.said("submit", "--lab", terminal.lab_file, code=2)


def test_an_unwritable_state_directory_is_said(terminal: Terminal) -> None:
    (terminal.directory / "file").write_text("in the way")
    terminal.state = terminal.directory / "file" / "state"
    said = terminal.said("submit", terminal.campaign(), "--lab", terminal.lab_file, code=3)
    assert str(terminal.state) in said


# Who works


def test_a_lab_that_is_served_needs_no_hint(terminal: Terminal) -> None:
    terminal.worker("engine", queues=())
    terminal.worker("worker")
    (facts,) = terminal.facts("submit", terminal.campaign(), "--lab", terminal.lab_file)
    assert facts["unserved"] == ""


def test_workers_without_anybody_who_starts_runs_are_said(terminal: Terminal) -> None:
    terminal.worker("worker")
    (facts,) = terminal.facts("submit", terminal.campaign(), "--lab", terminal.lab_file)
    assert (
        facts["unserved"]
        == "Workers serve queue here.kvm, but nobody starts runs of campaign 1: start `labctl worker`."
    )


def test_a_labctl_run_of_another_campaign_starts_nothing_of_this_one(terminal: Terminal) -> None:
    terminal.worker("worker")
    terminal.worker("engine", queues=("campaign-7",))
    (facts,) = terminal.facts("submit", terminal.campaign(), "--lab", terminal.lab_file)
    assert "nobody starts runs of campaign 1" in facts["unserved"]


def test_workers_of_other_queues_are_no_help(terminal: Terminal) -> None:
    terminal.worker("engine", queues=())
    terminal.worker("worker", queues=("elsewhere.kvm",))
    (facts,) = terminal.facts("submit", terminal.campaign(), "--lab", terminal.lab_file)
    assert "No worker serves queue here.kvm" in facts["unserved"]


def test_a_worker_that_has_fallen_silent_is_no_help(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.worker("engine", queues=())
    terminal.worker("worker")
    later = clock.now() + 61.0
    monkeypatch.setattr(clock, "now", lambda: later)
    (facts,) = terminal.facts("submit", terminal.campaign(), "--lab", terminal.lab_file)
    assert "No worker serves queue here.kvm" in facts["unserved"]


# A lab that was edited


def test_an_edited_lab_is_the_same_lab_and_its_campaigns_share_hosts(terminal: Terminal) -> None:
    first = terminal.submitted()
    edited = terminal.lab(
        file="edited.yaml",
        site="elsewhere",
        simulated={"hosts": ["a", "c"], "directory": str(terminal.directory / "world")},
    )
    second = terminal.campaign("second")
    said = terminal.said("submit", second, "--lab", edited)
    assert f"Campaign {first} was submitted with another state of the lab file and keeps it:" in said
    assert "site was here and is elsewhere; hosts.b is gone; hosts.c is new" in said
    assert "b" in terminal.store.head(first).lab.hosts
    assert "c" in terminal.store.head(2).lab.hosts
    terminal.begin(first, "a")
    run = terminal.store.pending_runs(2, limit=1)[0]
    asked = AttemptStart(run_id=run.id, order=an_order("a"), resources=frozenset({"host:a"}))
    assert terminal.store.start_attempts("night", [asked]) == (None,), "host a is leased, whatever the file says of it"
    (facts,) = terminal.facts("submit", second, "--lab", terminal.lab_file, "--again")
    assert [edit["campaign"] for edit in facts["edits"]] == [2]


# A lab that only pretends


def test_labs_of_one_name_in_two_state_directories_share_no_hosts(terminal: Terminal) -> None:
    lab = terminal.lab(simulated={"hosts": ["a", "b"]})
    for state in ("one", "two"):
        directory = terminal.directory / state
        terminal.said("--state", directory, "submit", terminal.campaign(), "--lab", lab)
        with closing(open_store(directory)) as store:
            kept = store.head(1).lab.simulated
        assert kept is not None
        assert kept.directory == directory / "simulated" / "night"
        assert "says what campaign 1 was submitted with" in terminal.said(
            "--state", directory, "status", 1, "--lab", lab
        ), "the lab file means the same lab whenever it is read for this state directory"
    assert os.environ.get("LABCTL_STATE") != str(directory), "what a command was told ends with the command"
