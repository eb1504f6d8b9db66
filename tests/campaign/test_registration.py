"""Whom a service takes for another one that goes on with the work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl import clock
from labctl.campaign.processes import process_name, this_process
from labctl.campaign.registration import other_engines
from labctl.store import Store, WorkerRecord, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(tmp_path)
    yield made
    made.close()


def engine(store: Store, process: str, *, only: tuple[str, ...] = ()) -> None:
    store.register_worker(
        WorkerRecord(
            name=f"engine@{process}", role="engine", machine=process.split(":")[0], pid=1, version="0", queues=only,
            slots=0, started=clock.now(),
        )
    )  # fmt: skip


def test_this_service_is_no_other_one(store: Store) -> None:
    engine(store, this_process())
    assert not other_engines(store)


def test_one_of_another_machine_that_has_fallen_silent_is_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(store, "elsewhere-1234:5:6")
    assert other_engines(store)
    later = clock.now() + 61.0
    monkeypatch.setattr(clock, "now", lambda: later)
    assert not other_engines(store), "else VMs that were kept for it would stay"
    store.beat_worker("engine@elsewhere-1234:5:6", doing="")
    assert other_engines(store)


def test_one_of_this_machine_that_has_died_is_gone_at_once(store: Store) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    engine(store, process_name(process.pid))
    assert other_engines(store)
    process.kill()
    process.communicate()
    assert not other_engines(store)


def test_one_that_works_off_a_single_campaign_goes_on_with_no_other(store: Store) -> None:
    engine(store, "elsewhere-1234:5:6", only=("campaign-3",))
    assert other_engines(store)
    assert not other_engines(store, of_all=True)
