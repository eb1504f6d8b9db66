"""Tasks of vCenter: begun once, watched by a loop of our own until their deadline, cancelled when nobody wants them.

pyvmomi's `WaitForTask` waits for ever, and looks at its limit only when the task reports something. Here every look is a
short call, so that a silent server, a restart of it and a cancel are all noticed.

A task's life is a `TaskInfo`: queued, running, then success or error. Its times are by the vCenter's clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import datetime

from pyVmomi import vim, vmodl

from labctl.errors import AttemptCancelled, LabError
from workers.guard import Deadline, Guard
from workers.hypervisors.vsphere.connection import LostReply, Session, said
from workers.hypervisors.vsphere.inventory import properties

FIRST_LOOK_SECONDS = 0.05
LOOK_SECONDS = 1.0
"""Looks at a task come ever less often, from the one to the other."""

CANCEL_SECONDS = 60.0
"""How long a task may take to end after it was cancelled."""

CANCEL_AGAIN_SECONDS = 5.0
"""How long a task that was cancelled may go on until it is cancelled again."""

LOOK_BACK_SECONDS = 0.05
"""What a task may seem to have been queued before it was asked for: both times are the vCenter's own, but perhaps rounded."""


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """A task at one look. Times are epoch seconds by the vCenter's clock; None: not yet, or not said."""

    key: str
    """Its identity, which another process finds it again by (`Session.object(vim.Task, key)`)."""
    state: str
    """`queued`, `running`, `success`, `error`; `gone`: the vCenter no longer knows it, as after a restart."""
    progress: int | None = None
    """Percent, as far as the vCenter says."""
    queued: float | None = None
    started: float | None = None
    ended: float | None = None
    cancelled: bool = False
    fault: vmodl.MethodFault | None = None
    why: str = ""
    """What the fault says, in a line."""
    result: object = None

    @property
    def over(self) -> bool:
        """Whether nothing more will happen in it."""
        return self.state not in ("queued", "running")

    @property
    def done(self) -> bool:
        """Whether it did what it was to do."""
        return self.state == "success"


def begin(
    session: Session,
    call: Callable[[], vim.Task],
    *,
    entity: vim.ManagedEntity,
    operation: str,
    shared: bool = False,
) -> vim.Task:
    """Begin a task, once. When the reply is lost the task is looked for among the recent ones and taken up.

    `entity` and `operation` (such as `VirtualMachine.migrate`) are what the task says of itself (`TaskInfo.entity`,
    `descriptionId`). An entity is `shared` when others may begin such a task on it at that moment, as on a template: then
    there must be only one. Raises `LostReply` when it can't be told whether it began, passes the API's faults on.
    """
    asked = session.now()
    try:
        return call()
    except LostReply as lost:
        found = recent(session, operation=operation, entity=entity, since=asked - LOOK_BACK_SECONDS)
        if len(found) == 1 or (found and not shared):
            return found[-1]
        raise LostReply(
            lost.what, kind=lost.kind, why=f"{lost.why}; {len(found)} tasks that it may have begun", todo=lost.todo
        ) from lost


def recent(session: Session, *, operation: str, entity: vim.ManagedEntity, since: float = 0.0) -> tuple[vim.Task, ...]:
    """Recent tasks on an object, whoever's they are, by what they do (`VirtualMachine.clone`), queued since then, ended or
    not; oldest first. Three calls, whatever their number."""
    found = [
        (state.queued or 0.0, task)
        for task, state, info in _recent(session, operation)
        if info.entity == entity and (state.queued or 0.0) >= since
    ]
    return tuple(task for _, task in sorted(found, key=lambda one: one[0]))


def in_progress(session: Session, operation: str, *, names: Container[str]) -> tuple[vim.Task, ...]:
    """Tasks that have not ended, on objects of these names, whoever's they are. Three calls, whatever their number."""
    return tuple(
        task for task, state, info in _recent(session, operation) if info.entityName in names and not state.over
    )


def same_operation(one: str, other: str) -> bool:
    """Whether two names of an operation mean the same: `VirtualMachine.clone` and `VirtualMachine.cloneVm`,
    `VirtualMachine.reconfigure` and `VirtualMachine.reconfigVm`."""

    def plain(name: str) -> str:
        return name.lower().removesuffix("_task").removesuffix("vm").removesuffix("ure")

    return plain(one) == plain(other)


def look(task: vim.Task) -> TaskState:
    """The task as it is now. One call."""
    try:
        return _state(task._GetMoId(), task.info)
    except vmodl.fault.ManagedObjectNotFound:
        return TaskState(key=task._GetMoId(), state="gone")


def watch(
    session: Session,
    task: vim.Task,
    *,
    deadline: Deadline,
    guard: Guard | None = None,
    on_look: Callable[[TaskState], None] | None = None,
) -> TaskState:
    """Wait until the task is over or its deadline has passed, and return the last look at it: the caller judges it.

    A vCenter that doesn't answer meanwhile is waited for. A guard that is stopped has the task cancelled first, then
    `AttemptCancelled` is raised. Raises `LabError` (`host-unreachable`) when the vCenter doesn't answer at the deadline.
    """
    pause = Pace(guard)
    while True:
        silence: LabError | None = None
        try:
            state = look(task)
            if on_look is not None:
                on_look(state)
            if state.over or deadline.passed:
                return state
        except LabError as error:
            if error.kind != "host-unreachable" or deadline.passed:
                raise
            silence = error
        try:
            pause.wait(deadline)
        except AttemptCancelled:
            if silence is None:
                cancel(session, task)
            raise


def cancel(session: Session, task: vim.Task) -> TaskState:
    """Cancel a task and wait until it is over, for up to `CANCEL_SECONDS`. One that can't be cancelled may still succeed.

    It is asked again and again, because the first time may not have been heard. Raises `LabError` (`host-unreachable`).
    """
    deadline = Deadline.after(CANCEL_SECONDS)
    while True:
        # Whatever this says, the looks at it tell what became of it.
        with contextlib.suppress(vmodl.MethodFault, LabError):
            task.CancelTask()
        try:
            state = watch(session, task, deadline=Deadline.after(min(CANCEL_AGAIN_SECONDS, deadline.left)))
            if state.over or deadline.passed:
                return state
        except LabError:
            if deadline.passed:
                raise


def run(
    session: Session,
    call: Callable[[], vim.Task],
    *,
    entity: vim.ManagedEntity,
    operation: str,
    deadline: Deadline,
    guard: Guard | None = None,
    shared: bool = False,
) -> TaskState:
    """Begin a task and wait until it has succeeded. One that hasn't at its deadline is cancelled.

    Raises the fault that it ended with, and `LabError` (`task-deadline`, `task-gone`), `LostReply` and `AttemptCancelled`
    as `begin` and `watch` do.
    """
    task = begin(session, call, entity=entity, operation=operation, shared=shared)
    return require(session, task, operation=operation, deadline=deadline, guard=guard)


def require(
    session: Session, task: vim.Task, *, operation: str, deadline: Deadline, guard: Guard | None = None
) -> TaskState:
    """Wait until a task that was begun has succeeded. Errors as of `run`."""
    state = watch(session, task, deadline=deadline, guard=guard)
    late = not state.over
    if late:
        state = cancel(session, task)
    if state.done:
        return state
    if state.fault is not None and not late:
        raise state.fault
    name = session.vcenter.name
    if state.state == "gone":
        raise LabError(
            f"vCenter {name} no longer knows the task {operation} ({state.key}).",
            kind="task-gone",
            why="It was restarted, or the task is long over.",
        )
    raise LabError(
        f"The task {operation} ({state.key}) of vCenter {name} was not done in time; it was cancelled.",
        kind="task-deadline",
        why=f"It was {state.state}"
        + ("" if state.progress is None else f" at {state.progress} %")
        + " when it was given up.",
        todo="Look at what else the vCenter does: tasks above its limits wait in a queue. Or raise the timeout.",
    )


class Pace:
    """Waits between looks, ever longer, through the guard where there is one."""

    def __init__(self, guard: Guard | None, *, first: float = FIRST_LOOK_SECONDS, most: float = LOOK_SECONDS) -> None:
        self._guard = guard or Guard()
        self._next = first
        self._most = most

    def wait(self, deadline: Deadline) -> None:
        """Wait for the next look, no longer than until the deadline. Raises `AttemptCancelled` at once when asked to end."""
        self._guard.sleep(min(self._next, deadline.left))
        self._next = min(self._next * 1.5, self._most)


def _recent(session: Session, operation: str) -> list[tuple[vim.Task, TaskState, vim.TaskInfo]]:
    """Recent tasks of an operation. Of all others only that is asked for: there may be hundreds."""
    everything = properties(session, tuple(session.content.taskManager.recentTask), ("info.descriptionId",))
    alike = [row.ref for row in everything if same_operation(row["info.descriptionId"] or "", operation)]
    return [
        (row.ref, _state(row.ref._GetMoId(), row["info"]), row["info"])
        for row in (properties(session, alike, ("info",)) if alike else ())
    ]


def _state(key: str, info: vim.TaskInfo) -> TaskState:
    fault = info.error
    return TaskState(
        key=key,
        state=str(info.state),
        progress=info.progress,
        queued=_epoch(info.queueTime),
        started=_epoch(info.startTime),
        ended=_epoch(info.completeTime),
        cancelled=bool(info.cancelled) or isinstance(fault, vmodl.fault.RequestCanceled),
        fault=fault,
        why=said(fault) if fault is not None else "",
        result=info.result,
    )


def _epoch(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
