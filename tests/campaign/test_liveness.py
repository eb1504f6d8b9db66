"""Who is given up when, what becomes of it, and what is asked to be cleaned; over a real store, with a clock of the test's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.campaign import commands, judgement, liveness, processes
from labctl.campaign.processes import has_died, pid_of, process_name, this_machine, this_process
from labctl.model.outcome import AttemptState
from labctl.model.patience import Patience
from labctl.store import WORKER_LOST, AttemptHandle, AttemptStart, CampaignHead, Store, open_store
from tests.campaign.byhand import begin, lab_of, on
from tests.campaign.outbox import Outbox, submitted
from tests.limits import no_file_can_be_opened
from tests.values import a_result

PATIENCE = Patience(silent=30.0, unclaimed=60.0, clean_again=10.0)


class Clock:
    """Seconds that only the test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def send(store: Store, head: CampaignHead, host: str = "a") -> AttemptHandle:
    """The next run, sent and not claimed."""
    run = store.pending_runs(head.id, limit=1)[0]
    start = AttemptStart(run_id=run.id, order=on(host), resources=frozenset({f"host:{host}"}))
    (handle,) = store.start_attempts(head.lab.name, [start])
    assert handle is not None
    return handle


def state(store: Store, handle: AttemptHandle) -> AttemptState | None:
    return next((sign.state for sign in store.signs() if sign.attempt_id == handle.id), None)


def test_a_silent_attempt_is_given_up_cleaned_and_only_then_its_hosts_are_free(store: Store) -> None:
    head, outbox, clock = submitted(store, lab_of("a", "b")), Outbox(), Clock()
    first = begin(store, head, "a")
    watch = liveness.Watch(PATIENCE, clock)
    assert liveness.give_up_lost(store, watch, outbox) == (), "what is seen for the first time is alive"
    clock.now += 31
    assert liveness.give_up_lost(store, watch, outbox) == (first.id,)
    assert outbox.cleans == [head.id]
    assert [line.resource for line in store.leases()] == ["host:a"]
    assert not judgement.accept(store, first, a_result()), "its token is void"
    judgement.cleaned(store, first.id)
    assert store.leases() == ()
    assert store.run_counts(head.id) == {"pending": 4}
    assert store.tries(first.id)[1] == 1, "it counts as a try"


def test_a_heartbeat_keeps_an_attempt_whatever_the_wall_clock_does(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, outbox, clock = submitted(store), Outbox(), Clock()
    handle = begin(store, head, "a")
    watch = liveness.Watch(PATIENCE, clock)
    for step in (0.0, 1e9, -2e9, 3e9):
        monkeypatch.setattr("labctl.clock.now", lambda step=step: 1.7e9 + step)
        assert store.heartbeat(handle, phase="transfer") == ""
        assert liveness.give_up_lost(store, watch, outbox) == ()
        clock.now += 29
    clock.now += 2
    assert liveness.give_up_lost(store, watch, outbox) == (handle.id,)


def test_an_unclaimed_attempt_goes_back_at_no_try_and_its_late_message_touches_nothing(store: Store) -> None:
    head, outbox, clock = submitted(store), Outbox(), Clock()
    handle = send(store, head)
    watch = liveness.Watch(PATIENCE, clock)
    liveness.give_up_lost(store, watch, outbox)
    clock.now += 59
    assert liveness.give_up_lost(store, watch, outbox) == ()
    clock.now += 2
    assert liveness.give_up_lost(store, watch, outbox) == (handle.id,)
    assert store.leases() == ()
    assert store.run_counts(head.id) == {"pending": 4}
    assert store.tries(handle.id)[1] == 0
    assert outbox.cleans == [], "nobody began it, so there is nothing to clean"
    assert store.claim(handle, worker="w:1") is None


def test_an_unclaimed_attempt_whose_message_still_waits_is_left_alone(store: Store) -> None:
    head, outbox, clock = submitted(store, lab_of("a", "b")), Outbox(), Clock()
    waits, lost = send(store, head), send(store, head, "b")
    watch = liveness.Watch(PATIENCE, clock)
    liveness.give_up_lost(store, watch, outbox)
    clock.now += 61
    asked: list[tuple[int, ...]] = []

    def still_waiting(attempt_ids: tuple[int, ...]) -> set[int]:
        asked.append(attempt_ids)
        return {waits.id}

    assert liveness.give_up_lost(store, watch, outbox, still_waiting=still_waiting) == (lost.id,)
    assert asked == [(waits.id, lost.id)]
    assert state(store, waits) is AttemptState.SENT


@pytest.mark.parametrize("hold", ["window opens Mon 22:00 UTC", "nothing that is left fits before 06:00 UTC"])
def test_a_message_that_waits_beyond_its_window_is_withdrawn(store: Store, hold: str) -> None:
    head, outbox, clock = submitted(store), Outbox(), Clock()
    handle = send(store, head)
    store.set_hold(head.id, hold)
    watch = liveness.Watch(PATIENCE, clock)
    liveness.give_up_lost(store, watch, outbox)
    clock.now += 61
    assert liveness.give_up_lost(store, watch, outbox, still_waiting=set) == (handle.id,)


def test_a_dead_process_of_this_machine_is_noticed_at_once(store: Store) -> None:
    head, outbox = submitted(store, lab_of("a", "b")), Outbox()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = process_name(process.pid)
    lives, dies = begin(store, head, "a", worker=this_process()), begin(store, head, "b", worker=name)
    watch = liveness.Watch(PATIENCE)
    assert liveness.give_up_lost(store, watch, outbox) == ()
    process.kill()
    process.wait()
    assert liveness.give_up_lost(store, watch, outbox) == (dies.id,)
    assert state(store, lives) is AttemptState.CLAIMED


def test_claimed_attempts_are_not_withdrawn(store: Store) -> None:
    head = submitted(store)
    handle = begin(store, head, "a")
    assert liveness.withdraw(store, [handle.id]) == ()
    assert judgement.accept(store, handle, a_result())


def test_cleaning_is_asked_for_again_ever_more_seldom_until_it_is_done(store: Store) -> None:
    head, outbox, clock = submitted(store), Outbox(), Clock()
    handle = begin(store, head, "a")
    store.lose_attempts([handle.id], WORKER_LOST)
    cleaning = liveness.Cleaning(PATIENCE, clock)
    times = []
    for _ in range(100):
        before = len(outbox.cleans)
        cleaning.look(store, outbox)
        times += [clock.now - 1000.0] * (len(outbox.cleans) - before)
        clock.now += 5
    assert times == [0.0, 10.0, 30.0, 70.0, 150.0, 310.0]
    judgement.cleaned(store, handle.id)
    asked = len(outbox.cleans)
    clock.now += 10_000
    cleaning.look(store, outbox)
    assert len(outbox.cleans) == asked


def test_only_what_nobody_will_use_again_is_cleaned(store: Store) -> None:
    head = submitted(store)
    handle = begin(store, head, "a")
    assert liveness.campaigns_to_clean(store) == frozenset(), "an attempt in progress is left alone"
    store.lose_attempts([handle.id], WORKER_LOST)
    assert liveness.campaigns_to_clean(store) == {head.id}
    judgement.cleaned(store, handle.id)
    commands.pause(store, head.id)
    assert liveness.campaigns_to_clean(store) == frozenset()


def test_process_names_tell_a_process_from_its_successor_and_machines_from_each_other() -> None:
    me = this_process()
    assert me == process_name(os.getpid())
    assert pid_of(me) == os.getpid()
    assert not has_died(me)
    machine, pid, start = me.split(":")
    assert machine == this_machine()
    assert has_died(f"{machine}:{pid}:{int(start) + 1}"), "the id belongs to another process now"
    assert not has_died(f"elsewhere:{pid}:{int(start) + 1}"), "nothing is known of other machines"
    assert not has_died("w:1")


def test_a_process_that_nobody_has_reaped_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = process_name(process.pid)
    assert not has_died(name)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}").exists()
    assert has_died(name)
    process.wait()
    assert has_died(name)


def test_a_process_that_cannot_be_looked_at_has_not_died() -> None:
    me = this_process()
    with no_file_can_be_opened():
        assert not has_died(me)


def test_a_process_that_proc_hides_has_not_died(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """/proc may be mounted with hidepid: a process of somebody else has no directory there."""
    me, empty = this_process(), tmp_path / "stat"
    monkeypatch.setattr(processes, "Path", lambda _: empty)
    assert not has_died(me)


def test_a_machine_whose_host_name_changes_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, pid, start = this_process().split(":")
    renamed = f"renamed-{machine.rpartition('-')[2]}"
    assert not has_died(f"{renamed}:{pid}:{start}")
    assert has_died(f"{renamed}:{pid}:{int(start) + 1}")
