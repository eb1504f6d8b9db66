"""Settings of hosts that are to be restored: recorded first, restored by one, to what they were before the first change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl import clock
from labctl.errors import AttemptCancelled, LabError
from labctl.model.outcome import Outcome
from labctl.store import WORKER_LOST, Adjustment, AttemptHandle, Change, Store
from labctl.store.adjustments import TAKEN_SECONDS
from tests.store.steps import accept, started_and_claimed, submit
from tests.values import a_result

TSO = Change(host="a", adapter="eth0", name="tso", before="on", asked="off")
OTHER = frozenset({"host:b"})


def changed(store: Store, *changes: Change, **more: frozenset[str]) -> tuple[AttemptHandle, tuple[Adjustment, ...]]:
    """A new attempt in progress that has changed settings."""
    campaigns = store.campaigns()
    campaign = campaigns[0].id if campaigns else submit(store)
    handle = started_and_claimed(store, campaign, **more)
    return handle, store.record_adjustments("lab", handle.id, changes)


def test_what_was_before_is_kept_until_it_is_restored(store: Store) -> None:
    handle, recorded = changed(store, TSO, replace(TSO, name="gso"))
    assert [(item.host, item.adapter, item.name, item.before, item.asked) for item in recorded] == [
        ("a", "eth0", "tso", "on", "off"), ("a", "eth0", "gso", "on", "off"),
    ]  # fmt: skip
    assert store.open_adjustments("lab", host="a") == recorded == store.adjustments_of(handle.id)
    assert store.open_adjustments("lab", host="b") == store.open_adjustments("another") == ()
    store.close_adjustment(recorded[0])
    assert store.open_adjustments() == recorded[1:]


def test_without_its_token_an_attempt_records_nothing(store: Store) -> None:
    handle = started_and_claimed(store, submit(store))
    store.lose_attempts([handle.id], WORKER_LOST)
    with pytest.raises(AttemptCancelled):
        store.record_adjustments("lab", handle.id, [TSO])
    assert store.open_adjustments() == ()


def test_while_its_attempt_is_in_progress_nobody_else_restores_it(store: Store) -> None:
    handle, (tso,) = changed(store, TSO)
    assert store.idle_adjustments("lab") == ()
    assert not store.take_adjustment(tso)
    store.lose_attempts([handle.id], WORKER_LOST)
    assert store.idle_adjustments("lab", host="a") == (tso,)
    assert store.idle_adjustments("lab", host="b") == ()
    assert store.take_adjustment(tso)


def test_one_at_a_time_restores_it_and_who_dies_over_it_is_followed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, (tso,) = changed(store, TSO)
    store.lose_attempts([handle.id], WORKER_LOST)
    assert store.take_adjustment(tso)
    assert not store.take_adjustment(tso)
    later = clock.now() + TAKEN_SECONDS + 1
    monkeypatch.setattr(clock, "now", lambda: later)
    assert store.take_adjustment(tso)
    store.close_adjustment(tso)
    later += TAKEN_SECONDS + 1
    assert not store.take_adjustment(tso)


def test_why_it_could_not_be_restored_is_kept_and_it_may_be_tried_again(store: Store) -> None:
    handle, (tso,) = changed(store, TSO)
    store.lose_attempts([handle.id], WORKER_LOST)
    assert store.take_adjustment(tso)
    store.explain_adjustment(tso, why="The host does not answer.")
    (still,) = store.open_adjustments()
    assert still.sentence == (
        "tso of adapter eth0 was on, was set to off and is not restored: The host does not answer."
    )
    assert store.take_adjustment(still)


def test_who_changes_what_another_has_left_changed_keeps_what_was_before_both(store: Store) -> None:
    """Else the value of the first attempt would be restored for good by the second."""
    first, (left,) = changed(store, TSO)
    store.lose_attempts([first.id], WORKER_LOST)
    second, (taken,) = changed(store, replace(TSO, before="off", asked="on"), resources=OTHER)
    assert (taken.before, taken.asked, taken.attempt_id) == ("on", "on", second.id)
    assert not store.take_adjustment(left)
    store.close_adjustment(left)
    store.explain_adjustment(left, why="late")
    assert store.open_adjustments() == (taken,), "whoever cleans after the first attempt changes nothing any more"


def test_a_setting_of_another_attempt_in_progress_is_not_taken_over(store: Store) -> None:
    _, (tso,) = changed(store, TSO)
    with pytest.raises(LabError, match="can't be changed") as refused:
        changed(store, replace(TSO, name="gso"), TSO, resources=OTHER)
    assert (refused.value.kind, refused.value.host) == ("settings-busy", "a")
    assert store.open_adjustments() == (tso,), "all are recorded or none"


def test_what_is_just_being_restored_is_not_taken_over(store: Store) -> None:
    first, (left,) = changed(store, TSO)
    store.lose_attempts([first.id], WORKER_LOST)
    assert store.take_adjustment(left)
    with pytest.raises(LabError, match="can't be changed"):
        changed(store, TSO, resources=OTHER)
    store.close_adjustment(left)
    _, (anew,) = changed(store, TSO, resources=frozenset({"host:c"}))
    assert anew.id != left.id


def test_hosts_stay_leased_while_an_adjustment_of_an_ended_attempt_is_open(store: Store) -> None:
    handle, (tso,) = changed(store, TSO)
    assert accept(store, handle, a_result(Outcome.OK), again=False)
    assert store.lost_attempts(lab="lab") == (handle.id,)
    assert store.take_adjustment(tso)
    store.close_adjustment(tso)
    store.cleaned(handle.id, again=False)
    assert store.leases("lab") == ()


def test_an_attempt_that_has_restored_everything_frees_its_hosts(store: Store) -> None:
    handle, (tso,) = changed(store, TSO)
    store.close_adjustment(tso)
    assert accept(store, handle, a_result(Outcome.OK), again=False)
    assert store.leases("lab") == ()
