"""Live migration: driven from here over both connections, watched, ended at its deadline, and cleaned up after.

Managed migration (https://libvirt.org/migration.html): when this process dies, libvirt rolls it back. Peer-to-peer
migration would go on without an owner, and libvirt's own choice of an address depends on names and routes, so the
destination's migration address is always given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import libvirt

from labctl.errors import LabError
from labctl.model.lab import Host
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from workers.guard import Deadline, Guard
from workers.hypervisors.base import MigrationOutcome, Vm
from workers.hypervisors.kvm import vm as vms
from workers.hypervisors.kvm.connection import CALL_SECONDS, CallTimeout, Connections, bounded, is_dead, said
from workers.hypervisors.kvm.definition import read_domain

SAMPLE_SECONDS = 0.2
"""Time between two looks at the progress. Each costs one call to libvirt and one to QEMU."""

ABORT_SECONDS = 30.0
"""How long an aborted migration may take to end; post-copy can't be aborted and gets as long to end."""

SETTLE_SECONDS = 15.0
"""How long libvirt gets to tidy both sides up before it counts as failed."""

_OWN_TIDYING = 3.0
"""Seconds after which a leftover on a side is no longer taken for libvirt's own tidying still going on."""

_REFUSALS = (
    libvirt.VIR_ERR_MIGRATE_UNSAFE,
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED,
    libvirt.VIR_ERR_OPERATION_INVALID,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
    libvirt.VIR_ERR_OPERATION_DENIED,
    libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED,
    libvirt.VIR_ERR_INVALID_ARG,
)


def flags_of(order: MigrationOrder) -> int:
    """libvirt's flags of a migration as it was ordered.

    Three are never set: PEER2PEER, which goes on without an owner when its worker dies; PERSIST_DEST, which leaves a
    definition from which the VM could be started a second time; and UNSAFE, which permits what damages local disks.
    """
    flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_ABORT_ON_ERROR
    if order.auto_converge:
        flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE
    if order.post_copy:
        flags |= libvirt.VIR_MIGRATE_POSTCOPY
    return int(flags)


def parameters_of(order: MigrationOrder, destination: Host) -> dict[str, Any]:
    """libvirt's parameters of a migration: the lab file's address of the destination, never one that libvirt finds.

    The bandwidth is in MiB/s there, so the order's bit/s are rounded to whole ones, at least 1.
    """
    parameters: dict[str, Any] = {libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{destination.migration_address}"}
    if order.bandwidth is not None:
        parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = max(1, round(order.bandwidth / 8 / 2**20))
    return parameters


@dataclass(frozen=True, kw_only=True)
class LastWord:
    """What libvirt states of a finished migration, who stated it, and why it has no downtime (empty: it has)."""

    stats: Mapping[str, Any]
    source: str
    no_downtime: str = ""


def last_word(there: Mapping[str, Any], told: Mapping[str, Any] | None) -> LastWord:
    """Of two statements the one with a downtime: the destination's of the completed job, else the source's event.

    The destination's downtime covers the hand-over to its end. It forgets it with a restart of libvirtd, and after
    post-copy it never knew; a transient domain is gone from the source, whose last word is the event (None: none came).
    """
    if libvirt.VIR_DOMAIN_JOB_DOWNTIME in there:
        return LastWord(stats=there, source="libvirt jobStats of the completed job on the destination")
    if told is None:
        why = "the destination doesn't know it (any more), and no event of its end came from the source"
        return LastWord(stats={}, source="", no_downtime=why)
    source = "libvirt job-completed event of the source"
    if libvirt.VIR_DOMAIN_JOB_DOWNTIME in told:
        return LastWord(stats=told, source=source)
    return LastWord(stats=told, source=source, no_downtime="neither side's libvirt states one")


def not_started(kind: str, error: str) -> MigrationOutcome:
    """The outcome of a migration that was not even begun."""
    now = time.time()
    return MigrationOutcome(completed=False, started=now, ended=now, error=error, error_kind=kind)


class Migration:
    """One migration of one VM. Use once."""

    def __init__(
        self,
        connections: Connections,
        vm: Vm,
        *,
        source: Host,
        destination: Host,
        order: MigrationOrder,
        may_end: Callable[[vms.Presence], bool],
        guard: Guard,
    ) -> None:
        """`may_end` says whether a domain found on the destination is ours, so that a leftover may be ended."""
        self._connections = connections
        self._vm = vm
        self._source = source
        self._destination = destination
        self._order = order
        self._may_end = may_end
        self._guard = guard
        self._samples: list[MigrationSample] = []
        self._error: Exception | None = None
        self._done = threading.Event()
        self._told: dict[str, Any] = {}
        self._told_event = threading.Event()
        self._post_copy = False

    def run(self, on_sample: Callable[[MigrationSample], None] | None) -> MigrationOutcome:
        """Move the VM and say how that went."""
        try:
            with (
                self._connections.lease(self._source.name) as here,
                self._connections.lease(self._destination.name) as there,
            ):
                return self._run(here, there, on_sample)
        except LabError as error:
            return not_started("unreachable", f"{error.what} {error.why}")
        except CallTimeout as error:
            return not_started("unreachable", f"Host {self._source.name}: {error}.")
        except libvirt.libvirtError as error:
            return not_started("refused", said(error))

    def _run(
        self,
        here: libvirt.virConnect,
        there: libvirt.virConnect,
        on_sample: Callable[[MigrationSample], None] | None,
    ) -> MigrationOutcome:
        objection = bounded(lambda: self._objection(here), CALL_SECONDS)
        if objection:
            return not_started("refused", objection)
        domain, listener = bounded(lambda: self._listen(here), CALL_SECONDS)
        try:
            started = time.time()
            threading.Thread(target=self._move, args=(domain, there), name="libvirt-migrate", daemon=True).start()
            interruption = self._watch(on_sample)
            ended = time.time()
            if self._error is None and self._done.is_set():
                return self._completed(started, ended)
            return self._failed(started, interruption, lost=is_dead(here) or is_dead(there))
        finally:
            if self._done.is_set():
                _deregister(here, listener)
            else:
                self._connections.abandon(here)
                self._connections.abandon(there)

    def _objection(self, here: libvirt.virConnect) -> str:
        """Why the VM must not be moved in the way that was ordered, whatever libvirt would do; else empty.

        Measured with QEMU 7.2: of seven busy guests under TCG that were moved by post-copy, three crashed within three
        seconds of a migration that QEMU called completed; of six moved by pre-copy, none.
        """
        if self._order.post_copy:
            text = here.lookupByUUIDString(self._vm.uuid).XMLDesc()
            if read_domain(text).domain_type == "qemu":
                return "Under software emulation QEMU damages the memory of a VM in post-copy."
        return ""

    def _listen(self, here: libvirt.virConnect) -> tuple[libvirt.virDomain, int]:
        """The VM on its source, and the registration for the last word about its migration."""
        domain = here.lookupByUUIDString(self._vm.uuid)
        event = libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED
        return domain, here.domainEventRegisterAny(domain, event, self._on_completed, None)

    def _move(self, domain: libvirt.virDomain, there: libvirt.virConnect) -> None:
        try:
            domain.migrate3(there, parameters_of(self._order, self._destination), flags_of(self._order))
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def _watch(self, on_sample: Callable[[MigrationSample], None] | None) -> str:
        """Wait for the end. Returns why it was aborted (`deadline`, `cancelled`); empty when it was not."""
        begun = time.monotonic()
        deadline = Deadline.after(self._order.deadline)
        interruption = ""
        while not self._done.wait(SAMPLE_SECONDS):
            if self._guard.stopped or deadline.passed:
                interruption = "cancelled" if self._guard.stopped else "deadline"
                break
            sample = self._sample(time.monotonic() - begun)
            if sample is not None:
                self._samples.append(sample)
                if on_sample is not None:
                    on_sample(sample)
                self._switch_to_post_copy(sample)
        if interruption:
            self._abort()
        return interruption

    def _sample(self, at: float) -> MigrationSample | None:
        try:
            stats = self._on_source(lambda domain: domain.jobStats())
        except (LabError, libvirt.libvirtError):
            return None
        if not stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_TOTAL):
            return None  # it has not begun, or has just ended
        return MigrationSample(
            at=at,
            memory_total=stats[libvirt.VIR_DOMAIN_JOB_MEMORY_TOTAL],
            memory_processed=stats[libvirt.VIR_DOMAIN_JOB_MEMORY_PROCESSED],
            memory_remaining=stats[libvirt.VIR_DOMAIN_JOB_MEMORY_REMAINING],
            iteration=stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_ITERATION),
        )

    def _switch_to_post_copy(self, sample: MigrationSample) -> None:
        """Start post-copy when the first pass over memory is done; QEMU counts the running pass from 1."""
        if not self._order.post_copy or self._post_copy or (sample.iteration or 0) < 2:
            return
        try:
            self._on_source(lambda domain: domain.migrateStartPostCopy(0))
            self._post_copy = True
        except (LabError, libvirt.libvirtError):
            return  # it has just ended, or the next sample tries again

    def _abort(self) -> None:
        deadline = Deadline.after(ABORT_SECONDS)
        while not deadline.passed:
            # No job any more, or none yet: what counts is that the call that moves the VM returns.
            with suppress(LabError, libvirt.libvirtError):
                self._on_source(lambda domain: domain.abortJob())
            if self._done.wait(1.0):
                return

    def _on_source(self, call: Callable[[libvirt.virDomain], Any]) -> Any:  # noqa: ANN401 - what libvirt gives
        return self._connections.write(
            self._source.name, lambda connection: call(connection.lookupByUUIDString(self._vm.uuid)), seconds=10.0
        )

    def _on_completed(
        self, _connection: libvirt.virConnect, _domain: libvirt.virDomain, stats: dict[str, Any], _opaque: None
    ) -> None:
        self._told = dict(stats)
        self._told_event.set()

    def _completed(self, started: float, ended: float) -> MigrationOutcome:
        word = self._last_word()
        return MigrationOutcome(
            completed=True,
            started=started,
            ended=ended,
            total_ms=word.stats.get(libvirt.VIR_DOMAIN_JOB_TIME_ELAPSED),
            downtime_ms=word.stats.get(libvirt.VIR_DOMAIN_JOB_DOWNTIME),
            no_downtime=word.no_downtime,
            setup_ms=word.stats.get(libvirt.VIR_DOMAIN_JOB_SETUP_TIME),
            bytes_moved=word.stats.get(libvirt.VIR_DOMAIN_JOB_DATA_PROCESSED),
            iterations=word.stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_ITERATION),
            stats_source=word.source,
            samples=tuple(self._samples),
        )

    def _last_word(self) -> LastWord:
        """What libvirt states of the finished job; the event is waited for only when the destination doesn't know."""
        flags = libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED
        try:
            there = self._connections.read(
                self._destination.name, lambda c: c.lookupByUUIDString(self._vm.uuid).jobStats(flags)
            )
        except (LabError, libvirt.libvirtError):
            there = {}
        known = libvirt.VIR_DOMAIN_JOB_DOWNTIME in there
        return last_word(there, self._told if not known and self._told_event.wait(1.0) else None)

    def _failed(self, started: float, interruption: str, *, lost: bool) -> MigrationOutcome:
        """Bring both sides into order, then say what happened; a VM that got there after all has been moved."""
        arrived, trouble = self._settle()
        ended = time.time()
        if arrived:
            return self._completed(started, ended)
        error = said(self._error) if self._error is not None else "libvirt did not end the migration."
        return MigrationOutcome(
            completed=False,
            started=started,
            ended=ended,
            error=" ".join(part for part in (error, trouble) if part),
            error_kind=interruption or ("unreachable" if lost else self._kind()),
            samples=tuple(self._samples),
        )

    def _kind(self) -> str:
        error = self._error
        if isinstance(error, libvirt.libvirtError):
            if "unable to connect to server" in said(error) or "Cannot recv data" in said(error):
                return "unreachable"
            if not self._samples and error.get_error_code() in _REFUSALS:
                return "refused"
        return "failed"

    def _settle(self) -> tuple[bool, str]:
        """Wait until one side has the VM and the other nothing, with help where libvirt gives none.

        Returns whether the VM is on the destination, and what is not in order, in a sentence.
        """
        begun = time.monotonic()
        deadline = Deadline.after(SETTLE_SECONDS)
        while True:
            here, here_error = self._look(self._source)
            there, there_error = self._look(self._destination)
            if there is not None and there.running and here is None and not here_error:
                return True, ""
            if here is not None and here.running and not here.paused and there is None and not there_error:
                return False, ""
            if here is not None and not there_error and time.monotonic() - begun > _OWN_TIDYING:
                self._help(here, there)
            if deadline.passed or (here is None and there is None and not here_error and not there_error):
                return False, _disorder(here, there, here_error, there_error)
            time.sleep(0.1)

    def _look(self, host: Host) -> tuple[vms.Presence | None, str]:
        try:
            return vms.find(self._connections, host.name, self._vm.uuid), ""
        except LabError as error:
            return None, error.what

    def _help(self, here: vms.Presence, there: vms.Presence | None) -> None:
        """End a shell on the destination, and let the VM on the source go on."""
        try:
            if there is not None and not there.running and self._may_end(there):
                vms.end(self._connections, there, self._vm.uuid)
            if there is None and (here.paused or not here.running):
                vms.unpause(self._connections, here.host, self._vm.uuid)
        except LabError:
            return  # the loop looks again and says in the end what is not in order


def _deregister(connection: libvirt.virConnect, listener: int) -> None:
    # When the connection has died, the listener has too.
    with suppress(libvirt.libvirtError, CallTimeout):
        bounded(lambda: connection.domainEventDeregisterAny(listener), CALL_SECONDS)


def _disorder(here: vms.Presence | None, there: vms.Presence | None, here_error: str, there_error: str) -> str:
    """What is not in order after a failed migration."""
    parts = [error for error in (here_error, there_error) if error]
    if here is None and there is None and not parts:
        parts.append("The VM is on neither side any more.")
    if here is not None and there is not None:
        parts.append("Both sides have it.")
    if here is not None and not here.running:
        parts.append("It doesn't run on its source.")
    return " ".join(parts)
