"""Turns: how many tasks of one kind labctl has at once in a vCenter."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager

from labctl.errors import LabError
from workers.guard import Deadline, Guard
from workers.hypervisors.vsphere import tasks
from workers.hypervisors.vsphere.connection import Session

_TURNS: dict[tuple[str, str, int], threading.BoundedSemaphore] = {}
_MAKING = threading.Lock()

WAIT_SECONDS = 5.0
"""How often at least somebody who waits for a turn looks again."""


@contextmanager
def turn(
    session: Session, operation: str, *, limit: int, names: Container[str], deadline: Deadline, guard: Guard
) -> Iterator[None]:
    """Have one of `limit` turns for an operation (`VirtualMachine.clone`) on objects of these names.

    Threads of one process never exceed the limit. Other processes are seen by the tasks that the vCenter has in progress:
    so two that look in the same moment may, by as many as they are, for the length of one task. Raises `LabError`
    (`create-failed`) when no turn comes before the deadline.
    """
    pace = tasks.Pace(guard, most=WAIT_SECONDS)
    mine = _semaphore(session.vcenter.address, operation, limit)
    while not mine.acquire(blocking=False):
        _wait(pace, session, operation, limit, deadline)
    try:
        while len(tasks.in_progress(session, operation, names=names)) >= limit:
            _wait(pace, session, operation, limit, deadline)
        yield
    finally:
        mine.release()


def _semaphore(address: str, operation: str, limit: int) -> threading.BoundedSemaphore:
    with _MAKING:
        return _TURNS.setdefault((address, operation, limit), threading.BoundedSemaphore(limit))


def _wait(pace: tasks.Pace, session: Session, operation: str, limit: int, deadline: Deadline) -> None:
    if deadline.passed:
        raise LabError(
            f"No turn for {operation} came in time at vCenter {session.vcenter.name}.",
            kind="create-failed",
            why=f"It had {limit} of labctl's in progress all the while, which is what the lab file allows.",
            todo=f"Raise the limits of vcenters.{session.vcenter.name}, or the timeout.",
        )
    pace.wait(deadline)
