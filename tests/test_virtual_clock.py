"""The virtual clock: nobody's time goes on while anybody works, and everybody's does when all wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl import clock
from labctl.conductor import Conductor
from labctl.errors import LabError
from labctl.virtual_clock import VirtualClock

WALL = 1_792_850_400.0
PATIENCE = 30.0


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    made = Conductor(tmp_path / "clock", wall=WALL)
    yield made
    made.close()


def hear_until(conductor: Conductor, wanted: Callable[[], bool]) -> None:
    """Let the conductor hear until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not wanted():
        assert time.monotonic() < deadline, "it never came to be"
        conductor.hear(0.05)


def everybody_waits(conductor: Conductor) -> bool:
    return bool(conductor.working) and not conductor.busy


def test_time_stands_still_until_it_is_moved_on(conductor: Conductor, tmp_path: Path) -> None:
    seen = VirtualClock(tmp_path / "clock")
    assert (seen.monotonic(), seen.now()) == (0.0, WALL)
    conductor.go_on(12.5)
    assert (seen.monotonic(), seen.now()) == (12.5, WALL + 12.5)
    conductor.go_on(3.0)
    assert seen.monotonic() == 12.5, "it never goes back"


def test_s5_a_step_of_wall_time_leaves_monotonic_time_alone(conductor: Conductor, tmp_path: Path) -> None:
    seen = VirtualClock(tmp_path / "clock")
    conductor.go_on(10.0)
    conductor.step_wall(-3600.0)
    assert (seen.monotonic(), seen.now()) == (10.0, WALL + 10.0 - 3600.0)


def test_a_thread_goes_on_when_its_moment_has_come(conductor: Conductor, tmp_path: Path) -> None:
    seen, woken = VirtualClock(tmp_path / "clock"), []

    def work() -> None:
        with seen.working("a"):
            assert not seen.wait(threading.Event(), 5.0)
            woken.append(seen.monotonic())
            assert not seen.wait(threading.Event(), 2.5)
            woken.append(seen.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    for moment in (5.0, 7.5):
        hear_until(conductor, lambda: everybody_waits(conductor))
        assert conductor.earliest == moment
        conductor.go_on(moment)
        assert conductor.busy == {"a"}, "it is at work from the moment that has come, not from when it says so"
    thread.join(PATIENCE)
    assert woken == [5.0, 7.5]
    hear_until(conductor, lambda: not conductor.working)


def test_one_that_works_holds_all_up(conductor: Conductor, tmp_path: Path) -> None:
    first, second = VirtualClock(tmp_path / "clock"), VirtualClock(tmp_path / "clock")
    go = threading.Event()

    def wait() -> None:
        with first.working("waits"):
            first.wait(threading.Event(), 1.0)

    def work() -> None:
        with second.working("works"):
            go.wait(PATIENCE)

    threads = [threading.Thread(target=wait), threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    hear_until(conductor, lambda: conductor.earliest == 1.0 and len(conductor.working) == 2)
    assert conductor.busy == {"works"}
    go.set()
    hear_until(conductor, lambda: everybody_waits(conductor))
    conductor.go_on(1.0)
    for thread in threads:
        thread.join(PATIENCE)


def test_an_event_ends_a_wait_before_its_moment(conductor: Conductor, tmp_path: Path) -> None:
    seen, event, found = VirtualClock(tmp_path / "clock"), threading.Event(), []

    def work() -> None:
        with seen.working("a"):
            found.append(seen.wait(event, 1000.0))

    thread = threading.Thread(target=work)
    thread.start()
    hear_until(conductor, lambda: everybody_waits(conductor))
    event.set()
    thread.join(PATIENCE)
    assert found == [True]
    assert seen.monotonic() == 0.0
    assert seen.wait(event, 5.0), "one that has happened is not waited for"
    assert not seen.wait(threading.Event(), 0.0)


def test_all_threads_of_a_process_must_wait(conductor: Conductor, tmp_path: Path) -> None:
    """Two threads, counted before they start: the clock may go on only when both wait."""
    seen, go, woken = VirtualClock(tmp_path / "clock"), threading.Event(), []

    def helper() -> None:
        go.wait(PATIENCE)
        seen.wait(threading.Event(), 2.0)
        woken.append(("helper", seen.monotonic()))
        seen.count(-1)

    def work() -> None:
        with seen.working("a"):
            seen.count(1)
            thread = threading.Thread(target=helper)
            thread.start()
            seen.wait(threading.Event(), 3.0)
            woken.append(("main", seen.monotonic()))
            seen.count(-1)
            thread.join()
            seen.count(1)

    thread = threading.Thread(target=work)
    thread.start()
    hear_until(conductor, lambda: conductor.working == {"a"})
    conductor.hear(0.1)
    assert conductor.busy == {"a"}
    go.set()
    for moment in (2.0, 3.0):
        hear_until(conductor, lambda: everybody_waits(conductor))
        assert conductor.earliest == moment
        conductor.go_on(moment)
    thread.join(PATIENCE)
    assert woken == [("helper", 2.0), ("main", 3.0)]


CHILD = """
import os, sys, threading
from labctl import clock
with clock.working("child"):
    if "fork" in sys.argv and os.fork() == 0:
        with clock.working("grandchild"):
            clock.sleep(50.0)
        os._exit(0)
    clock.sleep(100.0)
    print(clock.monotonic(), clock.now())
"""


def child(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {clock.VARIABLE: f"{clock.VIRTUAL}{directory}"}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_the_environment_chooses_the_clock_of_a_process(conductor: Conductor, tmp_path: Path) -> None:
    process = child(tmp_path / "clock")
    hear_until(conductor, lambda: everybody_waits(conductor))
    assert conductor.working == {"child"}
    conductor.go_on(100.0)
    assert process.communicate(timeout=PATIENCE)[0].split() == ["100.0", str(WALL + 100.0)]
    hear_until(conductor, lambda: not conductor.working)


def test_a_process_that_dies_while_it_waits_holds_nobody_up(conductor: Conductor, tmp_path: Path) -> None:
    process = child(tmp_path / "clock")
    hear_until(conductor, lambda: everybody_waits(conductor))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    hear_until(conductor, lambda: not conductor.working)
    assert conductor.earliest is None


def test_a_forked_process_speaks_for_itself(conductor: Conductor, tmp_path: Path) -> None:
    process = child(tmp_path / "clock", "fork")
    hear_until(conductor, lambda: conductor.working == {"child", "grandchild"} and not conductor.busy)
    conductor.go_on(50.0)
    hear_until(conductor, lambda: conductor.working == {"child"} and not conductor.busy)
    conductor.go_on(100.0)
    assert process.communicate(timeout=PATIENCE)[0]


def test_one_who_waits_is_told_when_the_conductor_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.virtual_clock._GONE_SECONDS", 0.1)
    conductor = Conductor(tmp_path / "clock", wall=WALL)
    seen, errors = VirtualClock(tmp_path / "clock"), []

    def work() -> None:
        try:
            with seen.working("a"):
                seen.wait(threading.Event(), 5.0)
        except LabError as error:
            errors.append(error.kind)

    thread = threading.Thread(target=work)
    thread.start()
    hear_until(conductor, lambda: everybody_waits(conductor))
    conductor.close()
    thread.join(PATIENCE)
    assert errors == ["clock"]
    with pytest.raises(LabError):
        VirtualClock(tmp_path / "clock").wait(threading.Event(), 1.0)


def test_an_unknown_clock_is_refused() -> None:
    environment = os.environ | {clock.VARIABLE: "sundial"}
    done = subprocess.run(
        [sys.executable, "-c", "import labctl.clock"], env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "sundial" in done.stderr


@settings(max_examples=10, deadline=None)
@given(naps=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=5))
def test_everybody_wakes_exactly_when_asked(tmp_path_factory: pytest.TempPathFactory, naps: list[list[int]]) -> None:
    """Sleepers with naps of their own, each with a clock of its own: all wake at the sums of their naps, in order."""
    directory = tmp_path_factory.mktemp("naps") / "clock"
    conductor, woken = Conductor(directory, wall=WALL), []

    def sleeper(number: int) -> None:
        mine = VirtualClock(directory)
        with mine.working(str(number)):
            for nap in naps[number]:
                mine.wait(threading.Event(), float(nap))
                woken.append((mine.monotonic(), number))

    threads = [threading.Thread(target=sleeper, args=(number,)) for number in range(len(naps))]
    for thread in threads:
        thread.start()
    hear_until(conductor, lambda: len(conductor.working) == len(naps))
    deadline = time.monotonic() + PATIENCE
    while conductor.working:
        assert time.monotonic() < deadline
        conductor.hear(0.05)
        if everybody_waits(conductor):
            assert conductor.earliest is not None
            conductor.go_on(conductor.earliest)
    for thread in threads:
        thread.join(PATIENCE)
    conductor.close()
    expected = sorted(
        (float(sum(own[: end + 1])), number) for number, own in enumerate(naps) for end in range(len(own))
    )
    assert sorted(woken) == expected
    assert [moment for moment, _ in woken] == sorted(moment for moment, _ in woken)
