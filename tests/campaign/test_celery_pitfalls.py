"""What Celery and Redis do to long work, row by row of what is known of it: real Redis, real workers, a simulated lab."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from labctl.campaign import commands, liveness, scheduler, versions
from labctl.campaign.broker import broker_of
from labctl.campaign.dispatch import CeleryDispatcher
from labctl.campaign.processes import has_died
from labctl.campaign.queues import queue_of
from labctl.model.outcome import CampaignState
from labctl.store import open_store
from tests.campaign.outbox import Outbox
from tests.campaign.post import Post, a_post
from tests.desk import Command, until
from tests.redis_server import RedisServer, a_redis
from tests.simulated import vms_left
from workers.app import app
from workers.hypervisors.simulated.faults import Fault, FaultKind

pytestmark = pytest.mark.timeout(180)

HOSTS = tuple("abcdefg")
REFUSED = "claimed before, or its token is void; nothing was touched"
FOR_EVER = 600.0
"""Seconds of a transfer that a test never sees the end of."""


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    with a_post(tmp_path, hosts=HOSTS) as made:
        yield made


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[RedisServer]:
    with a_redis(tmp_path / "shared") as server:
        yield server


def hands(post: Post, server: RedisServer, *, slots: int) -> Command:
    """A worker that only carries out what the test sends."""
    queue = queue_of(post.lab)
    return post.serve("--no-schedule", "--queue", queue, "--slots", f"{slots}", LABCTL_BROKER=server.url)


def advance(post: Post, server: RedisServer) -> int:
    """Start what can be started, once. Returns how many attempts that are."""
    with a_dispatcher(server) as dispatcher:
        return scheduler.advance(post.store, dispatcher).started


@contextmanager
def a_dispatcher(server: RedisServer) -> Iterator[CeleryDispatcher]:
    dispatcher = CeleryDispatcher(broker_of(server.url))
    try:
        yield dispatcher
    finally:
        dispatcher.close()


def waits(post: Post, server: RedisServer) -> int:
    """How many messages nobody has taken."""
    with server.client() as client:
        return int(client.llen(queue_of(post.lab)))


def log(post: Post) -> str:
    return "".join(path.read_text() for path in (post.state / "logs").iterdir())


def refused(post: Post) -> int:
    """How often a message was refused because its attempt had been claimed before."""
    return log(post).count(REFUSED)


def vms_made(post: Post) -> int:
    ((count,),) = post.query("SELECT count(*) FROM vms")
    return int(count)


# Settings


def test_m1_m3_the_tested_triple_is_installed_and_another_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.untested() == ()
    monkeypatch.setattr(metadata, "version", {"celery": "5.7.0", "kombu": "5.6.2", "redis": "6.4.0"}.__getitem__)
    (said,) = versions.untested()
    assert "celery 5.7.0 is installed" in said
    assert "tested with 5.6.3" in said


def test_c3_c5_c7_c8_c13_settings_that_show_only_after_hours() -> None:
    conf = app.conf
    assert conf.broker_connection_max_retries is None, "C13: it never gives up"
    assert (conf.task_time_limit, conf.task_soft_time_limit) == (None, None), "C7: steps have deadlines of their own"
    assert conf.task_ignore_result, "C8: results are in the store"
    assert app.backend.as_uri() == "disabled://"
    assert not conf.task_acks_late, "C1, M4"
    assert not conf.task_reject_on_worker_lost, "C3, M6"
    assert not conf.worker_enable_remote_control, "C5, M7: nobody can revoke; C9: no reply queues"
    assert not conf.worker_cancel_long_running_tasks_on_connection_loss, "C2: attempts outlast Redis"
    assert app.conf.beat_schedule == {}, "C11: nothing is scheduled by Celery"


# C1: a message comes twice


@pytest.mark.services
def test_c1_a_second_delivery_touches_nothing(post: Post, shared: RedisServer) -> None:
    campaign = post.submit(seconds=2)
    assert advance(post, shared) == 1
    with shared.client() as client:
        (message,) = client.lrange(queue_of(post.lab), 0, -1)
        for _ in range(3):
            client.lpush(queue_of(post.lab), message)
    hands(post, shared, slots=4)
    until("three are refused", lambda: refused(post) == 3)
    until("the run is done", lambda: post.store.run_counts(campaign) == {"ok": 1})
    assert vms_made(post) == 2, "one pair of VMs"
    assert refused(post) == 3
    assert waits(post, shared) == 0


@pytest.mark.services
def test_c1_m4_redis_delivers_a_late_acknowledged_message_again_and_it_is_refused(post: Post) -> None:
    """As `labctl` must not be set: the visibility timeout is 2 s and messages are acknowledged at the end."""
    service = post.serve_with("late")
    campaign = post.submit(seconds=FOR_EVER)
    post.claimed("transfer")
    until("it is delivered again and refused", lambda: refused(post) == 1)
    assert vms_made(post) == 2, "one pair of VMs"
    commands.cancel(post.store, campaign, now=True)
    post.end(service)


@pytest.mark.services
def test_c1_a_worker_whose_visibility_timeout_is_too_short_does_not_start(post: Post) -> None:
    ended = post.serving_fails("short")
    assert ended.code == 3
    assert "The visibility timeout in `broker_transport_options` is 2 s, less than the longest step" in ended.err


# C2: Redis goes and comes back


@pytest.mark.services
@pytest.mark.parametrize("phase", ["idle", "sent", "transfer"])
def test_c2_m1_redis_killed_in_each_phase_and_back_later(post: Post, shared: RedisServer, phase: str) -> None:
    service = post.serve(LABCTL_BROKER=shared.url, patience={"unclaimed": 4})
    campaign = post.submit(runs=3, seconds=5 if phase == "transfer" else 0.1, lab=post.lab_of("a"))
    if phase == "transfer":
        post.claimed("transfer")
    elif phase == "idle":
        until("the campaign is done", lambda: post.store.state(campaign).ended)
    shared.kill()
    if phase == "idle":
        campaign = post.submit(runs=3, seconds=0.1)
    until("it is said", lambda: "does not answer" in service.said)
    shared.start()
    post.done(campaign, ok=3)
    assert post.main, "the worker lives"
    ((most,),) = post.query("SELECT max(tries) FROM runs")
    assert most == 1, "nothing was tried twice"


@pytest.mark.services
def test_c2_a_worker_that_takes_nothing_is_started_anew(post: Post) -> None:
    """As after some restarts of Redis: it lives and says so, but consumes nothing."""
    service = post.serve_with("deaf", patience={"unclaimed": 6})
    post.done(post.submit(seconds=0.1), ok=1)
    (post.directory / "deaf").touch()
    campaign = post.submit(runs=4, seconds=0.1, lab=post.lab_of("a"))
    until("the watchdog barks", lambda: "though it had free slots" in service.said)
    (post.directory / "deaf").unlink()
    post.done(campaign, ok=4)


# C3: workers that die of their work


@pytest.mark.services
def test_c3_m6_a_run_that_kills_its_worker_is_tried_so_often_and_no_more(tmp_path: Path) -> None:
    with a_post(tmp_path, faults=[Fault(kind=FaultKind.DIE, operation="create", host="a")]) as post:
        post.serve()
        campaign = post.submit(lab=post.lab_of("a"), lab_error_retries=2)
        post.done(campaign, **{"lab-error": 1})
        (run,) = post.store.record(campaign).runs
        assert run.attempts == 3
        assert run.result is not None
        assert run.result.detail.kind == "worker-lost"
        post.done(post.submit(seconds=0.1, lab=post.lab_of("b")), ok=1)


@pytest.mark.services
def test_c3_a_whole_worker_that_dies_costs_its_run_a_try_too(post: Post) -> None:
    campaign = post.submit(seconds=FOR_EVER, lab_error_retries=1)
    for number in (1, 2):
        post.serve()
        until("it is tried", lambda wanted=number: [item for item in post.claimed("transfer") if item.number == wanted])
        post.kill_all()
    post.serve()
    post.done(campaign, **{"lab-error": 1})


# C4: nothing waits behind a long attempt while a slot is free


@pytest.mark.services
@pytest.mark.parametrize("bounce", [False, True])
def test_c4_short_attempts_pass_a_long_one(post: Post, shared: RedisServer, bounce: bool) -> None:
    hands(post, shared, slots=2)
    long = post.submit(seconds=FOR_EVER)
    assert advance(post, shared) == 1
    post.claimed("transfer")
    if bounce:
        shared.kill()
        shared.start()
    short = post.submit(runs=5, seconds=0.1)
    assert advance(post, shared) == 5
    until("all short ones are done", lambda: post.store.run_counts(short) == {"ok": 5})
    assert post.store.run_counts(long) == {"active": 1}
    commands.cancel(post.store, long, now=True)
    until("it has ended", lambda: not post.store.active_attempts())


@pytest.mark.services
def test_c4_what_has_no_slot_waits_in_redis_for_whoever_has_one_also_after_a_restart(
    post: Post, shared: RedisServer
) -> None:
    hands(post, shared, slots=2)
    long = post.submit(runs=2, seconds=FOR_EVER)
    assert advance(post, shared) == 2
    post.claimed("transfer", count=2)
    shared.kill()
    shared.start()
    short = post.submit(runs=2, seconds=0.1)
    assert advance(post, shared) == 2
    with shared.client() as client:
        declared = "sadd"
        until("the worker has come back", lambda: any(item["cmd"] == declared for item in client.client_list()))
    assert waits(post, shared) == 2
    hands(post, shared, slots=1)
    until("another worker has done them", lambda: post.store.run_counts(short) == {"ok": 2})
    assert post.store.run_counts(long) == {"active": 2}
    commands.cancel(post.store, long, now=True)
    until("they have ended", lambda: not post.store.active_attempts())


# C5: nobody is killed to be stopped


@pytest.mark.services
def test_c5_m7_a_cancel_ends_the_attempt_and_leaves_its_process_and_nothing_else(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=2, seconds=FOR_EVER)
    attempts = post.claimed("transfer", count=2)
    assert len(vms_left(post.lab)) == 4
    commands.cancel(post.store, campaign, now=True)
    until("both have ended", lambda: not post.store.active_attempts())
    assert vms_left(post.lab) == []
    assert post.store.leases() == ()
    assert not any(has_died(attempt.worker) for attempt in attempts), "their processes take the next attempts"
    post.end(service)


# C8: Redis forgets everything


@pytest.mark.services
def test_c8_flushing_redis_over_and_over_loses_no_run(post: Post, shared: RedisServer) -> None:
    post.serve(LABCTL_BROKER=shared.url, patience={"unclaimed": 3})
    campaign = post.submit(runs=20, seconds=0.1)
    with shared.client() as client:
        while not post.store.state(campaign).ended:
            done = done_of(post, campaign)
            client.flushall()
            until(
                "something is done",
                lambda before=done: done_of(post, campaign) > before or post.store.state(campaign).ended,
            )
    post.done(campaign, ok=20)
    ((most,),) = post.query("SELECT max(tries) FROM runs")
    assert most == 1


def done_of(post: Post, campaign: int) -> int:
    return post.store.run_counts(campaign).get("ok", 0)


# C9: Redis stays small


@pytest.mark.services
def test_c9_nothing_is_left_in_redis_by_work_that_is_done(post: Post, shared: RedisServer) -> None:
    post.serve(LABCTL_BROKER=shared.url)
    post.done(post.submit(runs=3, seconds=0.1), ok=3)
    with shared.client() as client:
        before = set(client.keys("*"))
        post.done(post.submit(runs=40, seconds=0.01), ok=40)
        until("the last is acknowledged", lambda: not client.exists("unacked"))
        assert {key for key in client.keys("*") if not key.startswith(b"labctl.")} <= before


# C11: a schedule that two have


@pytest.mark.services
def test_c11_of_several_that_start_a_campaign_each_run_has_one(post: Post) -> None:
    campaign = post.submit(runs=30)
    outboxes = [Outbox() for _ in range(4)]

    def hurry(outbox: Outbox) -> None:
        mine = open_store(post.state)
        for _ in range(3):
            scheduler.advance(mine, outbox)
        mine.close()

    threads = [threading.Thread(target=hurry, args=(outbox,)) for outbox in outboxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = [handle.id for outbox in outboxes for handle in outbox.attempts]
    assert len(sent) == len(set(sent)) == len(HOSTS)
    assert len([event for event in post.store.events(campaign) if event.kind == "started"]) <= 1
    liveness.withdraw(post.store, sent)


# C13, C14: what was decided is in the store


@pytest.mark.services
def test_c13_what_was_cancelled_stays_so_when_all_workers_are_new(post: Post, shared: RedisServer) -> None:
    campaign = post.submit(runs=3, seconds=0.1)
    assert advance(post, shared) == 3
    commands.cancel(post.store, campaign, now=True)
    assert waits(post, shared) == 3, "their messages are still there"
    post.serve(LABCTL_BROKER=shared.url)
    post.done(post.submit(seconds=0.1), ok=1)
    until("their messages are taken", lambda: waits(post, shared) == 0)
    until("and refused", lambda: refused(post) == 3)
    assert vms_made(post) == 2, "those of the other campaign"
    assert post.store.state(campaign) is CampaignState.CANCELLED
    assert "ok" not in post.store.run_counts(campaign)


@pytest.mark.services
def test_c14_how_things_stand_is_known_without_a_broker(post: Post) -> None:
    campaign = post.submit(runs=3)
    ended = post.start("status", str(campaign), "--json", LABCTL_BROKER="redis://127.0.0.1:1/0").wait()
    assert ended.code == 0, ended.said
    assert '"pending": 3' in ended.out


# The end of processes


@pytest.mark.services
def test_c2_c3_children_killed_one_after_the_other_stop_nothing(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=4, seconds=2, lab=post.lab_of("a", "b"), lab_error_retries=5)
    for _ in range(3):
        (attempt, *_) = post.claimed("transfer")
        os.kill(int(attempt.worker.split(":")[1]), signal.SIGKILL)
        until("it is noticed", lambda lost=attempt.id: lost not in {item.id for item in post.store.active_attempts()})
    post.done(campaign, ok=4)
    assert "The worker was ended" not in service.said
