"""What hosts do and how they have behaved, and what people ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.campaign.hosts import HostLine, host_lines, release_host, take_host_out
from labctl.errors import SpecError
from labctl.model.outcome import HostState
from labctl.store import WORKER_LOST, AttemptHandle, AttemptStart, Store, open_store
from tests.campaign.outbox import submitted
from tests.values import a_lab, an_order


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def occupy(store: Store, campaign_id: int, host: str) -> AttemptHandle:
    """A run in progress on a host."""
    run = store.pending_runs(campaign_id, limit=1)[0]
    resources = frozenset({f"host:{host}", "machine:one"})
    (handle,) = store.start_attempts("lab", [AttemptStart(run_id=run.id, order=an_order(host), resources=resources)])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    return handle


def line(store: Store, host: str, lab: str = "lab") -> HostLine:
    return next(item for item in host_lines(store, lab) if item.record.host == host)


def test_all_hosts_of_all_labs_are_listed_also_those_that_never_did_anything(store: Store) -> None:
    submitted(store)
    submitted(store, replace(a_lab(), name="other"))
    listed = [(item.record.lab, item.record.host, item.record.state) for item in host_lines(store)]
    assert listed == [
        ("lab", "a", HostState.GOOD), ("lab", "b", HostState.GOOD),
        ("other", "a", HostState.GOOD), ("other", "b", HostState.GOOD),
    ]  # fmt: skip
    assert host_lines(store, "lab") == host_lines(store)[:2]


def test_a_host_says_for_whom_it_works_and_what_is_done_on_it(store: Store) -> None:
    head = submitted(store)
    handle = occupy(store, head.id, "a")
    busy = line(store, "a")
    assert busy.lease is not None
    assert busy.attempt is not None
    assert (busy.lease.campaign_id, busy.attempt.id) == (head.id, handle.id)
    assert line(store, "b").lease is None


def test_a_host_that_is_being_cleaned_is_leased_and_works_for_nobody(store: Store) -> None:
    handle = occupy(store, submitted(store).id, "a")
    store.lose_attempts([handle.id], WORKER_LOST)
    dirty = line(store, "a")
    assert dirty.lease is not None
    assert dirty.attempt is None


def test_hosts_that_an_edited_lab_file_has_no_more_are_still_shown(store: Store) -> None:
    old = submitted(store)
    occupy(store, old.id, "b")
    store.set_host("lab", "a", HostState.OUT, why="x")
    hosts = dict(a_lab().hosts)
    hosts["c"] = replace(hosts.pop("a"), name="c")
    del hosts["b"]
    submitted(store, replace(a_lab(), hosts=hosts, migration_pairs=frozenset()))
    assert [item.record.host for item in host_lines(store, "lab")] == ["c", "a", "b"]


def test_a_host_is_taken_out_and_let_back_in_by_people(store: Store) -> None:
    submitted(store)
    for _ in range(2):
        take_host_out(store, "lab", "a", why=" a fan is broken ")
    out = line(store, "a").record
    assert (out.state, out.why) == (HostState.OUT, "a fan is broken")
    for _ in range(2):
        release_host(store, "lab", "a")
    back = line(store, "a").record
    assert (back.state, back.why, back.strikes) == (HostState.GOOD, "", 0)


def test_unknown_labs_and_hosts_are_refused_with_the_nearest_name(store: Store) -> None:
    submitted(store, replace(a_lab(), name="local"))
    with pytest.raises(SpecError, match=r"(?s)for a lab locl.*Did you mean local\?"):
        host_lines(store, "locl")
    with pytest.raises(SpecError, match=r"(?s)lab local has no host c.*Its hosts: a, b"):
        release_host(store, "local", "c")
    with pytest.raises(SpecError, match="no host c"):
        take_host_out(store, "local", "c", why="x")
    assert [item.record.host for item in host_lines(store)] == ["a", "b"], "a mistake makes no host"


def test_nobody_takes_a_host_out_without_a_reason(store: Store) -> None:
    submitted(store)
    with pytest.raises(SpecError, match="for a reason"):
        take_host_out(store, "lab", "a", why="  ")
