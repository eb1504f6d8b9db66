"""The machine that a store is worked on from: an SQLite database has only one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.store import WorkerRecord, home
from labctl.store.machine import Machine, this_machine
from tests.store.processes import opened

HERE = Machine(id="1" * 32, boot="boot-1", name="here")
RESTARTED = Machine(id="1" * 32, boot="boot-2", name="here")
CONTAINER = Machine(id="2" * 32, boot="boot-1", name="container")
ELSEWHERE = Machine(id="3" * 32, boot="boot-3", name="here")
UNKNOWN = Machine(id="", boot="", name="here")

Be = Callable[[Machine], None]


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Be:
    return lambda machine: monkeypatch.setattr(home, "this_machine", lambda: machine)


def a_worker() -> WorkerRecord:
    return WorkerRecord(
        name="worker@here:7", role="worker", machine="here", pid=7, version="0", queues=("q",), slots=1, started=0.0
    )


def test_this_machine_is_known_by_more_than_its_name() -> None:
    machine = this_machine()
    assert machine == this_machine()
    assert machine.id or machine.boot
    assert Machine.from_text(machine.to_text()) == machine
    file = Path("/etc/machine-id")
    assert not file.exists() or file.read_text().strip() not in machine.to_text()


@pytest.mark.parametrize(
    ("other", "same"), [(HERE, True), (RESTARTED, True), (CONTAINER, True), (ELSEWHERE, False), (UNKNOWN, True)]
)
def test_a_machine_is_itself_after_a_restart_and_in_its_containers(other: Machine, same: bool) -> None:
    assert HERE.is_also(other) is same
    assert other.is_also(HERE) is same


def test_a_store_is_worked_on_again_and_again_from_one_machine(tmp_path: Path, be: Be) -> None:
    store = opened(f"sqlite:///{tmp_path}/labctl.sqlite")
    assert store.home() == ""
    for machine in (HERE, HERE, CONTAINER, HERE, RESTARTED, RESTARTED):
        be(machine)
        store.work_here()
        assert store.home() == machine.name
    store.close()


def test_sqlite_on_two_machines_at_once_is_refused_with_what_to_use_instead(tmp_path: Path, be: Be) -> None:
    store = opened(f"sqlite:///{tmp_path}/labctl.sqlite")
    be(HERE)
    store.work_here()
    be(ELSEWHERE)
    assert store.campaigns() == (), "reading is free"
    for _ in range(2):
        with pytest.raises(LabError) as refusal:
            store.work_here()
        assert refusal.value.kind == "store-elsewhere"
        assert "PostgreSQL" in refusal.value.todo
        assert "labctl db adopt" in refusal.value.todo
    be(HERE)
    store.work_here()
    store.close()


@pytest.mark.services
def test_postgresql_is_worked_on_from_any_number_of_machines(cluster_url: str, be: Be) -> None:
    store = opened(cluster_url)
    for machine in (HERE, ELSEWHERE, HERE):
        be(machine)
        store.work_here()
        store.adopt_machine()
    assert store.home() == ""
    store.close()


def test_a_store_that_was_moved_is_adopted(tmp_path: Path, be: Be) -> None:
    store = opened(f"sqlite:///{tmp_path}/labctl.sqlite")
    be(HERE)
    store.work_here()
    store.register_worker(a_worker())  # its process died with the other machine
    be(ELSEWHERE)
    store.adopt_machine(watch=0.3)
    store.work_here()
    be(HERE)
    with pytest.raises(LabError, match="worked on from"):
        store.work_here()
    store.close()


def test_a_store_whose_workers_give_signs_of_life_elsewhere_is_not_adopted(tmp_path: Path, be: Be) -> None:
    store = opened(f"sqlite:///{tmp_path}/labctl.sqlite")
    be(HERE)
    store.work_here()
    store.register_worker(a_worker())
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            store.beat_worker("worker@here:7", doing="")

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        be(ELSEWHERE)
        with pytest.raises(LabError, match="worker@here:7 is at work now"):
            store.adopt_machine(watch=60.0)
    finally:
        ended.set()
        beating.join()
    be(HERE)
    store.work_here()
    store.close()


@pytest.mark.services
def test_sqlite_is_refused_on_a_machine_with_another_identity(tmp_path: Path) -> None:
    """The other machine is a mount namespace in which the files that tell machines apart are others."""
    code = "import sys, pathlib, labctl.store\nlabctl.store.open_store(pathlib.Path(sys.argv[1])).work_here()\n"
    work = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(work, check=True)
    (tmp_path / "id").write_text("f" * 32 + "\n")
    (tmp_path / "boot").write_text("0" * 36 + "\n")
    mounts = 'mount --bind "$1/id" /etc/machine-id && mount --bind "$1/boot" /proc/sys/kernel/random/boot_id'
    other = ["unshare", "--mount", "sh", "-c", f'{mounts} && shift && exec "$@"', "sh", str(tmp_path), *work]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert "worked on from the machine" in refused.stderr
    assert "labctl db adopt" in refused.stderr
    subprocess.run(work, check=True)
