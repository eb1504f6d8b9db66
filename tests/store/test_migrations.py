"""Stores of earlier versions: their tables are brought to the newest, and nothing in them is lost."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData

from labctl.errors import LabError
from labctl.model.outcome import CampaignState, Outcome, Purpose
from labctl.spec.documents import to_json
from labctl.store import After, AttemptHandle, Store, VmRecord, sqlite_url
from labctl.store.engines import make_engine
from labctl.store.place import parse_url
from labctl.store.schema import NEWEST
from labctl.store.tables import metadata
from tests.postgresql import Cluster
from tests.quick_stores import quick_stores
from tests.store.processes import opened
from tests.store.steps import start
from tests.values import a_campaign, a_cell, a_lab, a_result, an_order

pytestmark = pytest.mark.usefixtures("real_stores")

TOKEN = "t" * 32
VIRTIO = a_cell(nic_model="virtio")


@contextmanager
def past_the_store(url: str) -> Iterator[Connection]:
    """A transaction in the database itself."""
    engine = make_engine(parse_url(url))
    with engine.connect() as connection, connection.begin():
        yield connection
    engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store with the first tables is, in the middle of a campaign."""
    if request.param == "sqlite":
        url = sqlite_url(tmp_path)
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        url = cluster.empty_database()
    with past_the_store(url) as db:
        config = Config()
        config.set_main_option("script_location", "labctl/store/migrations")
        config.attributes["connection"] = db
        command.upgrade(config, "0001")
        fill(db)
    return url


def fill(db: Connection) -> None:
    """What an earlier labctl would have written: a run that is done, one in progress, three that wait."""
    tables = MetaData()
    tables.reflect(db)

    def insert(table: str, *rows: dict[str, Any]) -> None:
        db.execute(tables.tables[table].insert(), list(rows))

    insert("store_info", {"key": "identity", "value": "i" * 32})
    insert(
        "campaigns",
        {
            "name": "small", "lab": "lab", "state": "active", "stop_attempts": False, "submitted": 1.0,
            "started": 2.0, "campaign_text": "campaign: small", "lab_text": "lab: lab", "versions": "{}",
            "campaign_document": to_json(a_campaign()), "lab_document": to_json(a_lab()),
        },
    )  # fmt: skip
    cell = {
        "campaign_id": 1,
        "position": 0,
        "levels": json.dumps(dict(VIRTIO.levels)),
        "applicable": True,
        "reason": "",
    }
    insert(
        "cells",
        cell | {"id": 1, "cell": VIRTIO.id},
        cell | {"id": 2, "cell": "x", "position": 1, "applicable": False, "reason": "no device"},
    )
    run = {"campaign_id": 1, "cell_id": 1, "state": "pending", "outcome": None, "accepted_attempt": None}
    insert("runs", *(run | {"id": number, "replicate": number, "sequence": number - 1} for number in range(1, 6)))
    insert(
        "attempts",
        attempt(1, run=1, number=1, outcome="lab-error", kind="boot-timeout"),
        attempt(2, run=1, number=2, outcome="ok"),
        attempt(3, run=2, number=1) | {"state": "claimed", "token": TOKEN, "heartbeat": 5.0},
        attempt(4, run=3, number=1, outcome="cancelled"),
        attempt(5, run=4, number=1, outcome="lab-error", kind="boot-timeout"),
    )
    db.exec_driver_sql("UPDATE runs SET state = 'done', outcome = 'ok', accepted_attempt = 2 WHERE id = 1")
    db.exec_driver_sql("UPDATE runs SET state = 'active' WHERE id = 2")
    insert("leases", {"lab": "lab", "resource": "host:a", "attempt_id": 3, "token": TOKEN, "taken": 4.0})
    content = zlib.compress(b"raw")
    insert("raw_outputs", {"attempt_id": 2, "name": "out", "size": 3, "sha256": "", "content": content})
    vm = VmRecord(
        uuid="1", name="labctl-1", lab="lab", host="a", campaign_id=1, run_id=2, attempt_id=3, role="sender",
        mac="52:54:00:00:00:01", address="198.18.0.16/24", shape="s", state="live",
    )  # fmt: skip
    insert(
        "vms", vm.__dict__ | {"created": 4.0}, vm.__dict__ | {"uuid": "2", "state": "gone", "created": 4.0, "gone": 5.0}
    )


def attempt(attempt_id: int, *, run: int, number: int, outcome: str | None = None, kind: str = "") -> dict[str, Any]:
    result = a_result(Outcome(outcome), kind=kind) if outcome else None
    return {
        "id": attempt_id, "run_id": run, "campaign_id": 1, "number": number, "token": f"{attempt_id:032}",
        "state": "ended" if outcome else "sent", "order_document": to_json(an_order()), "worker": "w:1", "phase": "",
        "created": 3.0, "claimed": 4.0, "heartbeat": None, "ended": 6.0 if outcome else None, "outcome": outcome,
        "kind": kind, "result_document": to_json(result) if result else None,
    }  # fmt: skip


@pytest.fixture
def migrated(old_url: str) -> Iterator[Store]:
    store = opened(old_url)
    yield store
    store.close()


def test_migrations_make_the_tables_of_the_code(migrated: Store, old_url: str) -> None:
    with past_the_store(old_url) as db:
        assert compare_metadata(MigrationContext.configure(db), metadata) == []
        partial = {name for table in metadata.tables.values() for name in (index.name for index in table.indexes)}
        assert {"ix_runs_waiting", "ix_vms_there", "ix_vms_of_campaign", "ix_adjustments_open"} <= partial


def test_new_stores_of_tests_are_those_that_migrations_make(tmp_path: Path) -> None:
    opened(sqlite_url(tmp_path / "migrated")).close()
    with quick_stores():
        opened(sqlite_url(tmp_path / "quick")).close()
    assert len(contents(tmp_path / "quick")) > 100
    assert contents(tmp_path / "quick") == contents(tmp_path / "migrated")


def contents(state: Path) -> list[str]:
    """All lines of the statements that make a store, but for its identity. The order of constraints is any."""
    with closing(sqlite3.connect(state / "labctl.sqlite")) as database:
        lines = "\n".join(database.iterdump()).splitlines()
    return sorted(line.strip(" \t,") for line in lines if "'identity'" not in line)


def test_what_was_stored_is_there_after_a_migration(migrated: Store) -> None:
    assert migrated.identity == "i" * 32
    record = migrated.record(1)
    assert [cell.reason for cell in record.cells] == ["", "no device"]
    first = record.runs[0]
    assert first.result is not None
    assert first.result.detail.outcome is Outcome.OK
    assert [earlier.detail.kind for earlier in first.earlier] == ["boot-timeout"]
    assert {run.purpose for run in record.runs} == {Purpose.MEASURE}
    assert migrated.run_counts(1) == {"ok": 1, "active": 1, "pending": 3}
    assert [output.content for output in migrated.raw(2)] == [b"raw"]
    assert [vm.uuid for vm in migrated.live_vms("lab")] == ["1"]
    assert [line.resource for line in migrated.leases("lab")] == ["host:a"]
    assert migrated.head(1).campaign == a_campaign()
    assert migrated.queue()[0].id == 1


def test_tries_are_counted_and_runs_that_were_tried_come_last_after_a_migration(migrated: Store) -> None:
    waiting = migrated.pending_runs(1, limit=9)
    assert [(run.replicate, run.attempts) for run in waiting] == [(3, 0), (5, 0), (4, 1)]
    assert migrated.tries(2) == (1, 2)


def test_a_migrated_store_goes_on(migrated: Store) -> None:
    handle = AttemptHandle(id=3, token=TOKEN)
    assert migrated.heartbeat(handle, phase="transfer") == ""
    migrated.change_vm("1", state="gone")
    assert migrated.accept(handle, a_result(), After(cleared=("a",))) is not None
    assert migrated.leases() == ()
    assert start(migrated, 1).id == 6
    more = migrated.submit(
        a_campaign(), a_lab(), campaign_text="", lab_text="", versions={}, cells=(), order=(), digest="d"
    )
    assert migrated.same_content("d") == (more,)
    assert migrated.set_state(1, CampaignState.PAUSED)


def test_addresses_that_old_vms_have_are_not_given_again(migrated: Store) -> None:
    values = {"uuid": "3", "name": "n", "lab": "lab", "host": "a", "campaign_id": 1, "run_id": 2, "attempt_id": 3}
    values |= {"role": "receiver", "mac": "52:54:00:00:00:02", "shape": "s", "state": "live"}
    first, last = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.17")
    # The network's prefix was made a longer one in the lab file since.
    record = migrated.record_vm(
        lambda address: VmRecord(**values, address=f"{address}/28"), first=first, last=last, after=0
    )
    assert record.address == "198.18.0.17/28"


def test_a_migration_that_fails_leaves_the_store_as_it_was(old_url: str) -> None:
    with past_the_store(old_url) as db:
        db.exec_driver_sql("CREATE TABLE workers (something INTEGER)")
    with pytest.raises(LabError, match=r"can't be opened(.|\n)*workers"):
        opened(old_url)
    with past_the_store(old_url) as db:
        assert db.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "0001"
        assert db.exec_driver_sql("SELECT count(*) FROM attempts").scalar() == 5
        db.exec_driver_sql("DROP TABLE workers")
    opened(old_url).close()
    with past_the_store(old_url) as db:
        assert db.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == NEWEST
