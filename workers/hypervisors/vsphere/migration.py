"""vMotion: a relocation that vCenter carries out as a task, watched, cancelled at its deadline, and verified where it ended.

vCenter owns a vMotion, not this process: it goes on when the worker dies, and on the hosts even when vCenter restarts. So
what counts in the end is where the VM is. The task tells the rest, by its key also after labctl lost sight of it; when it is
no longer known, the VM's place and the events of its history do.

vSphere tells a percentage of the task and nothing of memory or passes, and no downtime: that is in a log beside the VM's
files, which is read when it can be (`stun.py`).
Source: vSphere Web Services API, VirtualMachine.RelocateVM_Task, VirtualMachineRelocateSpec, TaskInfo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Lab
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from workers.guard import Deadline, Guard
from workers.hypervisors.base import NAME_PREFIX, MigrationOutcome, Vm
from workers.hypervisors.vsphere import paths, tasks
from workers.hypervisors.vsphere.connection import LostReply, said
from workers.hypervisors.vsphere.downtime import Downtime, read_downtime
from workers.hypervisors.vsphere.events import ARRIVALS, FAILURES, OwnMoves, VmEvent, clock_ahead, events_of
from workers.hypervisors.vsphere.faults import lab_error
from workers.hypervisors.vsphere.inventory import properties, property_of
from workers.hypervisors.vsphere.places import Places
from workers.hypervisors.vsphere.relocation import planned, unsupported
from workers.hypervisors.vsphere.tasks import Pace, TaskState
from workers.hypervisors.vsphere.turns import turn

RELOCATE = "VirtualMachine.relocate"
"""What a task of `RelocateVM_Task` says of itself (`TaskInfo.descriptionId`)."""

ABORT_SECONDS = 120.0
"""How long a cancelled vMotion may take to end, with a vCenter that may be away for a while."""

SETTLE_SECONDS = 30.0
"""How long vCenter gets to say where the VM is when its task is over."""

LOST_SECONDS = 30.0
"""How long a VM may take to arrive whose vMotion nobody knows to have begun, because the answer was lost."""

SILENCE_SECONDS = 5.0
"""Longer than this between two looks at a task, and vCenter was away: then its word that a task failed isn't the last."""

_BEGINNINGS = ("VmBeingHotMigratedEvent", "VmBeingMigratedEvent", "VmBeingRelocatedEvent")


class _OfLabctl(Container[str]):
    """The names of all VMs of labctl, of whichever process."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(NAME_PREFIX)


def not_started(kind: str, error: str) -> MigrationOutcome:
    """The outcome of a migration that was not even begun."""
    now = time.time()
    return MigrationOutcome(completed=False, started=now, ended=now, error=error, error_kind=kind)


@dataclass(frozen=True, kw_only=True)
class _Ending:
    """How a vMotion was seen to end: the last look at its task (None: there was none), and why it was interrupted
    (`deadline`, `cancelled`; empty: it was not)."""

    state: TaskState | None
    interruption: str = ""
    lost: bool = False
    """Whether sight of it was lost, as by a restart of vCenter, so that the task's end may not be the vMotion's."""


class Migration:
    """One vMotion of one VM. Use once."""

    def __init__(
        self,
        places: Places,
        machine: vim.VirtualMachine,
        vm: Vm,
        *,
        lab: Lab,
        source: str,
        destination: str,
        order: MigrationOrder,
        own: OwnMoves,
        guard: Guard,
    ) -> None:
        """`own` is where it is noted that the move is labctl's own (`events.incidents`)."""
        self._places = places
        self._machine = machine
        self._vm = vm
        self._lab = lab
        self._source = source
        self._destination = destination
        self._order = order
        self._own = own
        self._guard = guard
        self._samples: list[MigrationSample] = []
        self._on_sample: Callable[[MigrationSample], None] | None = None
        self._began = 0.0
        self._looked = 0.0
        self._gap = 0.0

    def run(self, on_sample: Callable[[MigrationSample], None] | None) -> MigrationOutcome:
        """Move the VM and say how that went."""
        self._on_sample = on_sample
        deadline = Deadline.after(self._order.deadline)
        try:
            objection = unsupported(self._order) or paths.check_inventory(self._lab, self._source, self._destination)
            if objection:
                return not_started("refused", objection)
            self._here = self._places.host(self._source)
            self._session = self._here.session
            self._target = self._places.vm_place(self._destination)
            spec = planned(self._machine, self._vm, here=self._here, target=self._target)
            objection = paths.check_vm(self._session, self._machine, spec, guard=self._guard)
            if objection:
                return not_started("refused", objection)
            limit = self._session.vcenter.relocations_at_once
            with (
                turn(self._session, RELOCATE, limit=limit, names=_OfLabctl(), deadline=deadline, guard=self._guard),
                self._own.moving(self._machine),
            ):
                return self._run(spec, deadline)
        except AttemptCancelled as cancelled:
            return not_started("cancelled", cancelled.why or cancelled.what)
        except LabError as error:
            kind = "unreachable" if error.kind == "host-unreachable" else "refused"
            return not_started(kind, f"{error.what} {error.why}".strip())
        except vmodl.MethodFault as fault:
            return not_started("refused", _words(fault))

    def _run(self, spec: Any, deadline: Deadline) -> MigrationOutcome:  # noqa: ANN401
        """Begin it, see it to its end and judge it. From here on it has begun, and nothing that goes wrong is a refusal."""
        self._ahead = clock_ahead(self._session)
        self._began = time.time()
        try:
            task = tasks.begin(
                self._session,
                lambda: self._machine.RelocateVM_Task(spec, vim.VirtualMachine.MovePriority.highPriority),
                entity=self._machine,
                operation=RELOCATE,
            )
        except LostReply:
            soon = Deadline(min(deadline.at, Deadline.after(LOST_SECONDS).at))
            return self._judge(replace(self._follow(_Ending(state=None), soon), interruption=""))
        ending = self._watch(task, deadline)
        if ending.interruption:
            ending = self._abort(task, ending)
        elif ending.lost:
            ending = self._follow(ending, deadline)
        return self._judge(ending)

    def _watch(self, task: vim.Task, deadline: Deadline) -> _Ending:
        """Wait for the end of the task, its deadline, or a cancel."""
        self._looked = time.monotonic()
        try:
            state = tasks.watch(self._session, task, deadline=deadline, guard=self._guard, on_look=self._look)
        except AttemptCancelled:
            return _Ending(state=None, interruption="cancelled")
        except LabError:
            return _Ending(state=None, interruption="deadline")
        except vmodl.MethodFault:
            return _Ending(state=None, lost=True)
        if not state.over:
            return _Ending(state=state, interruption="deadline")
        away = self._gap > SILENCE_SECONDS and not state.done
        return _Ending(state=state, lost=away or state.state == "gone")

    def _look(self, state: TaskState) -> None:
        """Keep what a look at the task tells."""
        now = time.monotonic()
        self._gap = max(self._gap, now - self._looked)
        self._looked = now
        if state.state != "running" or state.progress is None:
            return
        sample = MigrationSample(at=time.time() - self._began, percent=state.progress)
        self._samples.append(sample)
        if self._on_sample is not None:
            self._on_sample(sample)

    def _abort(self, task: vim.Task, ending: _Ending) -> _Ending:
        """Cancel the task, however long that takes to be heard, and wait for its end. Not the guard's to interrupt."""
        deadline = Deadline.after(ABORT_SECONDS)
        pause = Pace(None)
        state = ending.state
        while not deadline.passed:
            try:
                state = tasks.cancel(self._session, task)
                if state.state == "gone":
                    self._cancel_others()
            except (LabError, vmodl.MethodFault):
                pause.wait(deadline)
                continue
            if state.over:
                break
        return replace(ending, state=state)

    def _cancel_others(self) -> None:
        """Cancel a relocation of the VM that vCenter took up again under another key, and wait for its end."""
        for task in tasks.in_progress(self._session, RELOCATE, names=(self._vm.name,)):
            tasks.cancel(self._session, task)

    def _follow(self, ending: _Ending, deadline: Deadline) -> _Ending:
        """Wait without a task: until the VM has arrived, its history tells that it won't, or the deadline."""
        pause = Pace(self._guard)
        while True:
            with suppress(LabError, vmodl.MethodFault):
                if property_of(self._session, self._machine, "runtime.host") == self._target.at.host:
                    return ending
                if any(event.kind in FAILURES for event in self._history()):
                    return ending
            interruption = "deadline" if deadline.passed else self._pause(pause, deadline)
            if interruption:
                with suppress(LabError, vmodl.MethodFault):
                    self._cancel_others()
                return replace(ending, interruption=interruption)

    def _pause(self, pause: Pace, deadline: Deadline) -> str:
        try:
            pause.wait(deadline)
        except AttemptCancelled:
            return "cancelled"
        return ""

    def _judge(self, ending: _Ending) -> MigrationOutcome:
        """What became of it: where the VM is decides that."""
        host, trouble = self._settle()
        ended = time.time()
        if host == self._target.at.host and not trouble:
            return self._completed(ending.state, ended)
        error = _why(ending)
        return MigrationOutcome(
            completed=False,
            started=max(self._moment(ending.state, "started") or self._began, self._began),
            ended=ended,
            error=" ".join(part for part in (error, trouble) if part),
            error_kind=ending.interruption or self._kind(ending.state),
            queued_ms=_milliseconds(ending.state, "queued", "started"),
            samples=tuple(self._samples),
        )

    def _settle(self) -> tuple[vim.HostSystem | None, str]:
        """On which host the VM is, and what is not in order with it, in a sentence."""
        deadline = Deadline.after(SETTLE_SECONDS)
        pause = Pace(None)
        while True:
            try:
                return self._place()
            except (LabError, vmodl.MethodFault) as error:
                if deadline.passed:
                    return None, f"Where the VM is can't be told: {said(error)}"
            pause.wait(deadline)

    def _place(self) -> tuple[vim.HostSystem | None, str]:
        rows = properties(self._session, (self._machine,), ("runtime.host", "runtime.powerState"))
        if not rows:
            return None, "The VM is no longer in vCenter."
        host, power = rows[0]["runtime.host"], rows[0]["runtime.powerState"]
        if power != vim.VirtualMachine.PowerState.poweredOn:
            return host, f"The VM is {power}."
        if host not in (self._here.host, self._target.at.host):
            name = property_of(self._session, host, "name") if host is not None else None
            return host, f"The VM is on host {name or 'unknown'}, to which labctl did not move it."
        return host, ""

    def _kind(self, state: TaskState | None) -> str:
        """Of a migration that nobody interrupted: it was refused before anything moved, or failed on its way."""
        if state is None:
            return "unreachable"
        moved = any(sample.percent for sample in self._samples)
        return "failed" if moved or state.state == "gone" or state.fault is None else "refused"

    def _completed(self, state: TaskState | None, ended: float) -> MigrationOutcome:
        started, source = self._moment(state, "started"), "TaskInfo of RelocateVM_Task, by the clock of vCenter"
        finished, total = self._moment(state, "ended"), _milliseconds(state, "started", "ended")
        if state is None or not state.done or total is None:
            started, finished, source = self._told_by_events()
            total = round((finished - started) * 1000) if started is not None and finished is not None else None
        downtime = self._downtime(started or self._began, finished or ended)
        sources = [word for word in (source, downtime.source) if word]
        return MigrationOutcome(
            completed=True,
            started=min(max(started or self._began, self._began), ended),
            ended=min(max(finished or ended, self._began), ended),
            total_ms=total,
            downtime_ms=downtime.milliseconds,
            no_downtime=downtime.why,
            stats_source="; ".join(sources),
            queued_ms=_milliseconds(state, "queued", "started"),
            samples=tuple(self._samples),
        )

    def _told_by_events(self) -> tuple[float | None, float | None, str]:
        """Begin and end of the move by the VM's history, by the worker's clock, for when the task is no longer known."""
        events = self._history()
        begins = [event.at for event in events if event.kind in _BEGINNINGS]
        ends = [event.at for event in events if event.kind in ARRIVALS]
        if not begins or not ends:
            return None, None, ""
        return begins[0], ends[-1], "events of the VM in vCenter, which no longer knew the task"

    def _history(self) -> tuple[VmEvent, ...]:
        """What vCenter remembers of the VM since then; empty when it can't be asked."""
        try:
            return events_of(self._session, self._machine, since=self._began)
        except (LabError, vmodl.MethodFault):
            return ()

    def _downtime(self, started: float, ended: float) -> Downtime:
        return read_downtime(
            self._session,
            self._machine,
            self._target.at.host,
            datacenter=self._target.at.datacenter_path,
            since=started + self._ahead,
            until=ended + self._ahead,
        )

    def _moment(self, state: TaskState | None, name: str) -> float | None:
        """A time of the task by the worker's clock."""
        value = None if state is None else getattr(state, name)
        return None if value is None else value - self._ahead


def _why(ending: _Ending) -> str:
    """Why a migration did not come about, in sentences."""
    state = ending.state
    said_by_task = f"{_words(state.fault)}." if state is not None and state.fault is not None else ""
    if ending.interruption == "deadline":
        at = "" if state is None or state.progress is None else f" at {state.progress} %"
        return f"It was not done at its deadline{at} and was cancelled. {said_by_task}".strip()
    if ending.interruption == "cancelled":
        return f"It was cancelled with the attempt. {said_by_task}".strip()
    if state is None or state.state == "gone":
        return "vCenter lost sight of it, and the VM did not arrive."
    return said_by_task or f"Its task ended as {state.state}, and the VM did not arrive."


def _words(fault: vmodl.MethodFault) -> str:
    """What a fault says, with the details that vCenter gives and the privilege that is missing."""
    return lab_error("", "", fault, kind="refused").why


def _milliseconds(state: TaskState | None, begin: str, end: str) -> int | None:
    """Time between two moments of a task; None when one of them is not known."""
    first, last = (None, None) if state is None else (getattr(state, begin), getattr(state, end))
    return None if first is None or last is None else max(0, round((last - first) * 1000))
