"""Promises are kept by a night that went well, and each is seen to be broken by one that broke it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.model.outcome import Outcome
from labctl.store import open_store
from tests.campaign.byhand import end, lab_of
from tests.campaign.outbox import submitted
from tests.schedules.lines import WORKER, Line
from tests.schedules.promises import PROMISES, Left, broken

VMS = "(uuid, name, lab, host, campaign_id, run_id, attempt_id, role, mac, address, shape, state, migrations, created)"


@pytest.fixture
def left(tmp_path: Path) -> Left:
    """What a night leaves in which two runs gave a figure and one failed at its second try."""
    store = open_store(tmp_path / "state")
    head = submitted(store, lab_of("a", "b"), repeats=1, lab_error_retries=1, factors={"streams": (1, 2, 4)})
    for outcome in (Outcome.OK, Outcome.OK, Outcome.LAB_ERROR, Outcome.LAB_ERROR):
        end(store, head, "a", outcome=outcome, kind="boot-timeout" if outcome is Outcome.LAB_ERROR else "")
    assert store.finish(head.id)
    store.close()
    stranger = tmp_path / "world" / "hosts" / "a" / "accounting"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("{}")
    log = tmp_path / "service-0.log"
    log.write_text("Serving; Ctrl-C ends it.\n")
    return Left(
        database=tmp_path / "state" / "labctl.sqlite",
        world=tmp_path / "world",
        lab=head.lab,
        lines=(line(1.0, "attempt 1", "create", confirmed=1.0), line(2.0, "attempt 1", "start", confirmed=2.0)),
        strangers={stranger: b"{}"},
        processes={},
        paused_for_good=frozenset(),
        reopened=0,
        logs=(log,),
    )


def line(at: float, actor: str, what: str, *, vm: str = "vm", said: str = "", confirmed: float = 0.0) -> Line:
    return Line(at=at, pid=1, role=WORKER, actor=actor, what=what, host="a", vm=vm, said=said, confirmed=confirmed)


def by(*statements: str) -> Callable[[Left], Left]:
    """Do something to the database past labctl."""

    def spoil(left: Left) -> Left:
        with closing(sqlite3.connect(left.database, isolation_level=None)) as database:
            database.execute("PRAGMA foreign_keys=OFF")
            for statement in statements:
                database.execute(statement)
        return left

    return spoil


def with_lines(*more: Line) -> Callable[[Left], Left]:
    return lambda left: replace(left, lines=left.lines + more)


def with_a_vm(left: Left) -> Left:
    (left.world / "hosts" / "a" / "labctl-lab-c1-r1-a1-sender").write_text('{"mark": {"attempt": 1}}')
    return left


def without_a_stranger(left: Left) -> Left:
    next(iter(left.strangers)).unlink()
    return left


def with_a_changed_stranger(left: Left) -> Left:
    next(iter(left.strangers)).write_text('{"paused": true}')
    return left


def with_a_traceback(left: Left) -> Left:
    said = 'Traceback (most recent call last):\n  File "/x/labctl/store/runs.py", line 1, in f\n    1 / 0\nZeroDivisionError'
    left.logs[0].write_text(f"Serving\n{said}\nthe next line\n")
    return left


LOST = line(5.0, "", "store.lose_attempts", said="[1]")
BROKEN: list[tuple[str, Callable[[Left], Left]]] = [
    ("every campaign ends", by("UPDATE campaigns SET state='active'")),
    ("every campaign ends", by("UPDATE campaigns SET state='paused'")),
    ("every campaign ends", by("UPDATE attempts SET state='claimed' WHERE id=1")),
    ("no run is lost", by("UPDATE runs SET state='pending', outcome=NULL WHERE id=1")),
    ("no run is lost", by("UPDATE runs SET state='active', outcome=NULL WHERE id=1")),
    ("no run is lost", by("UPDATE runs SET outcome=NULL WHERE id=1")),
    ("no run is lost", by("UPDATE runs SET accepted_attempt=NULL WHERE id=1")),
    ("no run is lost", by("UPDATE runs SET detail='{}' WHERE id=1")),
    ("no run has two results", by("UPDATE runs SET accepted_attempt=2 WHERE id=1")),
    ("no run has two results", by("UPDATE attempts SET outcome='ok', run_id=1, number=9 WHERE id=3")),
    ("no run has two results", by("UPDATE attempts SET result_document=NULL WHERE id=1")),
    (
        "no run has two results",
        by(*["INSERT INTO raw_outputs (attempt_id, name, size, sha256) VALUES (1, 'x', 0, '')"] * 2),
    ),
    ("no vm is left", with_a_vm),
    (
        "no vm is left",
        by(f"INSERT INTO vms {VMS} VALUES ('u', 'n', 'lab', 'a', 1, 1, 1, 'sender', '', '', '', 'parked', 0, 0)"),
    ),
    ("no stranger is touched", without_a_stranger),
    ("no stranger is touched", with_a_changed_stranger),
    (
        "no lease is left",
        by("INSERT INTO leases (lab, resource, attempt_id, token, taken) VALUES ('lab', 'host:a', 1, 't', 0)"),
    ),
    ("no process is left", lambda left: replace(left, processes={7: "redis-server"})),
    ("no void token touches the lab", with_lines(LOST, line(6.0, "attempt 1", "create", confirmed=5.5))),
    ("no void token touches the lab", with_lines(LOST, line(6.0, "attempt 1", "start"))),
    ("nothing is measured in company", with_lines(line(6.0, "attempt 2", "company", said="1"))),
    ("nothing is measured in company", with_lines(line(4.0, "attempt 2", "company", said="1"), LOST)),
    ("tries are within the policy", by("UPDATE attempts SET outcome='lab-error', run_id=3, number=9 WHERE id=1")),
    ("nothing is a bug", by("UPDATE attempts SET kind='bug' WHERE id=3")),
    ("nothing is a bug", with_a_traceback),
    ("the store is whole", by("UPDATE attempts SET run_id=77 WHERE id=1")),
]


def test_a_night_that_went_well_breaks_nothing(left: Left) -> None:
    assert broken(left) == ()


@pytest.mark.parametrize(("promise", "spoil"), BROKEN)
def test_a_broken_promise_is_seen(left: Left, promise: str, spoil: Callable[[Left], Left]) -> None:
    found = [how.partition(":")[0] for how in broken(spoil(left))]
    assert promise in found


def test_every_promise_can_be_broken() -> None:
    assert {promise for promise, _ in BROKEN} == {promise.__name__.replace("_", " ") for promise in PROMISES}


@pytest.mark.parametrize(
    "harmless",
    [
        pytest.param(with_lines(LOST, line(6.0, "attempt 1", "destroy")), id="own VMs may be destroyed at any time"),
        pytest.param(
            with_lines(LOST, line(5.001, "attempt 1", "create", confirmed=4.9)), id="what was on its way arrives"
        ),
        pytest.param(with_lines(LOST, line(6.0, "attempt 2", "company", said="1")), id="a VM that is just being made"),
        pytest.param(with_lines(LOST, line(6.0, "attempt 1", "company", said="2")), id="who was given up is no measurer"),
        pytest.param(by("UPDATE campaigns SET state='stopped'", "UPDATE runs SET state='pending', outcome=NULL, "
                        "accepted_attempt=NULL WHERE id=3"), id="runs of a stopped campaign wait for a person"),
    ],
)  # fmt: skip
def test_what_breaks_no_promise(left: Left, harmless: Callable[[Left], Left]) -> None:
    assert broken(harmless(left)) == ()


def test_what_was_tried_again_on_a_persons_wish_is_no_second_result(left: Left) -> None:
    spoilt = by("UPDATE attempts SET outcome='failed' WHERE id=3")(left)
    spoilt = by("UPDATE attempts SET outcome='ok' WHERE id=4", "UPDATE runs SET outcome='ok' WHERE id=3")(spoilt)
    assert any("two results" in how for how in broken(spoilt))
    assert broken(replace(spoilt, reopened=1)) == ()
