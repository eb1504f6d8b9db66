"""The main process of a Celery worker ends with its owner, whatever it is doing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.worker import state

from labctl.campaign.broker import VARIABLE
from labctl.campaign.processes import process_name
from labctl.campaign.worker_files import DIRECTORY_VARIABLE, OWNER_VARIABLE, Wanted
from tests.desk import until
from workers.main_process import _change


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_worker_that_ends_is_asked_for_more_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery carries out what waits for its event loop when it closes the loop, after it has closed the pool."""
    monkeypatch.setattr(state, "should_stop", 0)
    _change(object(), Wanted(queues=("here.kvm",), slots=2))


@pytest.mark.services
def test_a_worker_that_never_reached_its_broker_ends_with_its_owner(
    owner: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A private Redis dies with the service that started it, and the worker may not have reached it yet."""
    files, log = tmp_path / "session" / "worker-1", tmp_path / "log"
    files.mkdir(parents=True)
    own = {
        VARIABLE: f"redis+socket://{tmp_path}/nobody.sock",
        OWNER_VARIABLE: process_name(owner.pid),
        DIRECTORY_VARIABLE: str(files),
    }
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "--pool", "prefork", "--concurrency", "1"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ | own, start_new_session=True,
        )  # fmt: skip
    try:
        until("it tries to reach its broker", lambda: b"Cannot connect" in log.read_bytes())
        owner.kill()
        until("it has ended", lambda: worker.poll() is not None, seconds=60)
        assert not files.parent.exists(), "the directory of its service is removed"
    finally:
        worker.kill()
        worker.wait()
