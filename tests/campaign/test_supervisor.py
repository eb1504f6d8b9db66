"""Keeping a process alive, with real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labctl.campaign import supervisor
from labctl.campaign.session import WorkerProcess
from labctl.campaign.supervisor import STARTS, Supervisor, kill_group
from labctl.campaign.worker_files import Wanted
from labctl.errors import LabError
from labctl.model.patience import Patience
from tests.desk import until
from tests.limits import no_file_can_be_opened


class Sleeper:
    """A process that sleeps, or one that ends at once while `broken`."""

    name, kind, start_seconds = "The sleeper", "sleeper-died", 60.0

    def __init__(self) -> None:
        self.broken = False
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        line = "raise SystemExit(3)" if self.broken else "import time; time.sleep(600)"
        self.started.append(subprocess.Popen([sys.executable, "-c", line], start_new_session=True))
        return self.started[-1]

    def ready(self) -> bool:
        return not self.broken

    def ill(self) -> str:
        return ""

    def put_down(self, process: subprocess.Popen[bytes]) -> None:
        kill_group(process.pid)
        process.wait()

    def last_words(self) -> str:
        return "out of order"


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleeper]:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE", 0.01)
    made = Sleeper()
    yield made
    for process in made.started:
        kill_group(process.pid)
        process.wait()


def looking(kept: Supervisor, found: Callable[[], bool]) -> Callable[[], bool]:
    def look() -> bool:
        kept.look()
        return found()

    return look


def test_it_is_given_up_after_so_many_starts_in_vain(sleeper: Sleeper) -> None:
    sleeper.broken = True
    with pytest.raises(LabError, match=f"could not be started, {STARTS} times in a row") as caught:
        Supervisor(sleeper, say=lambda _: None, for_ever=True).begin()
    assert caught.value.kind == "sleeper-died"
    assert len(sleeper.started) == STARTS


def test_once_it_has_been_up_it_is_never_given_up_by_a_service_that_is_left_alone(sleeper: Sleeper) -> None:
    said: list[str] = []
    kept = Supervisor(sleeper, say=said.append, for_ever=True)
    kept.begin()
    sleeper.broken = True
    sleeper.started[-1].kill()
    until("many starts in vain", looking(kept, lambda: len(sleeper.started) > 3 * STARTS))
    assert len(said) == STARTS + 1, "it is said no more once it is known"
    assert "It is tried again until it comes up" in said[-1]
    sleeper.broken = False
    until("it is up", looking(kept, lambda: kept.up))
    assert said[-1] == "The sleeper is up again."
    assert kept.generation == 2


def test_whoever_a_person_watches_gives_up_later_too(sleeper: Sleeper) -> None:
    kept = Supervisor(sleeper, say=lambda _: None)
    kept.begin()
    sleeper.broken = True
    sleeper.started[-1].kill()
    with pytest.raises(LabError, match="could not be started"):
        until("it is given up", looking(kept, lambda: False))


def test_no_room_for_a_process_is_a_start_in_vain_and_not_the_end(sleeper: Sleeper) -> None:
    said: list[str] = []
    kept = Supervisor(sleeper, say=said.append)
    with no_file_can_be_opened():
        kept.look()
    assert kept.process is None
    assert said == ["The sleeper could not be started: [Errno 24] Too many open files. It is started again."]
    until("it is up", looking(kept, lambda: kept.up))


def test_a_night_of_short_lives_makes_no_pause_that_is_no_number(sleeper: Sleeper) -> None:
    kept = Supervisor(sleeper, say=lambda _: None, for_ever=True)
    kept.begin()
    kept._short_lives = 5000
    sleeper.started[-1].kill()
    until("it is up again", looking(kept, lambda: kept.generation == 2))


def test_a_worker_starts_though_its_directory_was_cleaned_away(tmp_path: Path) -> None:
    worker = WorkerProcess(
        app="no.such.app", directory=tmp_path / "gone", log=tmp_path / "log", environment={},
        wanted=Wanted(queues=("q",), slots=1), patient=Patience(silent=30.0, unclaimed=60.0, clean_again=10.0),
    )  # fmt: skip
    process = worker.start()
    worker.put_down(process)
    kill_group(process.pid)
    assert worker.files.wanted() == worker.wanted
