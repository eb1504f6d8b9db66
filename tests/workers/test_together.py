"""Several things at once: all are done, the first error is told, and a rehearsal's clock knows who works."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from labctl import clock
from tests.simulated import conducted, virtual_time
from workers.together import together

PATIENCE = 30.0


def test_results_come_in_the_order_of_the_items() -> None:
    assert together([3, 1, 2], lambda number: number * number) == [9, 1, 4]
    assert together([7], lambda number: number + 1) == [8]
    assert together([], lambda number: number) == []


def test_all_are_under_way_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=PATIENCE)
    assert sorted(together([1, 2, 3], lambda _: barrier.wait())) == [0, 1, 2]


def test_the_first_error_is_raised_when_all_have_ended() -> None:
    ended: list[int] = []
    others = threading.Event()

    def work(number: int) -> None:
        if number == 1:
            others.wait(PATIENCE)
        ended.append(number)
        if number == 3:
            others.set()
        if number != 2:
            raise ValueError(str(number))

    with pytest.raises(ValueError, match="1"):
        together([1, 2, 3], work)
    assert sorted(ended) == [1, 2, 3]


def test_a_rehearsals_clock_goes_on_only_when_all_of_them_wait(tmp_path: Path) -> None:
    woken: list[tuple[int, float]] = []

    def work(seconds: int) -> None:
        # Real work of different length before each begins to wait: the clock must not go on meanwhile.
        deadline = time.monotonic() + 0.01 * (4 - seconds)
        while time.monotonic() < deadline:
            pass
        clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    with virtual_time(tmp_path / "clock") as conductor:
        conducted(conductor, lambda: together([3, 1, 2], work))
        conducted(conductor, lambda: together([1, 2], work))
        moment = conductor.moment
    assert woken == [(1, 1.0), (2, 2.0), (3, 3.0), (1, 4.0), (2, 5.0)]
    assert moment == 5.0
