"""Jobs: scripts that go on whatever becomes of the call, the connection, the worker or the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from labctl.errors import LabError
from tests.simulators.winrm import Context, ScriptFailure, WinrmEndpoint
from tests.winrm.conftest import WRITES, Place
from workers.powershell.base import Job, Json, ScriptError

pytestmark = pytest.mark.services

SECONDS = 20.0


class Work:
    """A script that takes until it is told to end."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.cancelled = threading.Event()
        self.runs: list[Json] = []

    def __call__(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        self.runs.append(document["value"])
        context.progress({"percent": 40})
        while not self.done.wait(0.01):
            if context.ended.is_set():
                self.cancelled.set()
                return None
        if document["value"] == "fail":
            raise ScriptFailure("move-failed", "0x8009030E")
        return {"value": document["value"]}


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def endpoint(place: Place, work: Work) -> WinrmEndpoint:
    return place.endpoint(work)


def until_it_ends(job: Job) -> Json:
    """Its answer."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = job.poll(timeout=SECONDS)
        if answer is not None:
            return answer
        time.sleep(0.01)
    raise AssertionError("the job did not end")


def test_h2_a_job_is_started_told_of_and_answered_by_short_calls(
    place: Place, endpoint: WinrmEndpoint, work: Work
) -> None:
    """H2: no call lasts as long as the job."""
    job = place.shell(endpoint).job(WRITES, {"value": "ä'$(x)"}, name="move 1", timeout=SECONDS)
    while job.progress() is None:
        assert job.poll(timeout=SECONDS) is None
    assert job.progress() == {"percent": 40}
    work.done.set()
    assert until_it_ends(job) == {"value": "ä'$(x)"}
    assert job.poll(timeout=SECONDS) == {"value": "ä'$(x)"}


def test_h2_a_job_is_found_again_by_another_process_and_never_started_twice(
    place: Place, endpoint: WinrmEndpoint, work: Work
) -> None:
    """H2: its name is all that is needed; connection, shell and caller may be others."""
    first = place.shell(endpoint)
    first.job(WRITES, {"value": 1}, name="move 1", timeout=SECONDS)
    first.close()
    endpoint.cut_connections()
    job = place.shell(endpoint).job(WRITES, {"value": 2}, name="move 1", timeout=SECONDS)
    other = place.shell(endpoint).job(WRITES, {"value": 3}, name="move 2", timeout=SECONDS)
    work.done.set()
    assert until_it_ends(job) == {"value": 1}
    assert until_it_ends(other) == {"value": 3}
    assert work.runs == [1, 3]
    assert endpoint.jobs.started["echo"] == 2


@pytest.mark.parametrize("cut", ["cut_command", "cut_send", "cut_receive"])
def test_h2_a_start_whose_answer_was_lost_is_sent_again(
    place: Place, endpoint: WinrmEndpoint, work: Work, cut: str
) -> None:
    """H2: cut connection after start; the job runs once."""
    shell = place.shell(endpoint)
    shell.job(WRITES, {"value": 0}, name="move 0", timeout=SECONDS)
    setattr(endpoint.mishaps, cut, 1)
    job = shell.job(WRITES, {"value": 1}, name="move 1", timeout=SECONDS)
    work.done.set()
    assert until_it_ends(job) == {"value": 1}
    assert work.runs == [0, 1]


def test_h2_polls_survive_cut_connections(place: Place, endpoint: WinrmEndpoint, work: Work) -> None:
    """H2: the host drops every connection while the job runs."""
    job = place.shell(endpoint).job(WRITES, {"value": 1}, name="move 1", timeout=SECONDS)
    for _ in range(5):
        assert job.poll(timeout=SECONDS) is None
        endpoint.cut_connections()
    work.done.set()
    assert until_it_ends(job) == {"value": 1}


def test_a_job_that_fails_tells_of_its_error(place: Place, endpoint: WinrmEndpoint, work: Work) -> None:
    work.done.set()
    job = place.shell(endpoint).job(WRITES, {"value": "fail"}, name="move 1", timeout=SECONDS)
    with pytest.raises(ScriptError, match="echo failed on host hv1") as caught:
        until_it_ends(job)
    assert caught.value.kind == "move-failed"


def test_a_cancelled_job_ends_and_is_not_started_again(place: Place, endpoint: WinrmEndpoint, work: Work) -> None:
    shell = place.shell(endpoint)
    job = shell.job(WRITES, {"value": 1}, name="move 1", timeout=SECONDS)
    job.cancel(timeout=SECONDS)
    assert work.cancelled.wait(10)
    with pytest.raises(ScriptError) as caught:
        job.poll(timeout=SECONDS)
    assert caught.value.kind == "job-cancelled"
    again = shell.job(WRITES, {"value": 2}, name="move 1", timeout=SECONDS)
    with pytest.raises(ScriptError):
        again.poll(timeout=SECONDS)
    again.cancel(timeout=SECONDS)
    assert work.runs == [1]


def test_cancelling_a_job_that_has_ended_is_no_error(place: Place, endpoint: WinrmEndpoint, work: Work) -> None:
    work.done.set()
    job = place.shell(endpoint).job(WRITES, {"value": 1}, name="move 1", timeout=SECONDS)
    until_it_ends(job)
    job.cancel(timeout=SECONDS)


def test_a_job_that_a_restart_of_its_host_ended_is_lost(place: Place, endpoint: WinrmEndpoint) -> None:
    """It is not started again by itself: how far it had come is not known."""
    shell = place.shell(endpoint)
    job = shell.job(WRITES, {"value": 1}, name="move 1", timeout=SECONDS)
    endpoint.restart()
    with pytest.raises(LabError, match="will not end") as caught:
        job.poll(timeout=SECONDS)
    assert caught.value.kind == "job-lost"
    assert shell.job(WRITES, {"value": 1}, name="move 1", timeout=SECONDS).id == job.id  # type: ignore[attr-defined]
