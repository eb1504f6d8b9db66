"""`labctl db` as people type it."""

from __future__ import annotations

import platform

import pytest

from labctl.errors import LabError
from labctl.model.outcome import CampaignState, Outcome
from labctl.store import home, sqlite_url
from labctl.store.machine import Machine
from tests.cli.terminal import Terminal
from workers import process


def test_it_says_what_is_in_the_store(terminal: Terminal) -> None:
    terminal.finish(terminal.submitted())
    facts = terminal.facts("db", "info")
    assert (facts["campaigns"], facts["runs"], facts["attempts"], facts["raw_outputs"]) == (1, 4, 4, 4)
    assert facts["database"] == str(terminal.state / "labctl.sqlite")
    assert facts["database_bytes"] > facts["raw_outputs_bytes"] > 0
    assert facts["machine"] == platform.node()
    said = terminal.said("db", "info")
    assert facts["identity"] in said
    assert "KiB" in said


def test_old_raw_outputs_are_forgotten_and_their_space_given_back(terminal: Terminal) -> None:
    terminal.finish(terminal.submitted())
    assert terminal.said("db", "prune", "--older-than", "1h").startswith("0 raw outputs")
    assert terminal.said("db", "prune", "--older-than", "0s").startswith("4 raw outputs of")
    facts = terminal.facts("db", "info")
    assert (facts["raw_outputs"], facts["raw_outputs_forgotten"], facts["raw_outputs_bytes"]) == (0, 4, 0)
    assert "given back" in terminal.said("db", "vacuum")
    assert terminal.facts("db", "info")["reclaimable_bytes"] == 0


def test_nothing_in_progress_is_held_up_by_a_vacuum_unless_told_so(terminal: Terminal) -> None:
    terminal.begin(terminal.submitted())
    assert "1 attempt in progress would wait" in terminal.said("db", "vacuum", code=2)
    terminal.said("db", "vacuum", "--force")


def test_a_store_is_adopted_by_this_machine(terminal: Terminal) -> None:
    terminal.submitted()
    assert terminal.said("db", "adopt") == f"The store is worked on from {platform.node()} now."


def test_a_store_that_was_moved_to_another_machine_is_worked_on_there_only_once_it_is_adopted(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = terminal.submitted()
    terminal.finish(campaign, Outcome.FAILED)
    terminal.said("db", "info")
    elsewhere = Machine(id="3" * 32, boot="another", name="elsewhere")
    monkeypatch.setattr(home, "this_machine", lambda: elsewhere)
    files = (terminal.campaign("another"), "--lab", terminal.lab_file)
    monkeypatch.setenv("LABCTL_STORE", sqlite_url(terminal.state))
    monkeypatch.setattr(process, "_stores", {})
    for refused in (
        ("submit", *files),
        ("run", *files),
        ("retry", campaign, "--outcome", "failed"),
        ("worker",),
    ):
        said = terminal.said(*refused, code=3)
        assert f"is worked on from the machine {platform.node()}, and this is elsewhere" in said
        assert "postgresql://" in said
        assert "labctl db adopt" in said
    with pytest.raises(LabError, match="this is elsewhere"):
        process.process_store()
    assert len(terminal.store.campaigns()) == 1
    assert terminal.store.state(campaign) is CampaignState.DONE
    assert "1 failed" in terminal.said("status", campaign), "reading is free"
    assert "is worked on from elsewhere now" in terminal.said("db", "adopt")
    assert "1 run of campaign 1 will be run again" in terminal.said("retry", campaign, "--outcome", "failed")
    terminal.said("pause", campaign)
    monkeypatch.undo()
    assert "labctl db adopt" in terminal.said("resume", campaign, code=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prune"], ["Missing option '--older-than'"]),
        (["prune", "--older-than", "yesterday"], ["--older-than yesterday", "90d"]),
        (["prune", "--older-than", "3 fortnights"], ["unknown unit", "90d"]),
        (["prune", "--older-than=-1d"], ["--older-than -1d"]),
        (["shrink"], ["No such command 'shrink'"]),
    ],
)
def test_mistakes_are_said(terminal: Terminal, arguments: list[str], words: list[str]) -> None:
    terminal.submitted()
    said = terminal.said("db", *arguments, code=2)
    assert all(word in said for word in words), said


@pytest.mark.parametrize("command", ["info", "vacuum", "adopt"])
def test_they_make_no_store(terminal: Terminal, command: str) -> None:
    assert "There is no store in" in terminal.said("db", command, code=2)
    assert not terminal.state.exists()
