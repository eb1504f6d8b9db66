"""Live migration: compatibility first, then Move-VM as a job on the source, watched, cancelled at the deadline, cleaned up.

The job belongs to the management service of the host, so it goes on when the connection is lost: what counts in the end is
where the VM is found, by asking both hosts. Hyper-V tells its progress in percent; the blackout stands in the event log of
the source, as a number of tenths of a second.

What to try first on a real host: a move without shared storage of a VM with a differencing disk. Afterwards the image must
be on the source still, a copy of it in the VM's folder on the destination, and the VM's folder gone from the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Host
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from workers.guard import Deadline, Guard
from workers.hypervisors.base import MigrationOutcome, Vm
from workers.hypervisors.hyperv import events, paths, storage
from workers.hypervisors.hyperv import vm as vms
from workers.hypervisors.hyperv.connection import Connections
from workers.hypervisors.hyperv.moving import Moving, Tried
from workers.powershell.base import Json, ScriptError

SETTLE_SECONDS = 60.0
"""How long both hosts may take to agree where the VM is, once the migration has ended or was cancelled."""

LOOK_SECONDS = 0.5
"""Between two looks for it."""

BUSY_SECONDS = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Waits before a migration that found no free slot is tried again; the last one is repeated until the deadline."""

_FROM_JOB = "Move-VM on the source"


def not_started(kind: str, error: str) -> MigrationOutcome:
    """The outcome of a migration that was not even begun."""
    now = time.time()
    return MigrationOutcome(completed=False, started=now, ended=now, error=error, error_kind=kind)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What Compare-VM says, and how busy the source is with migrations."""

    incompatibilities: tuple[str, ...]
    active: int
    maximum: int
    iov: bool
    """Whether the VM's adapter uses SR-IOV now."""


class Migration:
    """One migration of one VM. Use once."""

    def __init__(
        self,
        connections: Connections,
        vm: Vm,
        *,
        vm_id: str,
        source: Host,
        destination: Host,
        order: MigrationOrder,
        may_end: Callable[[vms.Presence], bool],
        guard: Guard,
    ) -> None:
        """`may_end` says whether a VM found on the destination is ours, so that a leftover may be ended."""
        self._connections = connections
        self._vm = vm
        self._id = vm_id
        self._source = source
        self._destination = destination
        self._order = order
        self._may_end = may_end
        self._guard = guard
        self._stays = storage.stays_where_it_is(source, destination)
        self._waited_ms = 0
        self._name_there = ""
        self.used_sriov = False
        """Whether its adapter used SR-IOV before it was moved."""

    def run(self, on_sample: Callable[[MigrationSample], None] | None) -> MigrationOutcome:
        """Move the VM and say how that went."""
        objection = self._objection()
        if objection:
            return not_started("refused", objection)
        deadline = Deadline.after(self._order.deadline)
        try:
            found, refusal = self._await_slot(deadline)
            self.used_sriov = found.iov
            if refusal:
                return not_started("deadline" if deadline.passed else "refused", refusal)
            tried = self._move(deadline, on_sample)
            for wait in _backing_off():
                if not tried.busy or deadline.left < wait:
                    break
                self._guard.sleep(wait)
                self._waited_ms += round(wait * 1000)
                tried = self._move(deadline, on_sample)
        except AttemptCancelled as error:
            return not_started("cancelled", error.what)
        except LabError as error:
            kind = "unreachable" if error.kind in ("host-unreachable", "timeout") else "refused"
            return not_started(kind, f"{error.what} {error.why} {error.todo}".strip())
        return self._outcome(tried)

    def _objection(self) -> str:
        """Why the VM can't be moved in the way that was ordered."""
        if self._order.post_copy:
            return "Hyper-V has no post-copy."
        if self._order.auto_converge:
            return "Hyper-V doesn't slow VMs down for a migration."
        return ""

    def _document(self) -> dict[str, Json]:
        folder = "" if self._stays else storage.folder_of(self._destination, self._vm.uuid)
        return {"id": self._id, "destination": self._name_there, "storage": folder}

    def _await_slot(self, deadline: Deadline) -> tuple[Comparison, str]:
        """What is compared once the source has a slot for one more migration, and why it can't go on, if so."""
        there = paths.settings(self._connections, self._destination.name)
        self._name_there = there.name
        for wait in _backing_off():
            found = self._compare()
            if found.incompatibilities:
                said = "; ".join(found.incompatibilities)
                return found, f"Compare-VM says that it can't run on host {self._destination.name}: {said}"
            if found.active < found.maximum:
                return found, ""
            if deadline.left < wait:
                break
            self._guard.sleep(wait)
            self._waited_ms += round(wait * 1000)
        return found, (
            f"Host {self._source.name} has had no slot for one more live migration: {found.active} are in progress, "
            f"{found.maximum} are allowed (MaximumVirtualMachineMigrations)."
        )

    def _compare(self) -> Comparison:
        try:
            answer = self._connections.call(self._source.name, "compare-vm", self._document())
        except ScriptError as error:
            raise paths.explained(self._source, self._destination.name, error) from error
        return Comparison(
            incompatibilities=tuple(
                f"{one.text('message')} ({one.whole('id')})" for one in answer.items("incompatibilities")
            ),
            active=answer.whole("active"),
            maximum=answer.whole("maximum"),
            iov=answer.flag("iov"),
        )

    def _move(self, deadline: Deadline, on_sample: Callable[[MigrationSample], None] | None) -> Tried:
        return Moving(
            self._connections,
            self._source,
            self._destination,
            self._document(),
            deadline=deadline,
            guard=self._guard,
            on_sample=on_sample,
        ).run()

    def _outcome(self, tried: Tried) -> MigrationOutcome:
        """What happened, told by where the VM is found; then what the migration left on the other side is removed."""
        arrived, trouble = self._settle()
        if not arrived:
            if not tried.error and not trouble:
                trouble = "Move-VM says that it is done, but the VM is on its source."
            return MigrationOutcome(
                completed=False,
                started=tried.started,
                ended=time.time(),
                error=" ".join(part for part in (tried.error, trouble) if part),
                error_kind=tried.kind or "failed",
                queued_ms=self._queued(tried),
                samples=tuple(tried.samples),
            )
        return self._completed(tried)

    def _completed(self, tried: Tried) -> MigrationOutcome:
        """The figures of a migration that has completed. Its end is the time of its event, its start that much before it
        as Move-VM took; without them, when the end was seen, and when it was asked for."""
        total = None if tried.total_ms is None else tried.total_ms - (tried.queued_ms or 0)
        found, why = self._blackout(tried)
        ended = found.ended if found is not None else tried.ended
        began = ended - total / 1000 if total is not None else tried.started
        return MigrationOutcome(
            completed=True,
            started=min(max(began, tried.started), ended),
            ended=ended,
            total_ms=total,
            downtime_ms=found.downtime_ms if found is not None else None,
            no_downtime=why,
            stats_source=_FROM_JOB + (f"; event {found.event} of Hyper-V-VMMS there" if found is not None else ""),
            queued_ms=self._queued(tried),
            samples=tuple(tried.samples),
        )

    def _blackout(self, tried: Tried) -> tuple[events.Completed | None, str]:
        """The event of its end, and why there is no blackout, in a sentence."""
        try:
            found = events.completed(self._connections, self._source.name, self._id, began=tried.began)
        except LabError:
            return None, "the event log of the source could not be read"
        if found is None:
            return None, "the event log of the source has no event of its end"
        why = "" if found.downtime_ms is not None else f"event {found.event} of the source doesn't name it"
        return found, why

    def _queued(self, tried: Tried) -> int | None:
        if tried.queued_ms is None and not self._waited_ms:
            return None
        return self._waited_ms + (tried.queued_ms or 0)

    def _settle(self) -> tuple[bool, str]:
        """Wait until one side has the VM and the other nothing. Returns whether it is on the destination, and what is not
        in order, in a sentence."""
        deadline = Deadline.after(SETTLE_SECONDS)
        while True:
            here, here_error = self._look(self._source)
            there, there_error = self._look(self._destination)
            if there is not None and there.running and here is None and not here_error:
                return True, self._tidy(self._source)
            if here is not None and here.running and there is None and not there_error:
                if here.paused:
                    with suppress(LabError):
                        vms.unpause(self._connections, here.host, here.id)
                else:
                    return False, self._tidy(self._destination)
            elif here is not None and here.running and there is not None and not there.running and self._may_end(there):
                with suppress(LabError):
                    vms.end(self._connections, there, self._vm.uuid)
            if deadline.passed or (here is None and there is None and not here_error and not there_error):
                return False, _disorder(here, there, here_error, there_error)
            time.sleep(min(LOOK_SECONDS, deadline.left))

    def _look(self, host: Host) -> tuple[vms.Presence | None, str]:
        try:
            return vms.find(self._connections, host.name, self._vm.uuid, self._id), ""
        except LabError as error:
            return None, error.what

    def _tidy(self, host: Host) -> str:
        """Remove the folder that a migration leaves on the side where the VM is not; why that failed, in a sentence."""
        if self._stays:
            return ""
        try:
            vms.remove_folder(self._connections, host.name, self._vm.uuid, self._vm.name)
        except LabError as error:
            return f"{error.what} {error.why}".strip()
        return ""


def _backing_off() -> Iterator[float]:
    """The waits between tries, without an end: who waits has a deadline."""
    return chain(BUSY_SECONDS, repeat(BUSY_SECONDS[-1]))


def _disorder(here: vms.Presence | None, there: vms.Presence | None, here_error: str, there_error: str) -> str:
    """What is not in order after a migration."""
    parts = [error for error in (here_error, there_error) if error]
    if here is None and there is None and not parts:
        parts.append("The VM is on neither side any more.")
    if here is not None and there is not None:
        parts.append("Both sides have it.")
    if here is not None and not here.running:
        parts.append("It doesn't run on its source.")
    return " ".join(parts)
