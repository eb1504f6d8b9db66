"""What a service says of its work, in its log and in the store, and how it judges the work of others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.model.lab import SecretRef
from tests.campaign.post import Post, a_post
from tests.desk import until
from tests.redis_server import a_redis

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]

FOR_EVER = 600.0
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} \S")


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    with a_post(tmp_path) as made:
        yield made


def test_it_says_what_it_serves_and_what_happens_in_the_night(post: Post) -> None:
    service = post.serve()
    first = service.said.splitlines()
    assert first[0].endswith("Starting; Ctrl-C ends it.")
    assert first[1].endswith("Serving: nothing to do yet; Ctrl-C ends it.")
    campaign = post.submit(seconds=0.1)
    post.done(campaign, ok=1)
    until("the end is said", lambda: f"campaign {campaign}: Runs: 1 ok." in service.said)
    post.end(service)
    said = service.said
    assert said.index("Serving tests.kvm with 3 slots; Ctrl-C ends it.") < said.index(f"campaign {campaign}: Runs")
    started, ended = post.store.events(campaign)
    assert [event.kind for event in (started, ended)] == ["started", "finished"]
    assert said.count(started.what) == 1
    assert all(_LINE.match(line) for line in said.splitlines()), said


def test_what_could_not_be_told_is_said_like_all_else(post: Post) -> None:
    service = post.serve()
    post.done(post.submit(seconds=0.1, notify=(SecretRef(scheme="env", locator="NO_SUCH_VARIABLE"),)), ok=1)
    until("it is said", lambda: "was not told" in service.said)
    post.end(service)
    assert all(_LINE.match(line) for line in service.said.splitlines()), service.said


def test_that_the_broker_does_not_answer_is_said_as_long_as_it_is_so(post: Post, tmp_path: Path) -> None:
    with a_redis(tmp_path / "shared") as shared:
        post.serve(LABCTL_BROKER=shared.url)
        campaign = post.submit(runs=2, seconds=FOR_EVER, lab=post.lab_of("a"))
        post.claimed("transfer")
        shared.kill()
        until("it is said", lambda: "does not answer, since" in post.store.head(campaign).hold)
        until("the worker says so too", lambda: any("does not answer" in row.doing for row in post.store.workers()))
        shared.start()
        until("it is said no more", lambda: "broker" not in post.store.head(campaign).hold)
        until("nor by any worker", lambda: not any("does not answer" in row.doing for row in post.store.workers()))
        for command in post.commands:
            post.end(command)


def test_messages_that_wait_in_queues_of_others_are_not_taken_for_lost(post: Post, tmp_path: Path) -> None:
    with a_redis(tmp_path / "shared") as shared:
        post.serve("--no-schedule", "--queue", "tests.kvm", "--slots", "1", LABCTL_BROKER=shared.url)
        post.serve("--queue", "nobody.needs", LABCTL_BROKER=shared.url, patience={"unclaimed": 2})
        campaign = post.submit(runs=3, seconds=4)
        post.done(campaign, ok=3)
        assert post.query("SELECT count(*) FROM attempts") == [(3,)], "each run was started once"
        for command in post.commands:
            post.end(command)
