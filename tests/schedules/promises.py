"""What a night must leave, whatever happened in it: each promise is one function that tells how it was broken."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.model.lab import Lab
from tests.schedules.lines import Line

TOUCHES = frozenset({"create", "migrate", "pause", "unpause", "start"})
"""Operations that change something on hosts, or load them. To destroy what is one's own is no harm."""


_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t]+.*\n)*.*$", re.MULTILINE)
_OURS = re.compile(r"^  File \"[^\"]*/(?:labctl|workers)/(?!.*site-packages)", re.MULTILINE)
_FORESEEN = ("labctl.errors.LabError", "labctl.errors.LabctlError", "redis.exceptions.ConnectionError")
"""What may stand at the end of a traceback of ours: an error that names who must act, or what Celery says of a Redis that
has gone."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """What is there in the morning."""

    database: Path
    world: Path
    lab: Lab
    lines: tuple[Line, ...]
    strangers: dict[Path, bytes]
    processes: dict[int, str]
    paused_for_good: frozenset[int]
    reopened: int
    """How often a person sent runs back."""
    logs: tuple[Path, ...]

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Rows of the database itself."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(statement)]


Promise = Callable[[Left], Iterator[str]]


def broken(left: Left) -> tuple[str, ...]:
    """How promises were broken, in sentences; nothing when all were kept."""
    return tuple(f"{promise.__name__.replace('_', ' ')}: {how}" for promise in PROMISES for how in promise(left))


def every_campaign_ends(left: Left) -> Iterator[str]:
    """... or stays paused by a person."""
    for row in left.rows("SELECT id, name, state, why, hold FROM campaigns WHERE purpose != 'health'"):
        if row["state"] == "active" or (row["state"] == "paused" and row["id"] not in left.paused_for_good):
            yield f"campaign {row['id']} is {row['state']} {row['why']} {row['hold']}"
    for row in left.rows("SELECT id, state, campaign_id FROM attempts WHERE state IN ('sent', 'claimed')"):
        yield f"attempt {row['id']} of campaign {row['campaign_id']} is still {row['state']}"


def no_run_is_lost(left: Left) -> Iterator[str]:
    """Every run of an ended campaign has a recorded result, or a reason why it was not run."""
    statement = (
        "SELECT runs.*, campaigns.state AS campaign_state, campaigns.why FROM runs "
        "JOIN campaigns ON campaigns.id = runs.campaign_id WHERE campaigns.purpose != 'health'"
    )
    for row in left.rows(statement):
        run = f"run {row['id']} of campaign {row['campaign_id']}"
        if row["state"] != "done":
            waits_for_a_person = row["campaign_state"] in ("paused", "stopped")
            if row["state"] == "active" or not waits_for_a_person:
                yield f"{run} is {row['state']} though its campaign is {row['campaign_state']}"
        elif row["outcome"] is None:
            yield f"{run} is done without an outcome"
        elif (row["accepted_attempt"] is None) == (row["detail"] is None):
            yield f"{run} has both a result and a reason not to have one, or neither: {row}"


def no_run_has_two_results(left: Left) -> Iterator[str]:
    """The recorded result is that of one of its attempts, and no other attempt of it has a figure."""
    attempts = left.rows(
        "SELECT id, run_id, state, outcome, result_document IS NOT NULL AS has_result FROM attempts ORDER BY id"
    )
    runs = {row["id"]: row for row in left.rows("SELECT * FROM runs")}
    for run in runs.values():
        own = [row for row in attempts if row["run_id"] == run["id"]]
        accepted = [row for row in own if row["id"] == run["accepted_attempt"]]
        if run["accepted_attempt"] is not None and not (
            accepted and accepted[0]["has_result"] and accepted[0]["outcome"] == run["outcome"]
        ):
            yield f"run {run['id']} has the result of attempt {run['accepted_attempt']}, which is {accepted}"
        figures = [row["id"] for row in own if row["state"] == "ended" and row["outcome"] in ("ok", "failed")]
        allowed = 1 + left.reopened
        if len(figures) > allowed or [row["outcome"] for row in own].count("ok") > 1:
            yield f"attempts {figures} of run {run['id']} all have figures"
    stored = left.rows("SELECT attempt_id, name FROM raw_outputs GROUP BY attempt_id, name HAVING count(*) > 1")
    for row in stored:
        yield f"raw output {row['name']} of attempt {row['attempt_id']} was stored twice"


def no_vm_is_left(left: Left) -> Iterator[str]:
    """In the world, or in the records."""
    for path in sorted((left.world / "hosts").glob("*/*")):
        if path not in left.strangers and not path.name.startswith("."):
            yield f"VM {path.name} is on host {path.parent.name}: {json.loads(path.read_text()).get('mark')}"
    for row in left.rows("SELECT name, host, state FROM vms WHERE state != 'gone'"):
        yield f"VM {row['name']} is recorded as {row['state']} on host {row['host']}"


def no_stranger_is_touched(left: Left) -> Iterator[str]:
    """VMs that are not ours are as they were."""
    for path, content in left.strangers.items():
        if not path.exists():
            yield f"the VM {path.name} on host {path.parent.name} is gone, and was not ours"
        elif path.read_bytes() != content:
            yield f"the VM {path.name} on host {path.parent.name} was changed, and was not ours"


def no_lease_is_left(left: Left) -> Iterator[str]:
    """All hosts are free."""
    for row in left.rows("SELECT resource, attempt_id FROM leases"):
        yield f"{row['resource']} is leased by attempt {row['attempt_id']}"


def no_process_is_left(left: Left) -> Iterator[str]:
    """All processes have ended."""
    for pid, command in left.processes.items():
        yield f"process {pid} still runs: {command}"


def no_void_token_touches_the_lab(left: Left) -> Iterator[str]:
    """An attempt that was given up begins nothing on any host, unless it was told in the same moment that its token was
    good: nobody can take back what is on its way."""
    void = voided(left.lines)
    for line in left.lines:
        at = void.get(line.actor)
        if at is not None and line.what in TOUCHES and line.at > at and line.confirmed > at - 1e-3:
            yield f"{line.actor} began to {line.what} {line.vm or line.host} {line.at - at:.3f} s after it was given up"
        elif at is not None and line.what in TOUCHES and line.at > at and not line.confirmed:
            yield f"{line.actor} began to {line.what} {line.vm or line.host} and never asked whether it may"


def nothing_is_measured_in_company(left: Left) -> Iterator[str]:
    """No transfer starts on a machine with running VMs of other attempts, unless these are being created by an attempt that
    was stopped in the middle of it and has not gone on. Transfers of attempts that were given up measure nothing."""
    void = voided(left.lines)
    for line in left.lines:
        if line.what != "company" or void.get(line.actor, line.at) < line.at:
            continue
        other = f"attempt {line.said}"
        late = [made for made in left.lines if made.actor == other and made.what == "create" and made.vm == line.vm]
        if not (other in void and late and void[other] < line.at):
            yield f"{line.actor} measured on host {line.host} while the VM {line.vm} of {other} ran there"


def tries_are_within_the_policy(left: Left) -> Iterator[str]:
    """No run is tried more often than its campaign allows."""
    documents = {
        row["campaign_id"]: json.loads(row["campaign_document"])
        for row in left.rows("SELECT campaign_id, campaign_document FROM documents")
    }
    statement = "SELECT run_id, campaign_id, count(*) AS tries FROM attempts WHERE outcome = 'lab-error'"
    for row in left.rows(f"{statement} GROUP BY run_id, campaign_id"):
        allowed = (1 + int(documents[row["campaign_id"]]["lab_error_retries"])) * (1 + left.reopened)
        if row["tries"] > allowed:
            yield f"run {row['run_id']} was tried {row['tries']} times, and {allowed} are allowed"


def nothing_is_a_bug(left: Left) -> Iterator[str]:
    """No attempt ended as a bug of labctl, and nobody left a traceback."""
    for row in left.rows("SELECT id, result_document FROM attempts WHERE kind = 'bug'"):
        yield f"attempt {row['id']}: {json.loads(row['result_document'])['detail']['what']}"
    for log in left.logs:
        for match in _TRACEBACK.finditer(log.read_text(errors="replace")):
            if _OURS.search(match[0]) and not match[0].rstrip().splitlines()[-1].startswith(_FORESEEN):
                yield f"{log.name}: {match[0]}"


def the_store_is_whole(left: Left) -> Iterator[str]:
    """The database itself finds nothing wrong."""
    for row in left.rows("PRAGMA integrity_check"):
        if row["integrity_check"] != "ok":
            yield str(row)
    for row in left.rows("PRAGMA foreign_key_check"):
        yield str(row)


PROMISES: tuple[Promise, ...] = (
    every_campaign_ends,
    no_run_is_lost,
    no_run_has_two_results,
    no_vm_is_left,
    no_stranger_is_touched,
    no_lease_is_left,
    no_process_is_left,
    no_void_token_touches_the_lab,
    nothing_is_measured_in_company,
    tries_are_within_the_policy,
    nothing_is_a_bug,
    the_store_is_whole,
)


def voided(lines: tuple[Line, ...]) -> dict[str, float]:
    """When attempts were given up, by `attempt ID`."""
    return {
        f"attempt {attempt_id}": line.at
        for line in lines
        if line.what == "store.lose_attempts"
        for attempt_id in json.loads(line.said or "[]")
    }
