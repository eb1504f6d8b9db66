"""What the store offers to those who keep it small and who tell of ends."""

from __future__ import annotations

import random
from pathlib import Path

from labctl import clock
from labctl.model.outcome import CampaignState, Purpose
from labctl.model.result import AttemptResult, RawOutput
from labctl.store import After, AttemptHandle, AttemptStart, Store, open_store, sqlite_url
from tests.campaign.outbox import submitted
from tests.values import a_result, an_order


def ended_attempt(store: Store, run_id: int, result: AttemptResult) -> AttemptHandle:
    (handle,) = store.start_attempts("lab", [AttemptStart(run_id=run_id, order=an_order(), resources=frozenset({"x"}))])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    assert store.accept(handle, result, After()) is not None
    return handle


def test_campaigns_that_ended_are_found_by_when(store: Store) -> None:
    ids = [submitted(store, factors={"nic_model": (model,)}).id for model in ("virtio", "e1000", "e1000e")]
    before = clock.now()
    assert store.ended_since(0.0) == {}
    store.set_state(ids[1], CampaignState.DONE)
    store.set_state(ids[0], CampaignState.STOPPED)
    assert list(store.ended_since(before)) == [ids[1], ids[0]]
    assert store.head(ids[1]).ended == store.ended_since(before)[ids[1]]
    assert store.head(ids[2]).ended is None
    store.set_state(ids[1], CampaignState.ACTIVE)
    assert list(store.ended_since(before)) == [ids[0]]
    assert store.ended_since(clock.now() + 1) == {}


def test_raw_outputs_are_forgotten_a_few_at_a_time(store: Store) -> None:
    campaign = submitted(store, repeats=3)
    handles = [
        ended_attempt(store, run.id, a_result(raw=bytes([run.id]) * 1000))
        for run in store.pending_runs(campaign.id, limit=10)
    ]
    assert store.prune_raw(older_than=0.0) == (0, 0)
    moment = clock.now() + 1
    first, some = store.prune_raw(older_than=moment, limit=4)
    second, rest = store.prune_raw(older_than=moment, limit=4)
    assert (first, second) == (4, 2)
    assert some > rest > 0
    assert store.prune_raw(older_than=moment, limit=4) == (0, 0)
    assert [store.raw(handle.id) for handle in handles] == [()] * 6


def test_what_was_forgotten_is_given_back_by_a_vacuum(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    campaign = submitted(store)
    noise = random.Random(1).randbytes(100_000)
    big = AttemptResult(detail=a_result().detail, raw=(RawOutput(name="transfer-1/client.stdout", content=noise),))
    ended_attempt(store, store.pending_runs(campaign.id, limit=1)[0].id, big)
    store.prune_raw(older_than=clock.now() + 1)
    free, size = store.reclaimable()
    assert 90_000 < free < size
    store.vacuum()
    left, smaller = store.reclaimable()
    assert left == 0
    assert smaller < size
    store.close()


def test_the_database_of_a_state_directory_is_a_file_in_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.database is not None
    assert f"sqlite:///{store.database}" == sqlite_url(tmp_path)
    assert store.database.is_file()
    store.close()


def test_a_health_check_is_no_campaign_that_ended(store: Store) -> None:
    head = submitted(store)
    health = store.submit(
        head.campaign, head.lab, campaign_text="", lab_text="", versions={}, cells=(), order=(), purpose=Purpose.HEALTH
    )
    store.set_state(health, CampaignState.DONE)
    assert store.ended_since(0.0) == {}
