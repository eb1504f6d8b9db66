from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from labctl.campaign.processes import process_name, this_process
from labctl.campaign.worker_files import Pulse, Wanted, WorkerFiles
from tests.limits import no_file_can_be_opened
from workers.owner import owner_lives, owner_wants_an_end, owner_wants_parking


def test_a_worker_of_nobodys_has_an_owner_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABCTL_OWNER", raising=False)
    monkeypatch.delenv("LABCTL_WORKER_DIRECTORY", raising=False)
    assert owner_lives()
    assert not owner_wants_an_end()
    assert owner_wants_parking()


def test_an_owner_lives_until_it_ends_even_when_nobody_reaps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setenv("LABCTL_OWNER", process_name(owner.pid))
    try:
        assert owner_lives()
        owner.kill()
        deadline = time.monotonic() + 30
        while owner_lives() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert Path(f"/proc/{owner.pid}").exists(), "it is dead and not yet reaped"
        assert not owner_lives()
    finally:
        owner.kill()
        owner.communicate()
    assert not owner_lives()


def test_a_process_that_was_given_the_id_of_a_dead_owner_is_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, pid, start = this_process().split(":")
    monkeypatch.setenv("LABCTL_OWNER", f"{machine}:{pid}:{start}")
    assert owner_lives()
    monkeypatch.setenv("LABCTL_OWNER", f"{machine}:{pid}:{int(start) + 1}")
    assert not owner_lives()


def test_an_owner_that_cannot_be_looked_at_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCTL_OWNER", this_process())
    with no_file_can_be_opened():
        assert owner_lives()


def test_an_owner_asks_for_an_end_by_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABCTL_WORKER_DIRECTORY", str(tmp_path / "worker-2"))
    first, later = WorkerFiles(tmp_path / "worker-1"), WorkerFiles(tmp_path / "worker-3")
    assert not owner_wants_an_end()
    assert owner_wants_parking()
    first.park_no_more()
    assert not owner_wants_parking()
    assert not owner_wants_an_end()
    later.want_end()
    assert owner_wants_an_end(), "all starts of a worker hear of it"


def test_a_worker_and_its_owner_tell_each_other_by_files(tmp_path: Path) -> None:
    files, seen = WorkerFiles(tmp_path / "worker-1"), WorkerFiles(tmp_path / "worker-1")
    assert (seen.pulse(), seen.wanted(), seen.refusal()) == (None, None, "")
    for beats in (1, 10**12, 2):
        files.beat(Pulse(beats=beats, busy=3, taken=4))
        assert seen.pulse() == Pulse(beats=beats, busy=3, taken=4)
    files.want(Wanted(queues=("here.kvm", "there.kvm+vsphere"), slots=7))
    assert seen.wanted() == Wanted(queues=("here.kvm", "there.kvm+vsphere"), slots=7)
    files.refuse("another version")
    assert seen.refusal() == "another version"
    assert not WorkerFiles(tmp_path / "worker-2").refusal()
