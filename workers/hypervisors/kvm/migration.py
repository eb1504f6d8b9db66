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
from typing import Any

import libvirt

from labctl.errors import LabError
from labctl.model.lab import Host, Lab
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from workers.guard import Deadline, Guard
from workers.hypervisors.base import MigrationOutcome, Vm
from workers.hypervisors.kvm import vm as vms
from workers.hypervisors.kvm.connection import CALL_SECONDS, CallTimeout, Connections, bounded, is_dead, said
from workers.hypervisors.kvm.definition import read_domain
from workers.hypervisors.kvm.facts import host_uuid

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


def check(connections: Connections, lab: Lab, source: str, destination: str) -> str:
    """Why a VM can't be migrated between two hosts; empty when nothing speaks against it.

    Raises `LabError` when one of the two can't be asked.
    """
    reason = check_inventory(lab, source, destination)
    if reason:
        return reason
    there, here = (_identity(connections, name) for name in (destination, source))
    if there["uuid"] == here["uuid"]:
        return (
            f"Hosts {source} and {destination} have the same host UUID, so libvirt takes them for one: set host_uuid."
        )
    if there["qemu"] < here["qemu"]:
        return f"Host {destination} has an older QEMU than host {source}."
    return ""


def check_inventory(lab: Lab, source: str, destination: str) -> str:
    """The part of `check` that the lab file answers."""
    if source == destination:
        return f"Source and destination are the same host, {source}."
    if (source, destination) not in lab.migration_pairs:
        return f"The lab has no migration path from host {source} to host {destination}."
    if lab.hosts[destination].migration_address is None:
        return f"Host {destination} has no migration address in the lab file."
    return ""


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
            domain.migrate3(there, self._parameters(), self._flags())
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def _parameters(self) -> dict[str, Any]:
        """The bandwidth is libvirt's: MiB/s, so the order's bit/s are rounded to whole ones, at least 1."""
        parameters: dict[str, Any] = {libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{self._destination.migration_address}"}
        if self._order.bandwidth is not None:
            parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = max(1, round(self._order.bandwidth / 8 / 2**20))
        return parameters

    def _flags(self) -> int:
        flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_ABORT_ON_ERROR
        if self._order.auto_converge:
            flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE
        if self._order.post_copy:
            flags |= libvirt.VIR_MIGRATE_POSTCOPY
        return int(flags)

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
        stats, source = self._statistics()
        return MigrationOutcome(
            completed=True,
            started=started,
            ended=ended,
            total_ms=stats.get(libvirt.VIR_DOMAIN_JOB_TIME_ELAPSED),
            downtime_ms=stats.get(libvirt.VIR_DOMAIN_JOB_DOWNTIME),
            setup_ms=stats.get(libvirt.VIR_DOMAIN_JOB_SETUP_TIME),
            bytes_moved=stats.get(libvirt.VIR_DOMAIN_JOB_DATA_PROCESSED),
            iterations=stats.get(libvirt.VIR_DOMAIN_JOB_MEMORY_ITERATION),
            stats_source=source,
            samples=tuple(self._samples),
        )

    def _statistics(self) -> tuple[Mapping[str, Any], str]:
        """The finished job's statistics and who gave them: the destination, else the source's event.

        The destination's downtime covers the hand-over to its end. It forgets it with a restart of libvirtd, and after
        post-copy it never knew; a transient domain is gone from the source, whose last word is the event.
        """
        flags = libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED
        try:
            stats = self._connections.read(
                self._destination.name, lambda c: c.lookupByUUIDString(self._vm.uuid).jobStats(flags)
            )
        except (LabError, libvirt.libvirtError):
            stats = {}
        if libvirt.VIR_DOMAIN_JOB_DOWNTIME in stats:
            return stats, "libvirt jobStats of the completed job on the destination"
        if self._told_event.wait(1.0):
            return self._told, "libvirt job-completed event of the source"
        return {}, ""

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


def _identity(connections: Connections, host: str) -> Mapping[str, Any]:
    return connections.read(host, lambda c: {"uuid": host_uuid(c), "qemu": c.getVersion()})


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
