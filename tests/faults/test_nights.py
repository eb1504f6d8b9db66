"""A night on real hosts and guests, left alone with `labctl worker`, in which one thing after the other is broken.

Faults: Redis killed, Celery's main process killed (C2), a worker killed (C3, C5), libvirtd killed and started again, QEMU
killed in mid-migration, libvirtd stopped while it creates a VM (L15), the service killed in mid-migration (L5, M10), the
test network cut for a while, a worker stopped for longer than its lease (C12), everything killed at once (S8).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from labctl.model.lab import Lab
from labctl.store import ActiveAttempt
from tests.desk import Command, Desk, outcomes, until
from workers.locallab import embedded, namespaces
from workers.locallab.topology import layout, namespace_prefix, topology

pytestmark = [pytest.mark.faults, pytest.mark.night, pytest.mark.timeout(900)]

PATIENCE = {
    "beat": 0.5,
    "silent": 6,
    "unclaimed": 10,
    "clean_again": 1,
    "check_first": 2,
    "check_longest": 4,
    "checks": 50,
}
RUNS = 4
"""Enough for the faults that an attempt survives."""


class Night:
    """The service of a night, and what it works on."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.service = self.serve()
        self.seen = 0
        """The newest attempt to which something has happened."""

    def serve(self) -> Command:
        """Start a service."""
        return self.desk.start("worker")

    def next_in(self, *phases: str) -> ActiveAttempt:
        """An attempt to which nothing has happened yet, once it is in a phase whose name begins like one of these."""
        found = self.desk.active(
            self.service,
            f"an attempt in {phases}",
            lambda item: item.id > self.seen and item.phase.startswith(phases) and bool(item.worker),
        )
        self.seen = found.id
        return found

    def main(self) -> int:
        """Celery's main process."""
        rows = [row.pid for row in self.desk.store.workers() if row.role == "worker"]
        return rows[0]

    def redis(self) -> int:
        """The private Redis."""
        return next(pid for pid, line in self.desk.processes().items() if "redis-server" in line)

    def libvirtd(self, host: str) -> int:
        """The libvirtd of a host."""
        return int((Path(layout(self.desk.lab).directory) / "members" / host / "libvirtd.pid").read_text())

    def qemu(self, vm: str) -> list[int]:
        """The processes of a VM, on whatever host."""
        found = namespaces.processes(namespace_prefix(self.desk.lab))
        return [pid for pid in found if any(f"guest={vm}," in word for word in namespaces.command_line(pid))]

    def ended(self, attempt: ActiveAttempt) -> tuple[str, str, str]:
        """State, outcome and kind of an attempt, once it has ended."""
        query = f"SELECT state, outcome, kind FROM attempts WHERE id = {attempt.id} AND outcome IS NOT NULL"
        found: list[tuple[str, str, str]] = until(f"attempt {attempt.id} has ended", lambda: self.desk.query(query))
        return found[0]


@pytest.fixture
def night(desk: Desk, mended_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    monkeypatch.setenv("LABCTL_PATIENCE", json.dumps(PATIENCE))
    made = Night(desk)
    yield made
    for host in mended_lab.hosts:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(made.libvirtd(host), signal.SIGCONT)


def worker_of(attempt: ActiveAttempt) -> int:
    return int(attempt.worker.split(":")[1])


def test_in_the_morning_every_run_is_there_once_and_the_lab_is_clean(night: Night) -> None:
    desk = night.desk
    campaign = desk.campaign(
        scenarios=["during-migration"],
        settings={"seconds": 8, "interval": 0.5, "migrate_at": 0.3, "migrate_bandwidth": "80M"},
        repeats=RUNS,
        retries=20,
        back_off="1s",
        timeouts={"boot": 25, "command": 20, "transfer_grace": 20, "migration": 30},
    )
    submitted = desk.labctl("submit", campaign, "--lab", desk.lab_file)
    assert submitted.code == 0, submitted.said
    for fault in (
        nothing_of_the_brokers_is_anything_to_a_running_attempt,
        a_killed_worker_is_noticed_at_once,
        libvirtd_is_killed_and_comes_back,
        qemu_is_killed_in_mid_migration,
        libvirtd_stands_still_while_it_creates_a_vm,
        the_service_is_killed_in_mid_migration,
        the_network_is_cut_for_a_while,
        a_worker_is_stopped_for_longer_than_its_lease,
        everything_is_killed_at_once,
    ):
        began = time.monotonic()
        fault(night)
        print(f"{time.monotonic() - began:5.1f} s  {fault.__name__}")
    until("the campaign is done", lambda: desk.store.state(1).ended)
    night.service.process.terminate()
    ended = night.service.wait()
    assert ended.code == 0, ended.said
    found = outcomes(desk.record())
    assert sum(found.values()) == RUNS
    assert found.keys() <= {"ok", "failed"}, (
        "a result each: of the faults none is a result, unless it cut a transfer short"
    )
    accepted = desk.query("SELECT accepted_attempt FROM runs WHERE campaign_id = 1")
    assert len(set(accepted)) == RUNS
    results = "SELECT count(*) FROM attempts WHERE outcome IN ('ok', 'failed') AND campaign_id = 1"
    assert desk.query(results) == [(RUNS,)]
    assert desk.query("SELECT id FROM attempts WHERE kind = 'bug'") == []
    reaped = desk.labctl("reap", "--all", "--json")
    assert reaped.code == 0, reaped.said
    assert all(not lab["vms"] for lab in json.loads(reaped.out)), reaped.out
    desk.assert_nothing_left(within=20)


def nothing_of_the_brokers_is_anything_to_a_running_attempt(night: Night) -> None:
    attempt = night.next_in("place")
    os.kill(night.redis(), signal.SIGKILL)
    until("it transfers", lambda: _phase(night, attempt).startswith(("transfer", "migrating")))
    os.kill(night.main(), signal.SIGKILL)
    assert night.ended(attempt) == ("ended", "ok", "")


def a_killed_worker_is_noticed_at_once(night: Night) -> None:
    attempt = night.next_in("place")
    os.kill(worker_of(attempt), signal.SIGKILL)
    assert night.ended(attempt) == ("lost", "lab-error", "worker-lost")


def libvirtd_is_killed_and_comes_back(night: Night) -> None:
    attempt = night.next_in("transfer")
    os.kill(night.libvirtd(attempt.hosts[0]), signal.SIGKILL)
    embedded.up(night.desk.lab, say=print)
    assert night.ended(attempt)[0] == "ended"


def qemu_is_killed_in_mid_migration(night: Night) -> None:
    attempt = night.next_in("migrating")
    (vm,) = [vm for vm in night.desk.store.vms_of_attempt(attempt.id) if vm.role == "receiver"]
    for pid in night.qemu(vm.name):
        os.kill(pid, signal.SIGKILL)
    state, outcome, kind = night.ended(attempt)
    assert (state, outcome) == ("ended", "lab-error"), kind


def libvirtd_stands_still_while_it_creates_a_vm(night: Night) -> None:
    """What it was told before it stood still it does as soon as it goes on, although nobody waits for it any more."""
    attempt = night.next_in("place")
    libvirtd = night.libvirtd(attempt.hosts[0])
    os.kill(libvirtd, signal.SIGSTOP)
    try:
        until("the attempt gives up", lambda: not _phase(night, attempt).startswith("place"))
    finally:
        os.kill(libvirtd, signal.SIGCONT)
    state, outcome, _ = night.ended(attempt)
    assert (state, outcome) == ("ended", "lab-error")


def the_service_is_killed_in_mid_migration(night: Night) -> None:
    attempt = night.next_in("migrating")
    night.service.kill()
    night.service = night.serve()
    assert night.ended(attempt)[1] in ("cancelled", "lab-error")


def the_network_is_cut_for_a_while(night: Night) -> None:
    attempt = night.next_in("transfer")
    host = topology(night.desk.lab).members[attempt.hosts[-1]].name
    for state in ("down", "up"):
        subprocess.run(["ip", "-netns", host, "link", "set", "dev", "data0", state], check=True)
        time.sleep(2.0)  # how long it is cut is the fault itself
    assert night.ended(attempt)[0] == "ended"


def a_worker_is_stopped_for_longer_than_its_lease(night: Night) -> None:
    attempt = night.next_in("transfer")
    os.kill(worker_of(attempt), signal.SIGSTOP)
    assert night.ended(attempt) == ("lost", "lab-error", "worker-lost")
    until("its VMs are removed by others", lambda: not night.desk.store.vms_of_attempt(attempt.id))
    os.kill(worker_of(attempt), signal.SIGCONT)


def everything_is_killed_at_once(night: Night) -> None:
    attempt = night.next_in("place", "verify", "transfer")
    for pid in night.desk.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    night.service.wait()
    for directory in night.desk.temporary.iterdir():
        shutil.rmtree(directory)  # nobody is left who could have done it
    night.service = night.serve()
    assert night.ended(attempt)[0] == "lost"


def _phase(night: Night, attempt: ActiveAttempt) -> str:
    found = night.desk.query(f"SELECT phase FROM attempts WHERE id = {attempt.id}")
    return str(found[0][0])
