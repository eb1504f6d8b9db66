"""Live migration: compatibility first, then Move-VM as a job on the source, watched, cancelled at the deadline, cleaned up.

The job belongs to the management service of the host, so it goes on when the connection is lost: what counts in the end is
where the VM is found, by asking both hosts. Hyper-V tells its progress in percent; the blackout stands in the event log of
the source, as a number of tenths of a second.
"""

from __future__ import annotations

import re
import time
import uuid as uuids
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Host
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from workers.guard import Deadline, Guard
from workers.hypervisors.base import MigrationOutcome, Vm
from workers.hypervisors.hyperv import events, paths, storage
from workers.hypervisors.hyperv import vm as vms
from workers.hypervisors.hyperv.answers import Answer
from workers.hypervisors.hyperv.connection import Connections, of_host
from workers.powershell.base import Job, Json, ScriptError

SAMPLE_SECONDS = 0.5
"""Between two looks at the job."""

POLL_SECONDS = 20.0
"""Deadline of a look."""

SETTLE_SECONDS = 60.0
"""How long both hosts may take to agree where the VM is, once the migration has ended or was cancelled."""

SILENT_SECONDS = 60.0
"""How long a source that doesn't answer is waited for: its job may go on. A host that restarts takes longer."""

BUSY_SECONDS = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Waits before a migration that found no free slot is tried again; the last one is repeated until the deadline."""

_SSPI = re.compile(r"0x8009030[0-9a-fA-F]")
"""Errors of the security packages: no credentials (E), logon denied (C), unknown target (3), no authority (11) ..."""

_UNWATCHED = frozenset({"job-lost", "job-cancelled"})
"""Kinds of a job whose script is gone, while what it has begun may go on."""

_FROM_JOB = "Msvm_MigrationJob on the source"


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


@dataclass
class _Try:
    """How one Move-VM went. `error` empty: it says it is done."""

    error: str = ""
    kind: str = ""
    busy: bool = False
    queued_ms: int | None = None
    total_ms: int | None = None
    samples: list[MigrationSample] = field(default_factory=list)


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
        self._began = 0.0
        self.fell_back = ""
        """Set when the VM used SR-IOV before and doesn't any more, in a sentence."""

    def run(self, on_sample: Callable[[MigrationSample], None] | None) -> MigrationOutcome:
        """Move the VM and say how that went."""
        objection = self._objection()
        if objection:
            return not_started("refused", objection)
        started, self._began = time.time(), time.monotonic()
        deadline = Deadline.after(self._order.deadline)
        try:
            before, refusal = self._await_slot(deadline)
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
        return self._outcome(started, tried, before)

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
            raise self._said(error) from error
        return Comparison(
            incompatibilities=tuple(
                f"{one.text('message')} ({one.whole('id')})" for one in answer.items("incompatibilities")
            ),
            active=answer.whole("active"),
            maximum=answer.whole("maximum"),
            iov=answer.flag("iov"),
        )

    def _move(self, deadline: Deadline, on_sample: Callable[[MigrationSample], None] | None) -> _Try:
        """One Move-VM, until it has ended or was cancelled."""
        tried = _Try()
        try:
            job = self._connections.job(
                self._source.name,
                "move-vm",
                self._document(),
                job=f"move-{self._id}-{uuids.uuid4().hex[:8]}",
                timeout=POLL_SECONDS,
            )
            answer = self._watch(job, deadline, tried, on_sample)
        except ScriptError as error:
            said = self._said(error)
            tried.error = " ".join(part for part in (said.what, said.why, said.todo) if part)
            tried.busy = _is_busy(error)
            tried.kind = "refused" if said.kind == "no-delegation" and not tried.samples else "failed"
            if error.kind in _UNWATCHED:
                self._cancel(None)
        except LabError as error:
            tried.error, tried.kind = f"{error.what} {error.why}".strip(), "unreachable"
            self._cancel(None)
        else:
            if answer is not None:
                tried.queued_ms, tried.total_ms = answer.whole("queuedMs"), answer.whole("totalMs")
        return tried

    def _watch(
        self,
        job: Job,
        deadline: Deadline,
        tried: _Try,
        on_sample: Callable[[MigrationSample], None] | None,
    ) -> Answer | None:
        """The answer of the job; None when it was cancelled, which `tried` then says. Raises what the script raised."""
        silent: Deadline | None = None
        while True:
            try:
                value = job.poll(timeout=POLL_SECONDS)
                silent = None
            except ScriptError:
                raise
            except LabError as error:
                silent = silent or Deadline.after(min(SILENT_SECONDS, deadline.left))
                if silent.passed:
                    raise of_host(self._source.name, error) from error
                value = None
            if value is not None:
                return Answer(value, host=self._source.name, what="move-vm")
            if silent is None:
                self._note(job.progress(), tried, on_sample)
            if self._guard.stopped or deadline.passed:
                tried.kind = "cancelled" if self._guard.stopped else "deadline"
                tried.error = (
                    "The attempt was asked to end."
                    if self._guard.stopped
                    else f"It had not ended {self._order.deadline:g} s after it began."
                )
                if not self._cancel(job):
                    tried.error += f" It still goes on: host {self._source.name} didn't end it when it was asked to."
                return None
            # Not the guard's sleep: an attempt that is asked to end has to bring the VM back first.
            time.sleep(min(SAMPLE_SECONDS, max(deadline.left, 0.01)))

    def _note(self, said: Json, tried: _Try, on_sample: Callable[[MigrationSample], None] | None) -> None:
        """Keep what the job says of its progress, if it is news."""
        if said is None:
            return
        progress = Answer(said, host=self._source.name, what="move-vm (progress)")
        sample = MigrationSample(at=progress.whole("elapsedMs") / 1000, percent=progress.whole("percent"))
        if tried.samples and tried.samples[-1].at >= sample.at:
            return
        tried.samples.append(sample)
        if on_sample is not None:
            on_sample(sample)

    def _cancel(self, job: Job | None) -> bool:
        """End the migration at the management service, then the script that watches it, if one does. Returns whether the
        former has ended: it goes on without anybody that watches."""
        ended = False
        deadline = Deadline.after(SETTLE_SECONDS)
        while not deadline.passed:
            with suppress(LabError):
                answer = self._connections.call(
                    self._source.name, "cancel-move", {"id": self._id}, timeout=POLL_SECONDS
                )
                ended = answer.whole("left") == 0
            if ended:
                break
            time.sleep(min(SAMPLE_SECONDS, deadline.left))
        if job is not None:
            with suppress(LabError):
                job.cancel(timeout=POLL_SECONDS)
        return ended

    def _said(self, error: ScriptError) -> LabError:
        """An error of Move-VM or Compare-VM; one of the security packages says what is missing and where to set it."""
        said = f"{error.what} {error.why}".strip()
        if _SSPI.search(said):
            return paths.no_delegation(self._source, self._destination.name, said)
        return error

    def _outcome(self, started: float, tried: _Try, before: Comparison) -> MigrationOutcome:
        """What happened, told by where the VM is found; then what the migration left on the other side is removed."""
        arrived, trouble = self._settle()
        ended = time.time()
        if not arrived:
            if not tried.error and not trouble:
                trouble = "Move-VM says that it is done, but the VM is on its source."
            return MigrationOutcome(
                completed=False,
                started=started,
                ended=ended,
                error=" ".join(part for part in (tried.error, trouble) if part),
                error_kind=tried.kind or "failed",
                queued_ms=self._queued(tried),
                samples=tuple(tried.samples),
            )
        self._compare_adapters(before)
        downtime, no_downtime, source = self._blackout()
        return MigrationOutcome(
            completed=True,
            started=started,
            ended=ended,
            total_ms=None if tried.total_ms is None else tried.total_ms - (tried.queued_ms or 0),
            downtime_ms=downtime,
            no_downtime=no_downtime,
            stats_source=source,
            queued_ms=self._queued(tried),
            samples=tuple(tried.samples),
        )

    def _queued(self, tried: _Try) -> int | None:
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
            time.sleep(min(SAMPLE_SECONDS, deadline.left))

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

    def _compare_adapters(self, before: Comparison) -> None:
        """See whether SR-IOV is still used: where the other host can't give it, the VM goes on without, silently."""
        if not before.iov:
            return
        with suppress(LabError):
            now = vms.read_back(self._connections, self._destination.name, self._id)
            if not now.get("nic.sriov_used"):
                self.fell_back = (
                    f"Its adapter used SR-IOV on host {self._source.name} and fell back to the synthetic path on host "
                    f"{self._destination.name}."
                )

    def _blackout(self) -> tuple[int | None, str, str]:
        """The blackout in ms, why there is none, and where the figures are from."""
        with suppress(LabError):
            found = events.blackout(self._connections, self._source.name, self._id, began=self._began)
            if found is None:
                return None, "the event log of the source has no event of its end", _FROM_JOB
            number, downtime = found
            why = "" if downtime is not None else f"event {number} of the source doesn't name it"
            return downtime, why, f"{_FROM_JOB}; event {number} of Hyper-V-VMMS on the source"
        return None, "the event log of the source could not be read", _FROM_JOB


def _backing_off() -> Iterator[float]:
    """The waits between tries, without an end: who waits has a deadline."""
    return chain(BUSY_SECONDS, repeat(BUSY_SECONDS[-1]))


def _is_busy(error: ScriptError) -> bool:
    """Whether a Move-VM failed because too many are in progress: Hyper-V lets the surplus wait, and then fail."""
    active, maximum = error.detail.get("active"), error.detail.get("maximum")
    return isinstance(active, int) and isinstance(maximum, int) and active >= maximum > 0


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
