"""Several things at once: the threads of an attempt, all of them from here, so that a rehearsal's clock knows of them.

They are kept for the next attempts of the process: to start one costs as much as to ask the store something.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from labctl import clock

S = TypeVar("S")
T = TypeVar("T")

_MOST = 64
"""No attempt does so much at once; a thread is started only when none is idle."""
_helpers: dict[int, ThreadPoolExecutor] = {}
"""The threads of this process, by its id: those of its parent didn't come along."""


def beside(work: Callable[[], T]) -> Future[T]:
    """Do the work in another thread, beside the one that calls."""
    return _of_this_process().submit(work)


def together(items: Sequence[S], work: Callable[[S], T]) -> list[T]:
    """Do the work for all at once; when some fail, the first error is raised after all have ended.

    The first item is worked on in the thread that calls, the others in threads of their own.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    first, *others = items
    clock.count(len(others))
    futures = [_of_this_process().submit(_counted, work, item) for item in others]
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


def _of_this_process() -> ThreadPoolExecutor:
    process = os.getpid()
    if process not in _helpers:
        _helpers.clear()
        _helpers[process] = ThreadPoolExecutor(max_workers=_MOST, thread_name_prefix="helper")
    return _helpers[process]
