"""The scheduler over a real store, with messages that are only kept, under a clock of the test's."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from labctl.campaign import commands, judgement, liveness, scheduler
from labctl.errors import LabError
from labctl.model.campaign import Anchor
from labctl.model.lab import Lab, Limits
from labctl.model.outcome import AttemptState, CampaignState, HostState, Outcome, Purpose, RunState
from labctl.model.scenario import Scenario
from labctl.store import WORKER_LOST, AttemptHandle, CampaignHead, Store, open_store
from tests.campaign.byhand import lab_of
from tests.campaign.outbox import Outbox, carry_out, submitted
from tests.campaign.wall import Wall, machine_in
from tests.values import a_campaign, a_lab, a_result

ONE_CELL: dict[str, object] = {"factors": {"nic_model": ("virtio",)}}
PAIRS: dict[str, object] = ONE_CELL | {"scenarios": (Scenario.CROSS_HOST,)}
MOVING: dict[str, object] = ONE_CELL | {"scenarios": (Scenario.DURING_MIGRATION,), "settings": {"seconds": 30.0}}


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


@pytest.fixture
def store(tmp_path: Path, wall: Wall) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


class Worker:
    """Sends nothing, and carries out what it is told to."""

    def __init__(self, store: Store, wall: Wall) -> None:
        self.outbox = Outbox()
        self._store = store
        self._wall = wall
        self._done: set[int] = set()

    def advance(self, **said: Any) -> scheduler.Advanced:
        return scheduler.advance(self._store, self.outbox, **said)

    @property
    def waiting(self) -> list[AttemptHandle]:
        return [handle for handle in self.outbox.attempts if handle.id not in self._done]

    def carry_out(self, *, seconds: float = 10.0, outcome: Outcome = Outcome.OK, kind: str = "") -> None:
        """All that was sent is carried out, side by side."""
        handles = self.waiting
        self._wall.pass_by(seconds)
        for handle in handles:
            assert carry_out(self._store, handle, a_result(outcome, kind=kind))
            self._done.add(handle.id)


@pytest.fixture
def worker(store: Store, wall: Wall) -> Worker:
    return Worker(store, wall)


def at_work(store: Store) -> list[tuple[int, tuple[str, ...]]]:
    """(campaign, hosts) of the attempts in progress, in the order of their starts."""
    return [(item.campaign_id, item.hosts) for item in store.active_attempts()]


def runs_of(store: Store, head: CampaignHead) -> Counter[int]:
    """How many attempts are in progress, by campaign."""
    return Counter(campaign for campaign, _ in at_work(store) if campaign == head.id)


def test_higher_priority_first_and_the_rest_for_others(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b", "c")
    low, high = submitted(store, lab), submitted(store, lab, **ONE_CELL, priority=5)
    assert worker.advance().started == 3
    assert [campaign for campaign, _ in at_work(store)] == [high.id, high.id, low.id]


def test_campaigns_of_equal_priority_fill_the_hosts_in_turns(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b", "c", "d")
    first, second = submitted(store, lab), submitted(store, lab)
    worker.advance()
    assert [campaign for campaign, _ in at_work(store)] == [first.id, second.id, first.id, second.id]


def test_over_time_campaigns_of_equal_priority_get_equal_machine_seconds(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b", "c")
    for length in (10.0, 60.0):
        submitted(store, lab, **ONE_CELL, repeats=60, settings={"seconds": length})
    longest = 0.0
    for _ in range(40):
        worker.advance()
        longest = max([longest, *(item.estimate for item in store.active_attempts())])
        shares = [item.share for item in store.queue()]
        assert max(shares) - min(shares) <= longest
        worker.carry_out(seconds=20.0)


def test_a_run_takes_any_of_its_hosts_that_is_free(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b")
    alone = replace(lab, hosts={"a": lab.hosts["a"]})
    submitted(store, alone, priority=9)
    second = submitted(store, lab)
    worker.advance()
    assert at_work(store)[1:] == [(second.id, ("b",))]


def test_a_two_host_run_gets_its_hosts_in_spite_of_a_stream_of_one_host_runs(
    store: Store, wall: Wall, worker: Worker
) -> None:
    lab = lab_of("a", "b", "c")
    submitted(store, lab, repeats=200, max_runs=10_000)
    worker.advance()
    pair = submitted(store, lab, **PAIRS, repeats=1)
    ended = 0
    while not runs_of(store, pair):
        handle = worker.waiting[0]
        wall.pass_by(1.0)
        carry_out(store, handle, a_result())
        worker._done.add(handle.id)
        worker.advance()
        ended += 1
        assert ended <= 6, "each host has ended the run that it had, and one more"


def test_no_more_runs_migrate_at_once_than_the_lab_allows_whoever_asks(
    store: Store, worker: Worker, tmp_path: Path
) -> None:
    lab = replace(lab_of("a", "b", "c", "d", "e", "f"), limits=Limits(migrations_at_once=2))
    submitted(store, lab, **MOVING, repeats=9)
    other = open_store(tmp_path)
    scheduler.advance(other, worker.outbox)
    worker.advance()
    other.close()
    assert len(at_work(store)) == 2
    worker.carry_out()
    assert worker.advance().started == 2


def test_every_replicate_of_a_cell_is_in_another_placement_and_blocks_are_in_one(store: Store, worker: Worker) -> None:
    head = submitted(store, lab_of("a", "b"), scenarios=(Scenario.CROSS_HOST,), repeats=4)
    while worker.advance().started:
        worker.carry_out()
    placed: dict[int, set[tuple[str, ...]]] = {}
    for run in store.record(head.id).runs:
        (attempt,) = store.attempts_of_run(run.id)
        placed.setdefault(run.replicate, set()).add(store.order(attempt).placement.hosts)
    assert all(len(hosts) == 1 for hosts in placed.values()), "all cells of a block have the same hosts"
    assert placed[1] == placed[3]
    assert placed[1] != placed[2]


def test_a_run_that_is_tried_again_goes_to_another_host(store: Store, worker: Worker) -> None:
    submitted(store, lab_of("a", "b", "c"), **ONE_CELL, repeats=1)
    hosts = []
    for _ in range(3):
        worker.advance()
        hosts += [used for _, used in at_work(store)]
        worker.carry_out(outcome=Outcome.LAB_ERROR, kind="worker-lost")
    assert sorted(hosts) == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize("state", [HostState.QUARANTINED, HostState.OUT])
def test_hosts_that_are_not_good_get_no_runs_but_those_of_health_checks(
    store: Store, worker: Worker, wall: Wall, state: HostState
) -> None:
    lab = lab_of("a", "b")
    head = submitted(store, lab)
    alone = submitted(store, replace(lab, hosts={"a": lab.hosts["a"]}), name="alone", **ONE_CELL, repeats=1)
    store.set_host(lab.name, "a", state, why="3 lab-errors in a row.")
    check = commands.submit(
        store, a_campaign(repeats=1, factors={}), replace(lab, hosts={"a": lab.hosts["a"]}),
        campaign_text="", lab_text="", purpose=Purpose.HEALTH,
    )  # fmt: skip
    worker.advance()
    assert at_work(store) == [(check, ("a",)), (head.id, ("b",))]
    if state is HostState.QUARANTINED:
        assert store.head(alone.id).hold == "host a is quarantined: 3 lab-errors in a row"


def test_runs_that_no_host_is_left_for_end_as_lab_errors_and_can_be_retried(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b", "c")
    both = submitted(store, lab, scenarios=(Scenario.SAME_HOST, Scenario.CROSS_HOST), repeats=2)
    for name in ("b", "c"):
        store.set_host(lab.name, name, HostState.OUT, why="Its disk is broken.")
    while worker.advance().started:
        worker.carry_out()
    assert store.run_counts(both.id) == {Outcome.OK: 4, Outcome.LAB_ERROR: 4}
    assert store.state(both.id) is CampaignState.DONE
    unrun = [run for run in store.record(both.id).runs if run.unrun is not None]
    assert {run.unrun.kind for run in unrun if run.unrun} == {"no-host"}
    assert "Host b is out. Its disk is broken." in unrun[0].unrun.why  # type: ignore[union-attr]
    store.set_host(lab.name, "b", HostState.GOOD)
    commands.retry(store, both.id, [Outcome.LAB_ERROR])
    while worker.advance().started:
        worker.carry_out()
    assert store.run_counts(both.id) == {Outcome.OK: 8}


def test_a_host_in_quarantine_may_come_back_so_its_runs_wait(store: Store, worker: Worker) -> None:
    lab = lab_of("a")
    head = submitted(store, lab, **ONE_CELL)
    store.set_host(lab.name, "a", HostState.QUARANTINED, why="3 lab-errors in a row.")
    assert worker.advance() == scheduler.Advanced(started=0, ended=(), next_look=None)
    assert store.run_counts(head.id) == {RunState.PENDING: 2}


def test_people_are_told_whose_runs_a_campaign_waits_for(store: Store, wall: Wall, worker: Worker) -> None:
    lab = lab_of("a", "b")
    first, second = submitted(store, lab, priority=1), submitted(store, lab)
    worker.advance()
    assert store.head(second.id).hold == f"hosts a, b are leased by campaign {first.id}"
    assert store.head(first.id).hold == ""
    worker.carry_out()
    commands.pause(store, first.id)
    worker.advance()
    assert store.head(second.id).hold == "", "it has runs of its own in progress"


def test_a_host_that_is_kept_for_a_two_host_run_is_said_to_be(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b")
    one = submitted(store, replace(lab, hosts={"a": lab.hosts["a"]}), name="one", settings={"seconds": 60.0})
    worker.advance()
    pair = submitted(store, lab, **PAIRS, priority=1)
    other = submitted(store, lab, name="other", settings={"seconds": 600.0})
    worker.advance()
    assert store.head(other.id).hold == (
        f"host a is leased by campaign {one.id}; host b is kept for a run of campaign {pair.id}"
    )


def test_a_campaign_that_only_waits_for_its_turn_to_migrate_says_so(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b", "c", "d")
    first, second = submitted(store, lab, **MOVING), submitted(store, lab, **MOVING)
    worker.advance()
    assert store.head(second.id).hold == f"the lab allows 1 migrating run at once: campaign {first.id}"


def test_the_same_hold_is_not_written_again_and_another_not_at_once(store: Store, wall: Wall, worker: Worker) -> None:
    head = submitted(store)
    for text, kept in (
        ("disk: 90 MB are free", "disk: 90 MB are free"),
        ("disk: 80 MB are free", "disk: 90 MB are free"),
    ):
        done = worker.advance(hold=text)
        assert store.head(head.id).hold == kept
    assert done.next_look == wall.at + 1.0
    wall.pass_by(1.0)
    worker.advance(hold="disk: 80 MB are free")
    assert store.head(head.id).hold == "disk: 80 MB are free"


def test_s3_with_a_hold_nothing_starts_and_afterwards_it_goes_on_by_itself(
    store: Store, wall: Wall, worker: Worker
) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=2)
    worker.advance()
    assert worker.advance(hold="disk: 90 MB are free").started == 0
    worker.carry_out()
    worker.advance(hold="disk: 90 MB are free")
    assert store.head(head.id).hold == "disk: 90 MB are free"
    assert store.run_counts(head.id) == {Outcome.OK: 1, RunState.PENDING: 1}
    wall.pass_by(2.0)
    assert worker.advance().started == 1
    assert store.head(head.id).hold == ""
    worker.carry_out()
    assert worker.advance(hold="disk: 90 MB are free").ended == (head.id,), "what is done is done"


def test_only_one_campaign_can_be_served(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b", "c")
    submitted(store, lab, priority=9)
    mine = submitted(store, lab, **ONE_CELL)
    assert worker.advance(only=mine.id).started == 2
    assert {campaign for campaign, _ in at_work(store)} == {mine.id}


def test_who_serves_only_one_campaign_also_checks_its_hosts(store: Store, worker: Worker) -> None:
    lab = lab_of("a")
    mine = submitted(store, lab, **ONE_CELL)
    checks = [
        commands.submit(
            store, a_campaign(repeats=1, factors={}), each, campaign_text="", lab_text="", purpose=Purpose.HEALTH
        )
        for each in (lab, replace(lab, name="other"))
    ]
    store.set_host(lab.name, "a", HostState.QUARANTINED)
    worker.advance(only=mine.id)
    assert at_work(store) == [(checks[0], ("a",))]


def test_each_lab_is_served_by_itself(store: Store, worker: Worker) -> None:
    first = submitted(store, lab_of("a"))
    second = submitted(store, replace(lab_of("a"), name="other"))
    assert worker.advance().started == 2
    assert {campaign for campaign, _ in at_work(store)} == {first.id, second.id}


def test_an_edited_lab_of_the_same_name_shares_its_hosts(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b")
    renamed = replace(lab, hosts={name: replace(host, machine=f"rack-{name}") for name, host in lab.hosts.items()})
    submitted(store, lab)
    second = submitted(store, renamed)
    worker.advance()
    worker.advance()
    assert sorted(hosts for _, hosts in at_work(store)) == [("a",), ("b",)]
    assert runs_of(store, second)[second.id] == 1


class Deaf(Outbox):
    """Sends so many messages, then none any more."""

    def __init__(self, sends: int) -> None:
        super().__init__()
        self._sends = sends

    def attempt(self, lab: Lab, handle: AttemptHandle) -> None:
        if len(self.attempts) == self._sends:
            raise LabError("The broker takes no messages.", kind="broker")
        super().attempt(lab, handle)


def test_when_messages_cannot_be_sent_nothing_is_lost(store: Store, worker: Worker) -> None:
    lab = lab_of("a", "b", "c")
    first, second = submitted(store, lab), submitted(store, replace(lab_of("x"), name="other"))
    deaf = Deaf(1)
    with pytest.raises(LabError, match="broker"):
        scheduler.advance(store, deaf)
    assert [item.state for item in store.active_attempts()] == [AttemptState.SENT] * 4
    assert worker.advance().started == 0, "they have their hosts"
    liveness.withdraw(store, [item.id for item in store.active_attempts() if item.id != deaf.attempts[0].id])
    assert worker.advance().started == 3
    carry_out(store, deaf.attempts[0], a_result())
    while worker.waiting:
        worker.carry_out()
        worker.advance()
    for head in (first, second):
        assert store.state(head.id) is CampaignState.DONE
        assert store.run_counts(head.id) == {Outcome.OK: 4}


def test_a_run_waits_out_its_back_off_and_people_are_told(store: Store, wall: Wall, worker: Worker) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=1, back_off=60.0)
    worker.advance()
    worker.carry_out(outcome=Outcome.LAB_ERROR, kind="boot-timeout")
    with machine_in("Asia/Kolkata"):
        done = worker.advance()
    assert (done.started, done.next_look) == (0, wall.at + 60.0)
    assert store.head(head.id).hold == "what is left had lab-errors and is tried again from 13:31 IST on"
    wall.pass_by(60.0)
    assert worker.advance().started == 1


def test_runs_of_campaigns_that_are_not_active_are_never_started(store: Store, worker: Worker) -> None:
    head = submitted(store)
    for state in (CampaignState.PAUSED, CampaignState.STOPPED, CampaignState.CANCELLED):
        store.set_state(head.id, state)
        assert worker.advance().started == 0


def test_a_start_is_told_once_and_checks_are_not_told_of(store: Store, wall: Wall, worker: Worker) -> None:
    head = submitted(store)
    check = commands.submit(
        store, a_campaign(labels={"health-check": "a"}), a_lab(), campaign_text="", lab_text="", purpose=Purpose.HEALTH
    )
    while worker.advance().started:
        worker.carry_out()
    assert [event.kind for event in store.events(head.id)] == ["started"]
    assert store.events(check) == ()


def test_anchors_are_run_between_the_blocks(store: Store, worker: Worker) -> None:
    anchor = Anchor(levels={"scenario": "same-host", "nic_model": "virtio"}, every=2)
    head = submitted(store, lab_of("a"), repeats=2, anchor=anchor)
    while worker.advance().started:
        worker.carry_out()
    by_start = sorted(store.record(head.id).runs, key=lambda run: run.started or 0.0)
    measure, anchored = Purpose.MEASURE, Purpose.ANCHOR
    assert [run.purpose for run in by_start] == [measure, measure, anchored, measure, measure, anchored]


def test_what_was_learnt_of_one_cell_is_expected_of_others_of_its_scenario(
    store: Store, wall: Wall, worker: Worker
) -> None:
    submitted(store, lab_of("a"), factors={"seconds": (10.0, 100.0)}, warmups=0, repeats=3)
    estimates: dict[float, list[float]] = {}
    for _ in range(6):
        worker.advance()
        (active,) = store.active_attempts()
        length = float(active.cell.levels["seconds"])
        estimates.setdefault(length, []).append(active.estimate)
        worker.carry_out(seconds=length + 42.0)
    first, second = estimates
    assert estimates[first][0] < first + 20, "nothing was learnt yet"
    assert estimates[second][0] == pytest.approx(second + 42.0), "the same went around it"
    assert all(some[1:] == [pytest.approx(length + 42.0)] * 2 for length, some in estimates.items()), (
        "means of their own"
    )


def test_an_advance_costs_the_same_however_many_runs_there_are(tmp_path: Path) -> None:
    def steps(runs: int) -> int:
        """Thousands of instructions of SQLite's machine that an advance takes in the middle of a campaign."""
        counted = Counter[str]()

        def connected(connection: Any, _record: Any) -> None:
            if isinstance(connection, sqlite3.Connection):
                connection.set_progress_handler(lambda: counted.update(["steps"]), 100)

        event.listen(Pool, "connect", connected)
        try:
            store = open_store(tmp_path / str(runs))
            outbox = Outbox()
            submitted(store, lab_of(*"abcdefgh"), repeats=runs // 2, max_runs=runs)
            scheduler.advance(store, outbox)
            for handle in outbox.attempts:
                carry_out(store, handle, a_result())
            counted.clear()
            assert scheduler.advance(store, outbox).started == 8
            store.close()
        finally:
            event.remove(Pool, "connect", connected)
        return counted["steps"]

    few, many = steps(600), steps(6000)
    assert 0 < many <= 1.3 * few


def test_lost_attempts_keep_their_hosts_until_they_are_clean(store: Store, worker: Worker, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL)
    worker.advance()
    (handle,) = worker.waiting
    assert store.claim(handle, worker="w:1") is not None
    store.lose_attempts([handle.id], WORKER_LOST)
    assert worker.advance().started == 0
    assert store.head(head.id).hold == "host a is leased until what an attempt left there is removed"
    judgement.cleaned(store, handle.id)
    wall.pass_by(2.0)
    assert worker.advance().started == 1
    assert store.head(head.id).hold == ""
