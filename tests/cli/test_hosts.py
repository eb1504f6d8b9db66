"""`labctl hosts` as people type it."""

from __future__ import annotations

import pytest

from labctl import clock
from labctl.model.outcome import HostState, Outcome
from labctl.store import WORKER_LOST, Change
from tests.cli.terminal import Terminal


def test_hosts_say_what_they_do_and_for_whom(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    terminal.begin(campaign, "b", phase="transfer 1")
    first, second = terminal.facts("hosts")
    assert (first["lab"], first["host"], first["state"]) == ("night", "a", "good")
    assert (first["leased_by"], first["doing"], first["next_check"]) == (None, None, None)
    assert (second["leased_by"]["campaign"], second["leased_by"]["name"]) == (campaign, "small")
    assert second["doing"]["phase"] == "transfer 1"
    said = terminal.said("hosts")
    assert f"campaign {campaign}" in said
    assert "transfer 1" in said


def test_a_quarantined_host_says_why_and_when_it_is_checked(terminal: Terminal) -> None:
    terminal.submitted()
    terminal.store.set_host(
        "night", "a", HostState.QUARANTINED, why="3 lab-errors in a row", next_check=clock.now() + 60
    )
    (line, _) = terminal.facts("hosts", "--lab", "night")
    assert (line["state"], line["why"]) == ("quarantined", "3 lab-errors in a row")
    assert line["next_check"] > line["since"]
    said = terminal.said("hosts")
    assert "quarantined" in said
    assert "health" in said


def test_lab_errors_in_a_row_are_shown(terminal: Terminal) -> None:
    campaign = terminal.submitted(retries=9)
    for _ in range(2):
        terminal.end(terminal.begin(campaign), Outcome.LAB_ERROR, kind="boot-timeout")
    assert [line["strikes"] for line in terminal.facts("hosts")] == [2, 0]


def test_settings_that_could_not_be_restored_are_told_until_somebody_lets_the_host_in_again(terminal: Terminal) -> None:
    campaign = terminal.submitted()
    handle = terminal.begin(campaign, "b")
    change = Change(host="b", adapter="NIC 1", name="*VMQ", before="1", asked="0")
    (left,) = terminal.store.record_adjustments("night", handle.id, [change])
    assert [line["not_restored"] for line in terminal.facts("hosts")] == [[], []], "its attempt is in progress"
    terminal.store.lose_attempts([handle.id], WORKER_LOST)
    terminal.store.explain_adjustment(left, why="no route to host")
    sentence = "*VMQ of adapter NIC 1 was 1, was set to 0 and is not restored: no route to host"
    assert [line["not_restored"] for line in terminal.facts("hosts")] == [[], [sentence]]
    assert "no route" in terminal.said("hosts")
    terminal.said("hosts", "release", "b", "--lab", "night")
    assert [line["not_restored"] for line in terminal.facts("hosts")] == [[], []]


def test_a_host_is_taken_out_and_let_back_in(terminal: Terminal) -> None:
    terminal.submitted()
    assert "labctl hosts release a --lab night" in terminal.said(
        "hosts", "out", "a", "--lab", "night", "--why", "a fan"
    )
    assert "a fan" in terminal.said("hosts")
    assert terminal.said("hosts", "release", "a", "--lab", "night") == "Host a of lab night is good again."
    assert [line["state"] for line in terminal.facts("hosts")] == ["good", "good"]


def test_several_labs_are_told_apart(terminal: Terminal) -> None:
    terminal.submitted()
    other = terminal.lab("day", file="day.yaml", simulated={"hosts": ["a"], "directory": str(terminal.directory)})
    terminal.said("submit", terminal.campaign("other"), "--lab", other)
    assert [(line["lab"], line["host"]) for line in terminal.facts("hosts")] == [
        ("day", "a"),
        ("night", "a"),
        ("night", "b"),
    ]
    assert "day" in terminal.said("hosts")
    assert "day" not in terminal.said("hosts", "--lab", "night")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lab", "nigth"], ["for a lab nigth", "Did you mean night?"]),
        (["out", "c", "--lab", "night", "--why", "x"], ["has no host c", "a, b"]),
        (["out", "a", "--lab", "night"], ["Missing option '--why'"]),
        (["out", "a", "--lab", "night", "--why", " "], ["for a reason"]),
        (["release", "a"], ["Missing option '--lab'"]),
        (["release", "--lab", "night"], ["Missing argument 'HOST'"]),
        (["--json", "release", "a", "--lab", "night"], ["come without `release`"]),
        (["mend", "a"], ["No such command 'mend'"]),
    ],
)
def test_mistakes_are_said(terminal: Terminal, arguments: list[str], words: list[str]) -> None:
    terminal.submitted()
    said = terminal.said("hosts", *arguments, code=2)
    assert all(word in said for word in words), said
