"""Several things at once: the threads of an attempt, all started here, so that a rehearsal's clock knows of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from labctl import clock

S = TypeVar("S")
T = TypeVar("T")


def together(items: Sequence[S], work: Callable[[S], T]) -> list[T]:
    """Do the work for all at once; when some fail, the first error is raised after all have ended.

    The first item is worked on in the thread that calls, the others in threads of their own.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    first, *others = items
    with ThreadPoolExecutor(max_workers=len(others)) as pool:
        clock.count(len(others))
        futures = [pool.submit(_counted, work, item) for item in others]
        own: Future[T] = Future()
        try:
            own.set_result(work(first))
        except BaseException as error:
            own.set_exception(error)
        clock.count(-1)
        wait(futures)
        clock.count(1)
    return [future.result() for future in (own, *futures)]


def _counted(work: Callable[[S], T], item: S) -> T:
    try:
        return work(item)
    finally:
        clock.count(-1)
