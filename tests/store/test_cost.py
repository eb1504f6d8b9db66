"""What every run needs costs the same however many there are: no query of it reads a whole table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from labctl.model.outcome import CampaignState, HostState, Outcome
from labctl.store import WORKER_LOST, After, Event, Store, VmRecord, open_store, sqlite_url
from labctl.store.engines import make_engine
from labctl.store.place import parse_url
from tests.store.steps import started_and_claimed, submit, vm_for
from tests.values import a_result

BIG = ("cells", "runs", "attempts", "vms", "raw_outputs")
"""Tables that grow with the runs of the store. The others grow with the hosts and campaigns of a lab."""
FIRST, LAST = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.31")


@dataclass
class Said:
    """Statements that the store said to its database, with their values."""

    statements: dict[str, Any] = field(default_factory=dict)

    def plans(self, url: str) -> Iterator[tuple[str, str]]:
        """Each statement with each step of how SQLite carries it out."""
        engine = make_engine(parse_url(url))
        with engine.connect() as db:
            for statement, values in self.statements.items():
                for row in db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values):
                    yield statement, row.detail
        engine.dispose()


@contextmanager
def listening() -> Iterator[Said]:
    """Notes all statements of the block."""
    said = Said()

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if re.match("SELECT|UPDATE|DELETE|INSERT", statement):
            said.statements[statement] = values[0] if many else values

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def live(store: Store, campaign: int, *, give_up: bool = False, outcome: Outcome = Outcome.OK) -> None:
    """One life of an attempt, as scheduler, worker and judgement lead it, and what watches over it meanwhile."""
    store.queue()
    store.head(campaign)
    store.state(campaign)
    store.leases("lab")
    store.next_not_before(campaign)
    handle = started_and_claimed(store, campaign)
    store.heartbeat(handle, phase="place")
    store.holds_token(handle)
    store.signs()
    store.active_attempts()
    for name in ("1", "2"):
        values = vm_for(handle, campaign, f"{handle.id}-{name}")
        store.record_vm(lambda a, v=values: VmRecord(**v, address=f"{a}/24"), first=FIRST, last=LAST, after=handle.id)
    store.vms_of_attempt(handle.id)
    store.take_parked(campaign, host="a", role="sender", shape="s", attempt_id=handle.id)
    store.park_vm(f"{handle.id}-1", handle.id)
    store.idle_vms(campaign)
    store.live_vms("lab")
    for name in ("1", "2"):
        store.take_idle(f"{handle.id}-{name}")
        store.change_vm(f"{handle.id}-{name}", state="gone")
    store.standing(handle.id)
    store.tries(handle.id)
    if give_up:
        store.lose_attempts([handle.id], WORKER_LOST)
        store.lost_attempts(lab="lab")
        store.cleaned(handle.id, again=True)
    else:
        store.accept(handle, a_result(outcome), After(blamed=("a",), cleared=("b",)))
    store.detail(handle.id)
    store.order(handle.id)


def serve(store: Store, campaign: int) -> None:
    """What the loop of a service asks, and those who look at it."""
    cell = store.record(campaign).cells[0].id
    store.has_open_runs(campaign)
    store.finish(campaign)
    store.cell_replicates(campaign, cell)
    store.results_of_cell(campaign, cell)
    store.troubles(campaign)
    store.latest_ends(campaign, limit=20)
    store.durations(campaign)
    store.add_runs(campaign, cell, [7])
    store.set_hold(campaign, "x")
    store.set_state(campaign, CampaignState.ACTIVE)
    store.tell(Event(scope="campaign-1", key="x", kind="x", what="x", at=0.0, campaign_id=campaign))
    store.take_event(store.untold()[0].id)
    store.events(campaign)
    store.set_host("lab", "a", HostState.GOOD)
    store.hosts("lab")
    store.beat_worker("w", doing="")
    store.workers()
    store.work_here()


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """All that the store said to SQLite while attempts lived."""
    store = open_store(tmp_path)
    with listening() as said:
        campaign = submit(store)
        live(store, campaign)
        live(store, campaign, outcome=Outcome.LAB_ERROR)
        live(store, campaign, give_up=True)
        serve(store, campaign)
    store.close()
    return said


def test_no_statement_of_the_work_reads_a_whole_table_that_grows(said: Said, tmp_path: Path) -> None:
    assert len(said.statements) > 60
    scans = [
        f"{step}: {statement}"
        for statement, step in said.plans(sqlite_url(tmp_path))
        if (found := re.match(r"SCAN (\w+)", step)) and found[1] in BIG
    ]
    assert scans == []


def test_the_next_runs_are_found_without_sorting_all_that_wait(said: Said, tmp_path: Path) -> None:
    steps = [step for statement, step in said.plans(sqlite_url(tmp_path)) if "ORDER BY runs.retried" in statement]
    assert any("ix_runs_next" in step for step in steps)
    assert not any("TEMP B-TREE" in step for step in steps)


@pytest.mark.parametrize("index", ["ix_runs_waiting", "ix_vms_there", "ix_vms_of_campaign"])
def test_the_index_of_the_few_that_matter_is_used(index: str, said: Said, tmp_path: Path) -> None:
    assert any(index in step for _, step in said.plans(sqlite_url(tmp_path)))
