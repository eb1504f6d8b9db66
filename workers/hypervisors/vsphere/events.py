"""What vCenter remembers of a VM: how its migrations went, and what others did to it.

Who did something is an event's user: empty or a service for what DRS and HA do by themselves, else a person's or a program's
account. What labctl's own account did is labctl's, except moves that labctl knows nothing of: those were somebody else's
with the same account.

Times of events are by the vCenter's clock; here they are moved to the worker's.
Source: vSphere Web Services API, EventManager.QueryEvents and the types of events.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pyVmomi import vim, vmodl

from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import property_of

MOST_EVENTS = 1000
"""What vCenter gives at most in one answer; a VM of ours has tens."""

CLOCK_SECONDS = 1.0
"""What an event may seem to be too early, as clocks are read and rounded."""

ARRIVALS = ("VmMigratedEvent", "DrsVmMigratedEvent", "VmRelocatedEvent")
"""Events of a VM that has come to another host, or got other storage."""

FAILURES = ("VmFailedMigrateEvent", "MigrationErrorEvent", "MigrationHostErrorEvent", "VmRelocateFailedEvent")
"""Events of a VM that stayed where it was."""

_TOLD = {
    "DrsVmMigratedEvent": "DRS moved it",
    "VmMigratedEvent": "it was moved",
    "VmRelocatedEvent": "it was relocated",
    "VmFailedMigrateEvent": "somebody tried to move it",
    "VmRelocateFailedEvent": "somebody tried to relocate it",
    "VmRestartedOnAlternateHostEvent": "HA restarted it on another host",
    "com.vmware.vc.ha.VmRestartedByHAEvent": "HA restarted it",
    "VmDasBeingResetEvent": "HA reset it",
    "VmDasBeingResetWithScreenshotEvent": "HA reset it",
    "VmReconfiguredEvent": "it was reconfigured",
    "VmRenamedEvent": "it was renamed",
    "VmPoweredOffEvent": "it was powered off",
    "VmGuestShutdownEvent": "its guest was shut down",
    "VmGuestRebootEvent": "its guest was restarted",
    "VmResettingEvent": "it was reset",
    "VmSuspendedEvent": "it was suspended",
    "VmResumingEvent": "it was resumed",
    "VmDisconnectedEvent": "its host was disconnected",
    "VmOrphanedEvent": "its host lost it",
    "VmResourcePoolMovedEvent": "it was moved to another resource pool",
    "VmRemovedEvent": "it was removed",
}
"""What each kind of event says of a VM. Kinds that are not here change nothing of a measurement."""


class OwnMoves:
    """When labctl itself moved which VM in this process. Safe to use from several threads.

    While a VM moves nobody else can move it (`TaskInProgress`), so a move by labctl's account at that time is labctl's.
    """

    def __init__(self) -> None:
        self._spans: dict[str, list[list[float]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def moving(self, machine: vim.VirtualMachine) -> Iterator[None]:
        """For as long as the block runs, labctl moves this VM."""
        span = [time.time(), math.inf]
        with self._lock:
            self._spans.setdefault(machine._GetMoId(), []).append(span)
        try:
            yield
        finally:
            span[1] = time.time()

    def spans(self, machine: vim.VirtualMachine) -> tuple[tuple[float, float], ...]:
        """When it did: begin and end in epoch seconds, the end infinite while it does."""
        with self._lock:
            return tuple((begin, end) for begin, end in self._spans.get(machine._GetMoId(), []))


@dataclass(frozen=True, kw_only=True)
class VmEvent:
    """One event of a VM. `at` is epoch seconds by the worker's clock."""

    kind: str
    """`VmMigratedEvent`, or the id of an event that has no type of its own (`com.vmware.vc.…`)."""
    at: float
    user: str
    host: str
    """The host that it speaks of, after a move the one that it came to; empty: none."""
    message: str


def events_of(session: Session, machine: vim.VirtualMachine, *, since: float) -> tuple[VmEvent, ...]:
    """What vCenter remembers of a VM since then (epoch seconds by the worker's clock), oldest first. Two calls.

    Empty where it remembers nothing, as an ESXi host that stands alone may. Raises `LabError`.
    """
    manager = session.content.eventManager
    if manager is None:
        return ()
    ahead = clock_ahead(session)
    begin = since - CLOCK_SECONDS
    by_entity = vim.event.EventFilterSpec.ByEntity(entity=machine, recursion="self")
    by_time = vim.event.EventFilterSpec.ByTime(beginTime=datetime.fromtimestamp(begin + ahead, UTC))
    wanted = vim.event.EventFilterSpec(entity=by_entity, time=by_time, maxCount=MOST_EVENTS)
    try:
        found = manager.QueryEvents(wanted)
    except (vmodl.fault.NotSupported, vmodl.fault.NotImplemented, vmodl.fault.ManagedObjectNotFound):
        return ()
    told = [_told(event, ahead) for event in found or []]
    return tuple(sorted((event for event in told if event.at >= begin), key=lambda event: event.at))


def incidents(session: Session, machine: vim.VirtualMachine, *, since: float, own: OwnMoves) -> tuple[str, ...]:
    """What others did to a VM since then (epoch seconds by the worker's clock), in sentences. Raises `LabError`.

    That vCenter can't be asked is an error, never silence: who asks wants to know that nothing happened.
    """
    events = events_of(session, machine, since=since)
    if not events:
        return ()
    return judge(events, us=account(session), own=own.spans(machine))


def judge(events: Sequence[VmEvent], *, us: str, own: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """Those events that were not labctl's own doing and matter to a measurement, in sentences.

    `us` is labctl's account, `own` when labctl moved the VM itself (begin and end, epoch seconds).
    """
    told = []
    for event in events:
        what = _TOLD.get(event.kind)
        if what is None or _is_ours(event, us, own):
            continue
        where = f" (host {event.host})" if event.host else ""
        moment = datetime.fromtimestamp(event.at, UTC).strftime("%H:%M:%S")
        told.append(f"At {moment} UTC {what}{where}, {_by(event, us)}: {event.message or event.kind}")
    return tuple(told)


def account(session: Session) -> str:
    """How vCenter calls the account that labctl is logged in with, which is not always as it logged in."""
    current = property_of(session, session.content.sessionManager, "currentSession")
    return session.vcenter.login.user if current is None else str(current.userName)


def clock_ahead(session: Session) -> float:
    """Seconds by which the vCenter's clock is ahead of the worker's, known to within half the call that this takes."""
    before = time.time()
    theirs = session.now()
    return theirs - (before + time.time()) / 2


def same_account(one: str, other: str) -> bool:
    """Whether two names are one account: `VSPHERE.LOCAL\\Administrator`, `administrator@vsphere.local`."""
    return _account(one) == _account(other)


def _is_ours(event: VmEvent, us: str, own: Sequence[tuple[float, float]]) -> bool:
    if not same_account(event.user, us):
        return False
    if event.kind not in (*ARRIVALS, *FAILURES):
        return True
    return any(begin - CLOCK_SECONDS <= event.at <= end + CLOCK_SECONDS for begin, end in own)


def _by(event: VmEvent, us: str) -> str:
    if not event.user:
        return "by vCenter itself"
    if same_account(event.user, us):
        return f"by {event.user}, labctl's own account, but not by labctl"
    return f"by {event.user}"


def _told(event: vim.event.Event, ahead: float) -> VmEvent:
    kind = str(getattr(event, "eventTypeId", "") or type(event).__name__.rpartition(".")[2])
    host = event.host.name if event.host is not None else ""
    return VmEvent(
        kind=kind,
        at=event.createdTime.timestamp() - ahead,
        user=str(event.userName or ""),
        host=str(host),
        message=str(event.fullFormattedMessage or "").strip(),
    )


def _account(name: str) -> tuple[str, str]:
    """Domain and user, in small letters."""
    lowered = name.strip().lower()
    if "\\" in lowered:
        domain, _, user = lowered.partition("\\")
    else:
        user, _, domain = lowered.partition("@")
    return domain, user
