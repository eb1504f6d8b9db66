"""`labctl db` as people type it."""

from __future__ import annotations

import platform

import pytest

from tests.cli.terminal import Terminal


def test_it_says_what_is_in_the_store(terminal: Terminal) -> None:
    terminal.finish(terminal.submitted())
    facts = terminal.facts("db", "info")
    assert (facts["campaigns"], facts["runs"], facts["attempts"], facts["raw_outputs"]) == (1, 4, 4, 4)
    assert facts["database"] == str(terminal.state / "labctl.sqlite")
    assert facts["database_bytes"] > facts["raw_outputs_bytes"] > 0
    assert facts["machine"] is None
    terminal.store.work_here()
    assert terminal.facts("db", "info")["machine"] == platform.node()
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
