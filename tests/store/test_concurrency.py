"""Many processes at one store at once, on both databases: one lease, one claim, one result, and nobody is told to wait."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from labctl.errors import AttemptCancelled
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.store import MESSAGE_LOST, WORKER_LOST, After, AttemptHandle, Event, Store, VmRecord
from labctl.store.engines import make_engine
from labctl.store.place import parse_url
from tests.store import invariants
from tests.store.processes import at_once, opened
from tests.store.steps import start_run, started_and_claimed, submit, vm_for
from tests.values import a_result, an_order

pytestmark = pytest.mark.services

FIRST, LAST = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.250")
PROCESSES = 8


@pytest.fixture(autouse=True)
def promises_hold(store: Store, url: str) -> Iterator[None]:
    """Whatever the test did, the store is consistent after it."""
    yield
    engine = make_engine(parse_url(url))
    with engine.connect() as db:
        invariants.check(db)
    engine.dispose()


def _start_all(url: str, runs: list[int], host: str) -> list[int]:
    store = opened(url)
    handles = [start_run(store, run, frozenset({"machine:shared", f"host:{host}"})) for run in runs]
    store.close()
    return [handle.id for handle in handles if handle is not None]


def test_c12_of_many_that_want_one_machine_one_gets_it(store: Store, url: str) -> None:
    campaign = submit(store, replicates=8)
    runs = [run.id for run in store.pending_runs(campaign, limit=99)]
    started = at_once(_start_all, [(url, runs, str(number)) for number in range(PROCESSES)])
    assert sum(map(len, started)) == 1
    assert len(store.leases("lab")) == 2


def _start_each(url: str, runs: list[int], host: str) -> list[tuple[int, int]]:
    """Start runs, each with a host of its own, so that only the run itself is wanted by others too."""
    store = opened(url)
    found = [(run, start_run(store, run, frozenset({f"host:{host}-{run}"}))) for run in runs]
    store.close()
    return [(run, handle.id) for run, handle in found if handle is not None]


def test_a_run_is_started_once_whoever_starts_it(store: Store, url: str) -> None:
    campaign = submit(store, replicates=8)
    runs = [run.id for run in store.pending_runs(campaign, limit=99)]
    calls = [(url, random.Random(number).sample(runs, len(runs)), str(number)) for number in range(PROCESSES)]
    started = [pair for pairs in at_once(_start_each, calls) for pair in pairs]
    assert sorted(run for run, _ in started) == sorted(runs)
    assert len({attempt for _, attempt in started}) == len(runs)


def _claim_all(url: str, handles: list[AttemptHandle]) -> list[int]:
    store = opened(url)
    claimed = [store.claim(handle, worker="w:1") for handle in handles]
    store.close()
    return [attempt.id for attempt in claimed if attempt is not None]


def test_c1_a_message_that_many_workers_get_is_claimed_by_one(store: Store, url: str) -> None:
    campaign = submit(store, replicates=8)
    runs = [run.id for run in store.pending_runs(campaign, limit=99)]
    handles = [handle for run in runs if (handle := start_run(store, run, frozenset({f"host:{run}"})))]
    claimed = at_once(_claim_all, [(url, handles)] * PROCESSES)
    assert sorted(attempt for ids in claimed for attempt in ids) == [handle.id for handle in handles]


def _end_all(url: str, handles: list[AttemptHandle], outcome: Outcome | None) -> list[int]:
    """Hand a result in for each, or give each up, and say whose end it became."""
    store = opened(url)
    ended = []
    for handle in handles:
        if outcome is None:
            ended += store.lose_attempts([handle.id], WORKER_LOST)
            store.cleaned(handle.id, again=False)
        elif store.accept(handle, a_result(outcome), After()) is not None:
            ended.append(handle.id)
    store.close()
    return ended


def test_an_attempt_has_one_end_whoever_ends_it(store: Store, url: str) -> None:
    campaign = submit(store, replicates=8)
    handles = [started_and_claimed(store, campaign, resources=frozenset({f"host:{number}"})) for number in range(16)]
    ends = [Outcome.OK, Outcome.FAILED, None, Outcome.OK, Outcome.LAB_ERROR, None, Outcome.OK, Outcome.FAILED]
    order = [random.Random(number).sample(handles, len(handles)) for number in range(len(ends))]
    ended = at_once(_end_all, [(url, mine, end) for mine, end in zip(order, ends, strict=True)])
    assert sorted(id_ for ids in ended for id_ in ids) == [handle.id for handle in handles]
    assert store.leases() == ()
    wanted = Counter[str]()
    for ids, end in zip(ended, ends, strict=True):
        wanted[end or Outcome.LAB_ERROR] += len(ids)
    assert store.run_counts(campaign) == +wanted


def _work(url: str, campaign: int, seed: int) -> tuple[int, int]:
    """Start runs and carry them out as a worker does, two hosts at a time; (results accepted, heartbeats given)."""
    store, chance = opened(url), random.Random(seed)
    accepted = beats = 0
    while store.has_open_runs(campaign):
        waiting = store.pending_runs(campaign, limit=20)
        if not waiting:
            continue
        hosts = frozenset(f"host:{number}" for number in chance.sample(range(8), 2))
        handle = start_run(store, chance.choice(waiting).id, hosts)
        if handle is None or store.claim(handle, worker=f"w:{seed}") is None:
            continue
        beats += 1
        uuid = f"{handle.id}-{seed}"
        values = vm_for(handle, campaign, uuid)
        store.record_vm(
            lambda address, values=values: VmRecord(**values, address=f"{address}/24"),
            first=FIRST,
            last=LAST,
            after=seed,
        )
        for phase in ("place", "verify", "transfer"):
            assert store.heartbeat(handle, phase=phase) == ""
            beats += 1
        assert store.park_vm(uuid, handle.id)
        store.change_vm(uuid, state="gone")
        accepted += store.accept(handle, a_result(), After(cleared=("0",))) is not None
    store.close()
    return accepted, beats


def test_s2_sixteen_processes_write_and_no_row_is_lost_and_nothing_is_locked(store: Store, url: str) -> None:
    campaign = submit(store, replicates=60)
    worked = at_once(_work, [(url, campaign, seed) for seed in range(16)])
    assert store.run_counts(campaign) == {"ok": 120}
    assert sum(accepted for accepted, _ in worked) == 120
    engine = make_engine(parse_url(url))
    with engine.connect() as db:
        assert db.exec_driver_sql("SELECT sum(beats) FROM attempts").scalar() == sum(beats for _, beats in worked)
        assert db.exec_driver_sql("SELECT count(*) FROM vms WHERE state = 'gone'").scalar() == 120
        assert db.exec_driver_sql("SELECT count(*) FROM raw_outputs").scalar() == 120
    engine.dispose()
    assert store.leases() == ()


def _disturb(url: str, campaign: int, seed: int) -> int:
    """Give attempts up that are at work, clean after them twice, and do what others do at the same time."""
    store, chance = opened(url), random.Random(seed)
    lost = 0
    while store.has_open_runs(campaign):
        ids = [sign.attempt_id for sign in store.signs() if chance.random() < 0.3]
        lost += len(store.lose_attempts(ids, chance.choice([WORKER_LOST, MESSAGE_LOST])))
        for attempt in store.lost_attempts() * 2:
            for vm in store.vms_of_attempt(attempt):
                if store.take_idle(vm.uuid):
                    store.change_vm(vm.uuid, state="gone")
            store.cleaned(attempt, again=True)
        store.tell(Event(scope=f"campaign-{campaign}", key=str(lost % 5), kind="x", what="x", at=0.0))
    store.close()
    return lost


def _work_disturbed(url: str, campaign: int, seed: int) -> int:
    store, chance = opened(url), random.Random(seed)
    accepted = 0
    while store.has_open_runs(campaign):
        for run in store.pending_runs(campaign, limit=3):
            handle = start_run(store, run.id, frozenset({f"host:{chance.randrange(4)}"}), order=an_order())
            claimed = handle is not None and store.claim(handle, worker=f"w:{seed}") is not None
            if handle is None or not claimed or store.heartbeat(handle, phase="transfer"):
                continue
            values = vm_for(handle, campaign, f"{handle.id}")
            try:
                store.record_vm(
                    lambda address, values=values: VmRecord(**values, address=f"{address}/24"),
                    first=FIRST, last=LAST, after=seed,
                )  # fmt: skip
            except AttemptCancelled:
                continue
            if store.holds_token(handle):
                store.change_vm(f"{handle.id}", state="gone")
            outcome = chance.choice([Outcome.OK, Outcome.LAB_ERROR, Outcome.CANCELLED])
            again = outcome is not Outcome.OK and chance.random() < 0.9
            blamed = ("a",) if outcome is Outcome.LAB_ERROR else ()
            accepted += store.accept(handle, a_result(outcome), After(again=again, blamed=blamed)) is not None
    store.close()
    return accepted


def test_workers_that_are_given_up_at_any_moment_leave_one_result_a_run(store: Store, url: str) -> None:
    campaign = submit(store, replicates=15)
    other = submit(store, replicates=1)
    with_disturbances = [(url, campaign, seed) for seed in range(6)]
    at_once(_either, [(*call, call[2] < 2) for call in with_disturbances])
    counts = store.run_counts(campaign)
    assert sum(counts.values()) == 30
    assert not {"pending", "active"} & counts.keys()
    assert store.run_counts(other) == {"pending": 2}
    store.lose_attempts([sign.attempt_id for sign in store.signs()], WORKER_LOST)
    assert store.signs() == ()
    assert len(store.events(campaign)) <= 5


def _either(url: str, campaign: int, seed: int, disturbs: bool) -> int:
    return _disturb(url, campaign, seed) if disturbs else _work_disturbed(url, campaign, seed)


def _judge(url: str, blamed: bool) -> int:
    store = opened(url)
    detail = OutcomeDetail(outcome=Outcome.LAB_ERROR, kind="boot-timeout", what="It never came up.")
    after = After(blamed=("a", "b") if blamed else (), quarantine_after=20)
    quarantined = sum(len(store.blame("lab", detail, after)) for _ in range(10))
    store.close()
    return quarantined


def test_no_strike_against_a_host_is_lost_and_it_is_quarantined_once(store: Store, url: str) -> None:
    quarantined = at_once(_judge, [(url, True)] * 4)
    assert {host.host: host.strikes for host in store.hosts("lab")} == {"a": 40, "b": 40}
    assert sum(quarantined) == 2
