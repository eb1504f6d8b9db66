"""The commands and a real worker, over a real Redis, on simulated hosts: what is asked for on the store alone is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from labctl.model.outcome import CampaignState
from tests.cli.screen import Screen
from tests.cli.terminal import Terminal

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]


@pytest.fixture
def worker(terminal: Terminal) -> Iterator[Screen]:
    """`labctl worker`."""
    screen = Screen(terminal.state, "worker", terminal=False)
    yield screen
    screen.process.send_signal(signal.SIGTERM)
    try:
        assert screen.wait() == 0, screen.shown
    finally:
        screen.close()


def phases(terminal: Terminal, campaign: int) -> list[str]:
    return [attempt.phase for attempt in terminal.store.active_attempts(campaign)]


def vms(terminal: Terminal) -> list[str]:
    return [path.name for path in (terminal.directory / "world" / "hosts").glob("*/*") if not path.name.startswith(".")]


def test_campaigns_are_submitted_watched_stopped_and_leave_nothing(terminal: Terminal, worker: Screen) -> None:
    quick = terminal.submitted(name="quick", settings={"seconds": 1}, repeats=1, warmups=0)
    watched = Screen(terminal.state, "watch", quick, terminal=True)
    assert watched.wait() == 0, watched.shown
    assert "Campaign 1 is done: 2 ok." in watched.shown
    long = terminal.submitted(name="long", settings={"seconds": 600}, warmups=0, factors={"nic_model": ["virtio"]})
    assert terminal.facts("status", long)["unserved"] == ""

    def transferring() -> int:
        return sum(phase.startswith("transfer") for phase in phases(terminal, long))

    def nothing_in_progress() -> int:
        return int(not phases(terminal, long))

    worker.until_true(lambda: int(transferring() == 2), "two transfers at once")
    assert len(vms(terminal)) == 4
    assert "2 attempts in progress are being stopped" in terminal.said("pause", long, "--now")
    worker.until_true(nothing_in_progress, "the end of what was in progress")
    assert terminal.store.run_counts(long) == {"pending": 2}
    assert vms(terminal) == []
    terminal.said("resume", long)
    worker.until_true(lambda: int(transferring() == 2), "two transfers again")
    terminal.said("cancel", long, "--now")
    worker.until_true(nothing_in_progress, "the end of what was in progress")
    assert terminal.store.run_counts(long) == {"cancelled": 2}
    assert terminal.store.state(long) is CampaignState.CANCELLED
    worker.until_true(lambda: int(terminal.store.leases() == ()), "the end of the leases")
    assert vms(terminal) == []
    assert terminal.said("watch", long, code=1).endswith("Its report: `labctl report 2`.")
