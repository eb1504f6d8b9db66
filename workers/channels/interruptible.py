"""Blocking calls of libraries that know nothing of a guard: waited for in a way that sees a cancel at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from workers.guard import Deadline, Guard

T = TypeVar("T")

GLANCE = 0.05
"""Seconds between two looks at the guard while a call is waited for."""


class CallTooSlowError(Exception):
    """The call had not come back at its deadline. It may still come back later, with nobody waiting for it."""


def call_interruptibly(
    call: Callable[[], T], *, guard: Guard, deadline: Deadline, dispose: Callable[[T], None] | None = None
) -> T:
    """The result of a blocking `call`, which runs in a thread of its own.

    Raises what the call raises, `AttemptCancelled` as soon as the guard is stopped, and `CallTooSlowError` at the
    deadline. When the call comes back after that, its result is given to `dispose`.
    """
    guard.check()
    errand = _Errand(call, dispose)
    threading.Thread(target=errand.run, daemon=True, name="labctl-call").start()
    try:
        while not errand.done.wait(min(GLANCE, deadline.left)):
            guard.check()
            if deadline.passed:
                raise CallTooSlowError
    except BaseException:
        errand.leave()
        raise
    return errand.result()


class _Errand(Generic[T]):
    """One call on its way, and whether somebody still waits for it."""

    def __init__(self, call: Callable[[], T], dispose: Callable[[T], None] | None) -> None:
        self._call = call
        self._dispose = dispose
        self._lock = threading.Lock()
        self._left = False
        self._values: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            value = self._call()
        except BaseException as error:  # handed to whoever waits
            self._error = error
        else:
            with self._lock:
                self._values.append(value)
                if self._left:
                    self._throw_away()
        self.done.set()

    def leave(self) -> None:
        with self._lock:
            self._left = True
            self._throw_away()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._values[0]

    def _throw_away(self) -> None:
        if self._dispose is not None:
            for value in self._values:
                self._dispose(value)
        self._values.clear()
