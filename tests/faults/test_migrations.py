"""Migrations that don't converge, or have nowhere to go."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from labctl.model.lab import Lab
from tests.desk import Desk
from workers.locallab import embedded
from workers.locallab.topology import layout

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

DIRTY = """
dd if=/dev/urandom of=/run/original bs=64k count=256 2>/dev/null
(while :; do cat /run/original > /run/copy; done) >/dev/null 2>&1 &
"""
"""Writes 16 MiB of memory over and over, faster than 1 MiB/s can carry away."""


def test_a_migration_that_never_converges_is_a_result(desk: Desk) -> None:
    """L6: with the figures of the transfer around it."""
    campaign = desk.campaign(
        scenarios=["during-migration"],
        settings={"seconds": 12, "migrate_at": 0.2, "migrate_bandwidth": "8M", "interval": 0.5},
        prepare=[["/bin/sh", "-c", DIRTY]],
        timeouts={"boot": 120, "command": 60, "transfer_grace": 60, "migration": 4},
    )
    ended = desk.run(campaign).wait()
    assert ended.code == 1, ended.said
    (run,) = desk.record().runs
    assert {item.detail.outcome for item in run.earlier} <= {"lab-error"}, "a result is not tried again"
    assert run.result is not None
    assert (run.result.detail.outcome, run.result.detail.kind) == ("failed", "migration-timeout")
    (migration,) = run.result.migrations
    assert not migration.completed
    assert migration.samples
    assert migration.downtime_ms is None
    placed = {
        (item.subject, item.when): item.facts["placement.host"]
        for item in run.result.facts
        if "placement.host" in item.facts
    }
    assert placed["vm:receiver", "before"] == migration.source
    assert placed["vm:receiver", "after"] == migration.source, "it runs where it was"
    (transfer,) = run.result.transfers
    assert transfer.reading.ok, "the transfer around it went on to its end and is kept"
    (attempt,) = desk.store.attempts_of_run(run.id)
    assert any(output.name == "transfer-1/client.stdout" for output in desk.store.raw(attempt))
    assert "was not migrated" in ended.out
    desk.assert_nothing_left()


def test_a_destination_that_has_just_died_is_the_labs_fault_and_nothing_stays(desk: Desk, mended_lab: Lab) -> None:
    campaign = desk.campaign(
        scenarios=["during-migration"], settings={"seconds": 12, "migrate_at": 0.7, "interval": 0.5}, retries=0
    )
    command = desk.run(campaign)
    attempt = desk.phase(command, "transfer")
    there = attempt.hosts[1]
    pid_file = Path(layout(mended_lab).directory) / "members" / there / "libvirtd.pid"
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    ended = command.wait()
    embedded.up(mended_lab, say=print)
    assert ended.code == 1, ended.said
    (run,) = desk.record().runs
    assert run.result is not None
    assert run.result.detail.outcome == "lab-error"
    assert run.result.detail.kind in ("migration-unreachable", "host-unreachable"), run.result.detail
    assert there in run.result.detail.what
    assert run.result.detail.host == there
    desk.assert_nothing_left()
