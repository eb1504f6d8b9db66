"""When the hosts of a lost attempt may be given to others: not while what it started there may still move data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl import clock
from labctl.campaign import commands
from labctl.model.order import EndpointOrder, Placement, RunOrder
from labctl.model.scenario import Side
from labctl.store import WORKER_LOST, AttemptStart, Store, open_store
from tests.values import a_campaign, a_lab, an_order
from workers import cleaning
from workers.cleaning import clean_campaign


def between_hosts() -> RunOrder:
    sender, receiver = (EndpointOrder(side=side, host=host, vm=False) for side, host in zip(Side, "ab", strict=True))
    return replace(an_order(), placement=Placement(sender=sender, receiver=receiver))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(cleaning, "_known_since", {})
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def lost(store: Store, order: RunOrder) -> int:
    """The campaign of an attempt that was given up."""
    campaign = commands.submit(store, a_campaign(), a_lab(), campaign_text="c", lab_text="l")
    run = store.pending_runs(campaign, limit=1)[0]
    start = AttemptStart(run_id=run.id, order=order, resources=frozenset({"host:a"}))
    (handle,) = store.start_attempts("lab", [start])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    store.lose_attempts([handle.id], WORKER_LOST)
    return campaign


@pytest.mark.parametrize(("order", "waits"), [(an_order(), False), (between_hosts(), True)])
def test_hosts_that_were_endpoints_are_kept_until_their_processes_have_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch, order: RunOrder, waits: bool
) -> None:
    campaign = lost(store, order)
    clean_campaign(store, campaign)
    assert bool(store.leases("lab")) is waits
    later = time.time() + 600
    monkeypatch.setattr(clock, "now", lambda: later)
    clean_campaign(store, campaign)
    assert store.leases("lab") == ()


def test_s5_a_wall_clock_that_is_set_back_keeps_no_host_for_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = lost(store, between_hosts())
    earlier, began = time.time() - 3600, time.monotonic()
    monkeypatch.setattr(clock, "now", lambda: earlier)
    monkeypatch.setattr(clock, "monotonic", lambda: began)
    clean_campaign(store, campaign)
    assert store.leases("lab")
    monkeypatch.setattr(clock, "monotonic", lambda: began + 600)
    clean_campaign(store, campaign)
    assert store.leases("lab") == ()
