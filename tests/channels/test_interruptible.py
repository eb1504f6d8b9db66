"""Blocking calls under a guard: results, errors, cancels, deadlines, and what comes back too late."""

from __future__ import annotations

import threading

import pytest

from labctl.errors import AttemptCancelled
from workers.channels.interruptible import CallTooSlowError, call_interruptibly
from workers.guard import Deadline, Guard


def test_the_result_is_the_calls() -> None:
    assert call_interruptibly(lambda: 42, guard=Guard(), deadline=Deadline.after(10)) == 42


def test_the_error_is_the_calls() -> None:
    def call() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        call_interruptibly(call, guard=Guard(), deadline=Deadline.after(10))


def test_nothing_is_called_after_a_cancel() -> None:
    guard = Guard()
    guard.stop("enough")
    called = threading.Event()
    with pytest.raises(AttemptCancelled):
        call_interruptibly(called.set, guard=guard, deadline=Deadline.after(10))
    assert not called.is_set()


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_comes_back_too_late_is_disposed_of(cancelled: bool) -> None:
    guard = Guard()
    release, disposed = threading.Event(), threading.Event()
    results: list[str] = []

    def call() -> str:
        release.wait(20)
        return "late"

    def dispose(result: str) -> None:
        results.append(result)
        disposed.set()

    if cancelled:
        threading.Timer(0.1, guard.stop, ["enough"]).start()
    with pytest.raises(AttemptCancelled if cancelled else CallTooSlowError):
        call_interruptibly(call, guard=guard, deadline=Deadline.after(20 if cancelled else 0.1), dispose=dispose)
    assert results == []
    release.set()
    assert disposed.wait(20)
    assert results == ["late"]
