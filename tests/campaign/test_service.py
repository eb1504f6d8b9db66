"""The service in real processes, on a simulated lab: what it serves, how it ends, and what it outlives."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.campaign import commands, liveness
from labctl.model.outcome import CampaignState, Outcome
from labctl.store import WORKER_LOST
from tests.campaign.post import Post, a_post
from tests.desk import until
from tests.redis_server import RedisServer, a_redis, free_port
from tests.simulated import a_simulated_lab
from workers.hypervisors.simulated.figures import Figures

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]

FOR_EVER = 600.0
"""Seconds of a transfer that a test never sees the end of."""


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    with a_post(tmp_path) as made:
        yield made


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that services share."""
    with a_redis(tmp_path / "shared") as server:
        yield server


# What it serves


def test_a_service_serves_what_comes_and_ends_with_exit_code_0(post: Post) -> None:
    service = post.serve()
    post.done(post.submit(runs=2, seconds=0.1), ok=2)
    elsewhere = a_simulated_lab(post.directory / "elsewhere", hosts=("c", "d", "e"), figures=Figures.instant())
    post.done(post.submit(runs=3, seconds=0.1, lab=replace(elsewhere, name="elsewhere", site="far")), ok=3)
    served = "far.kvm", "tests.kvm"
    (slots,) = until("queues come", lambda: [row.slots for row in post.store.workers() if row.queues == served])
    assert slots == 6, "one for each machine, and one for cleaning"
    post.end(service)
    assert "Ended." in service.said
    assert post.leftovers() == []


def test_two_services_at_once_share_the_work_and_do_nothing_twice(post: Post) -> None:
    first = post.serve()
    second = post.serve()
    campaign = post.submit(runs=10, seconds=0.1)
    post.done(campaign, ok=10)
    assert all(run.attempts == 1 for run in post.store.record(campaign).runs)
    post.end(first)
    post.done(post.submit(runs=2, seconds=0.1), ok=2)
    post.end(second)


def test_machines_that_only_carry_out_share_a_broker_with_one_that_starts_runs(post: Post, shared: RedisServer) -> None:
    hands = post.serve("--no-schedule", "--queue", "tests.kvm", "--slots", "3", LABCTL_BROKER=shared.url)
    campaign = post.submit(runs=4, seconds=0.1)
    assert {row.role for row in post.store.workers()} == {"worker"}
    head = post.serve("--queue", "nobody.needs", LABCTL_BROKER=shared.url)
    post.done(campaign, ok=4)
    assert [row.slots for row in post.store.workers() if "tests.kvm" in row.queues] == [3]
    for service in (hands, head):
        post.end(service)


@pytest.mark.parametrize("option", [("--no-schedule",), ("--queue", "tests.kvm")])
def test_what_makes_sense_only_together_with_others_needs_a_broker(post: Post, option: tuple[str, ...]) -> None:
    ended = post.start("worker", *option).wait()
    assert ended.code == 2
    assert option[0] in ended.err
    assert "LABCTL_BROKER" in ended.err


def test_a_wrong_password_of_the_broker_is_told_and_never_said(post: Post, tmp_path: Path) -> None:
    port = free_port()
    client = {"host": "127.0.0.1", "port": port, "password": "right"}
    url = f"redis://:right@127.0.0.1:{port}/0"
    with a_redis(tmp_path / "closed", "--port", f"{port}", "--requirepass", "right", url=url, client=client):
        ended = post.start("worker", LABCTL_BROKER=url.replace("right", "hunter2")).wait()
        assert ended.code == 3, ended.said
        assert "refuses the password" in ended.err
        assert "hunter2" not in ended.said
        service = post.serve(LABCTL_BROKER=url)
        post.done(post.submit(seconds=0.1), ok=1)
        post.end(service)
    logs = "".join(path.read_text() for path in (post.state / "logs").iterdir())
    assert "right@" not in logs


# How it ends


def test_c10_asked_to_end_it_ends_attempts_at_their_next_step_and_a_new_one_goes_on(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=2, seconds=6)
    post.claimed("transfer", count=2)
    post.end(service)
    assert post.leftovers() == []
    assert post.store.run_counts(campaign) == {"pending": 2}
    assert post.store.state(campaign) is CampaignState.ACTIVE
    cancelled = [result.detail.outcome for run in post.store.record(campaign).runs for result in run.earlier]
    assert cancelled == [Outcome.CANCELLED, Outcome.CANCELLED]
    post.serve()
    post.done(campaign, ok=2)


def test_c10_with_grace_attempts_may_finish_and_nothing_new_is_begun(post: Post) -> None:
    service = post.serve("--grace", "60s")
    campaign = post.submit(runs=4, seconds=5)
    post.claimed(count=2)
    post.end(service)
    assert post.store.run_counts(campaign) == {"ok": 2, "pending": 2}


def test_a_second_signal_waits_for_no_grace(post: Post) -> None:
    service = post.serve("--grace", "1h")
    campaign = post.submit(runs=1, seconds=FOR_EVER)
    post.claimed("transfer")
    service.process.send_signal(signal.SIGINT)
    until("it takes no more messages", lambda: list(post.temporary.glob("*/take-no-more")))
    service.process.send_signal(signal.SIGINT)
    assert service.wait().code == 0
    assert post.store.run_counts(campaign) == {"pending": 1}


def test_vms_kept_for_reuse_are_removed_when_nobody_goes_on(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=3, seconds=1, reuse=True, lab=replace(post.lab, hosts={"a": post.lab.hosts["a"]}))
    until("a VM is parked", lambda: [vm for vm in post.store.live_vms() if vm.state == "parked"])
    post.end(service)
    assert post.leftovers() == []
    post.serve()
    post.done(campaign, ok=3)


def test_vms_kept_for_reuse_of_a_campaign_that_ended_while_nobody_served_it_are_removed(post: Post) -> None:
    post.serve()
    campaign = post.submit(runs=9, seconds=1, reuse=True, lab=post.lab_of("a"))
    until("a VM is parked", lambda: [vm for vm in post.store.live_vms() if vm.state == "parked"])
    post.kill_all()
    commands.cancel(post.store, campaign)
    # No attempt is left that would make a new service know of the lab.
    liveness.withdraw(post.store, [item.id for item in post.store.active_attempts() if item.state == "sent"])
    for item in post.store.active_attempts():
        post.store.lose_attempts([item.id], WORKER_LOST)
        post.store.cleaned(item.id, again=True)
    assert post.store.live_vms()
    assert post.store.leases() == ()
    post.start("worker")
    until("they are removed", lambda: not post.store.live_vms())


def test_a_killed_service_takes_everything_with_it_and_a_new_one_goes_on(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=3, seconds=5)
    post.claimed("transfer")
    service.kill()
    until("its worker has cleaned up and ended", lambda: not post.processes())
    assert post.store.live_vms() == ()
    assert post.store.run_counts(campaign) == {"pending": 3}
    post.serve()
    assert [row.pid for row in post.store.workers() if row.pid == service.process.pid] == [], "the dead are struck off"
    post.done(campaign, ok=3)


def test_s8_after_a_loss_of_power_everything_goes_on_from_the_store_alone(post: Post) -> None:
    post.serve()
    campaign = post.submit(runs=3, seconds=4)
    post.claimed("transfer")
    post.kill_all()
    assert post.store.live_vms() != ()
    post.serve()
    post.done(campaign, ok=3)


# What it outlives


def test_m2_m3_a_killed_redis_costs_no_run_and_stops_nothing(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=4, seconds=4)
    post.claimed("transfer")
    os.kill(post.redis, signal.SIGKILL)
    post.done(campaign, ok=4)
    assert service.said.count("The private Redis was ended by signal SIGKILL. It is started again.") == 1
    assert all(run.attempts == 1 for run in post.store.record(campaign).runs), "attempts need no Redis to end"


def test_c2_a_redis_that_dies_while_the_worker_comes_up_is_started_anew(post: Post) -> None:
    post.start("worker")

    def redis() -> int | None:
        lines = post.processes()
        found = [pid for pid, line in lines.items() if "redis-server" in line]
        return found[0] if found and any("celery" in line for line in lines.values()) else None

    os.kill(until("the worker is coming up", redis), signal.SIGKILL)
    assert not [row for row in post.store.workers() if row.role == "worker"]
    post.done(post.submit(seconds=0.1), ok=1)


def test_a_redis_that_hangs_is_started_anew(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=4, seconds=4)
    post.claimed()
    os.kill(post.redis, signal.SIGSTOP)
    until("it is noticed", lambda: "The private Redis gave no answer" in service.said)
    post.done(campaign, ok=4)


def test_the_main_process_of_the_worker_may_die_and_its_attempts_go_on(post: Post) -> None:
    service = post.serve()
    campaign = post.submit(runs=4, seconds=5)
    attempts = post.claimed("transfer")
    os.kill(post.main, signal.SIGKILL)
    post.done(campaign, ok=4)
    assert "The worker was ended by signal SIGKILL. It is started again." in service.said
    assert all(run.attempts == 1 for run in post.store.record(campaign).runs)
    former = {int(attempt.worker.split(":")[1]) for attempt in attempts}
    until("the former children have ended", lambda: not former & set(post.processes()))


def test_a_worker_whose_main_process_hangs_is_started_anew_and_its_attempts_go_on(post: Post) -> None:
    service = post.serve(patience={"silent": 4})
    campaign = post.submit(runs=4, seconds=5)
    post.claimed("transfer")
    os.kill(post.main, signal.SIGSTOP)
    until("it is noticed", lambda: "The worker gave no sign of life" in service.said)
    post.done(campaign, ok=4)
    assert all(run.attempts == 1 for run in post.store.record(campaign).runs)


def test_a_worker_that_can_never_be_started_is_given_up_after_five_times(post: Post) -> None:
    missing = post.serving_fails("no.such.app")
    assert missing.code == 3, missing.said
    assert "could not be started, 5 times in a row" in missing.err
    assert "No module named" in missing.err
    assert missing.out.count("It is started again.") == 4


def test_a_worker_of_another_version_claims_nothing_gives_the_attempt_back_and_ends(post: Post) -> None:
    service = post.serve_with("old")
    campaign = post.submit(seconds=0.1)
    ended = service.wait()
    assert ended.code == 3, ended.said
    assert "is labctl 0.0.1/0001, but the service that starts runs is labctl" in ended.err
    assert "Install the same version" in ended.err
    assert post.store.run_counts(campaign) == {"pending": 1}
    assert {vm.uuid for vm in post.store.live_vms()} == set()
    (event,) = [event for event in post.store.events(campaign) if event.kind == "version"]
    assert "0.0.1/0001" in event.what
    post.serve()
    post.done(campaign, ok=1)
    assert post.store.tries(1)[1] == 1, "the attempt that was given back is no try"


def test_a_broker_that_is_gone_for_a_while_stops_no_attempt_and_the_rest_goes_on_later(
    post: Post, shared: RedisServer
) -> None:
    service = post.serve(LABCTL_BROKER=shared.url)
    campaign = post.submit(runs=4, seconds=5)
    post.claimed(count=2)
    shared.kill()
    until("both attempts have ended", lambda: post.store.run_counts(campaign).get("ok") == 2)
    until("it is said", lambda: "does not answer, since" in post.store.head(campaign).hold)
    assert post.store.state(campaign) is CampaignState.ACTIVE
    shared.start()
    post.done(campaign, ok=4)
    assert "The broker can be used again." in service.said
    assert all(run.attempts == 1 for run in post.store.record(campaign).runs)


def test_labctl_run_needs_no_service_and_ends_with_its_campaign(post: Post) -> None:
    other = post.submit(runs=2, seconds=FOR_EVER)
    commands.pause(post.store, other)
    campaign = post.submit(runs=2, seconds=0.1)
    commands.pause(post.store, campaign)
    ended = post.start("run", "--resume", str(campaign)).wait()
    assert ended.code == 0, ended.said
    assert post.store.run_counts(campaign) == {"ok": 2}
    assert post.store.run_counts(other) == {"pending": 2}
    assert (post.state / "reports" / f"campaign-{campaign}.html").exists()


def test_what_a_service_does_is_said_in_the_store(post: Post) -> None:
    post.serve()
    post.submit(seconds=FOR_EVER)
    post.claimed("transfer")

    def busy() -> bool:
        return any(row.doing == "1 of 3 slots are busy" for row in post.store.workers())

    until("it says that a slot is busy", busy)
    rows = {row.role: row for row in post.store.workers()}
    assert rows["worker"].machine == rows["engine"].machine
    assert json.loads(post.start("status", "--json").wait().out)
