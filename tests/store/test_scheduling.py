"""What the scheduler asks of the store: shares, runs that are added, campaigns that are finished, what was learnt."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from labctl import clock
from labctl.campaign import commands
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail
from labctl.store import WORKER_LOST, After, AttemptStart, Leased, Store, open_store
from tests.values import a_campaign, a_lab, a_result, an_order

CANCELLED = OutcomeDetail(outcome=Outcome.CANCELLED, kind="cancelled")


def submit(store: Store, lab: str = "lab") -> int:
    return commands.submit(store, a_campaign(), replace(a_lab(), name=lab), campaign_text="c", lab_text="l")


def work_on(store: Store, campaign: int, *, seconds: float) -> None:
    """One run of the campaign is carried out."""
    run = store.pending_runs(campaign, limit=1)[0]
    asked = AttemptStart(run_id=run.id, order=an_order(), resources=frozenset({"machine:one"}), estimate=seconds)
    (handle,) = store.start_attempts("lab", [asked])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    assert store.accept(handle, a_result(), After()) is not None


def test_a_campaign_begins_with_the_least_share_of_those_of_its_lab(store: Store) -> None:
    first = submit(store)
    work_on(store, first, seconds=100.0)
    elsewhere, second = submit(store, "other"), submit(store)
    shares = {item.id: item.share for item in store.queue()}
    assert shares == {first: 100.0, elsewhere: 0.0, second: 100.0}


def test_a_share_is_raised_and_never_lowered(store: Store) -> None:
    campaign = submit(store)
    for least, share in ((50.0, 50.0), (20.0, 50.0)):
        store.raise_share(campaign, least)
        assert store.queue()[0].share == share


def test_a_campaign_is_finished_once_and_only_when_all_its_runs_are_done(store: Store) -> None:
    campaign = submit(store)
    work_on(store, campaign, seconds=1.0)
    assert not store.finish(campaign)
    store.end_pending(campaign, CANCELLED)
    assert store.finish(campaign)
    assert store.state(campaign) is CampaignState.DONE
    assert store.head(campaign).ended is not None
    assert not store.finish(campaign)


def test_a_campaign_that_is_not_active_is_not_finished(store: Store) -> None:
    campaign = submit(store)
    store.end_pending(campaign, CANCELLED)
    for state in (CampaignState.PAUSED, CampaignState.STOPPED, CampaignState.CANCELLED):
        store.set_state(campaign, state)
        assert not store.finish(campaign)


def test_runs_are_added_once_to_campaigns_that_go_on(store: Store) -> None:
    campaign = submit(store)
    cell = store.record(campaign).cells[0].id
    assert [store.add_runs(campaign, cell, [replicate]) for replicate in (2, 3, 3)] == [0, 1, 0]
    assert store.cell_replicates(campaign, cell) == (3, 3)
    store.set_state(campaign, CampaignState.CANCELLED)
    assert store.add_runs(campaign, cell, [4]) == 0


def test_no_more_seconds_are_added_than_the_budget_has_whoever_adds(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = itertools.count(1e9, 10.0)
    monkeypatch.setattr(clock, "now", lambda: next(moments))
    campaign = submit(store)
    for _ in range(2):
        work_on(store, campaign, seconds=1.0)
    (seconds,) = {seconds for _, seconds in store.durations(campaign).values()}
    cells = [cell.id for cell in store.record(campaign).cells]
    added: list[int] = []

    def add(cell: str) -> None:
        mine = open_store(tmp_path, url=url)
        added.extend(mine.add_runs(campaign, cell, [at], budget=3.5 * seconds) for at in range(3, 9))
        mine.close()

    threads = [threading.Thread(target=add, args=(cell,)) for cell in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 3


def test_cells_that_were_timed_are_told_with_their_mean(store: Store) -> None:
    campaign = submit(store)
    assert store.timed_cells(campaign, limit=9) == ()
    work_on(store, campaign, seconds=1.0)
    ((cell, seconds),) = store.timed_cells(campaign, limit=9)
    assert store.durations(campaign) == {cell.id: (1, seconds)}
    work_on(store, campaign, seconds=1.0)
    assert len(store.timed_cells(campaign, limit=1)) == 1


def test_what_is_leased_is_told_with_its_campaign_and_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: 1e9)
    campaign = submit(store)
    run = store.pending_runs(campaign, limit=1)[0]
    leased = frozenset({"host:a", "machine:one"})
    (handle,) = store.start_attempts(
        "lab", [AttemptStart(run_id=run.id, order=an_order(), resources=leased, estimate=60.0)]
    )
    assert store.leased("lab") == dict.fromkeys(leased, Leased(campaign, 1e9 + 60, in_progress=True))
    assert handle is not None
    store.lose_attempts([handle.id], WORKER_LOST)
    assert store.leased("lab") == dict.fromkeys(leased, Leased(campaign, 1e9 + 60, in_progress=False))
    assert store.leased("other") == {}


def test_a_campaign_that_is_not_active_is_not_held_up(store: Store) -> None:
    campaign = submit(store)
    store.set_hold(campaign, "window opens Mon 22:00")
    assert store.head(campaign).hold == "window opens Mon 22:00"
    store.set_state(campaign, CampaignState.PAUSED)
    store.set_hold(campaign, "window opens Mon 22:00")
    assert store.head(campaign).hold == ""


def test_starting_runs_goes_through_no_others(tmp_path: Path) -> None:
    """With another plan of SQLite's the cost of a run would grow with the number of those that wait."""
    store = open_store(tmp_path)
    campaign = submit(store)
    runs = store.pending_runs(campaign, limit=4)
    starts = [
        AttemptStart(run_id=run.id, order=an_order(), resources=frozenset({f"host:{run.id}"}), estimate=1.0)
        for run in runs
    ]
    asked: list[tuple[str, Any]] = []

    def keep(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if statement.startswith("SELECT") and not many:
            # As many as one call ever starts.
            first = next((value for value in values if value == runs[0].id), None)
            longer = f"({', '.join('?' * len(runs))})", f"({', '.join('?' * 300)})"
            more = tuple(values) + (first,) * (300 - len(runs)) if longer[0] in statement else tuple(values)
            asked.append((statement.replace(*longer), more))

    event.listen(Engine, "before_cursor_execute", keep)
    try:
        store.start_attempts("lab", starts)
    finally:
        event.remove(Engine, "before_cursor_execute", keep)
    store.close()
    with closing(sqlite3.connect(tmp_path / "labctl.sqlite")) as db:
        plans = [row[3] for statement, values in asked for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert any("runs" in plan for plan in plans)
    assert not [plan for plan in plans if "ix_runs_next" in plan or plan.startswith("SCAN")]


def test_the_record_names_the_hosts_that_a_result_comes_from(store: Store) -> None:
    campaign = submit(store)
    work_on(store, campaign, seconds=1.0)
    by_state = {run.state: run.hosts for run in store.record(campaign).runs}
    assert by_state == {"done": ("a",), "pending": ()}
