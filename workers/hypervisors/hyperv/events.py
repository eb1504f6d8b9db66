"""What the event logs of Hyper-V say about a VM: the blackout of its migration, and what others did to it.

Events are told by number and properties, never by text, which is in the language of the host; and asked for by how long ago
they were, so that the clocks of worker and host need not agree.

What to try first on a real host: `Properties` of event 20415 after one move, with its text beside it; and whether a Windows
Server 2012 R2 writes it at all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from workers.guard import Deadline
from workers.hypervisors.hyperv.connection import Connections
from workers.powershell.base import Json

EVENT_SECONDS = 5.0
"""How long the event of a completed migration is waited for."""

LOOK_SECONDS = 0.5

BLACKOUT = 20415
"""VMMS: a live migration has completed. Properties: name of the VM, VMId, blackout in seconds, to a tenth."""
LONG_BLACKOUT = 20417
"""The same, with a blackout that Hyper-V calls unexpectedly long."""

MOVES = frozenset({BLACKOUT, LONG_BLACKOUT})

INCIDENTS = {
    BLACKOUT: "It was moved to another host.",
    LONG_BLACKOUT: "It was moved to another host, with a long blackout.",
    18502: "It was turned off.",
    18504: "It was shut down.",
    18508: "It was shut down by its guest.",
    18510: "It was saved to disk.",
    18512: "It was reset.",
    18514: "It was reset by its guest.",
    18560: "It was reset after a triple fault of a virtual processor.",
    18590: "Its guest has crashed.",
}
"""What may happen to a VM, by the number of the event (VMMS and worker process)."""


def happened(connections: Connections, host: str, vm_id: str, *, since: float) -> tuple[tuple[int, float], ...]:
    """What happened to a VM on a host since then: numbers of events and when they were, in epoch seconds of this machine."""
    now = time.time()
    milliseconds = max(0, round((now - since) * 1000))
    document: dict[str, Json] = {"id": vm_id, "sinceMs": milliseconds, "ids": [*INCIDENTS]}
    events = connections.call(host, "vm-events", document).items("events")
    return tuple((event.whole("id"), now - event.whole("agoMs") / 1000) for event in events)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A migration that has completed, as the log of its source has it."""

    event: int
    downtime_ms: int | None
    """The blackout; None when the event doesn't name it."""
    ended: float
    """In epoch seconds of this machine, as far off as the way of one answer."""


def completed(connections: Connections, host: str, vm_id: str, *, began: float) -> Completed | None:
    """The end of a migration that was begun at that time of the monotonic clock; None when the log has no such event.

    Raises `LabError` when the host can't be asked.
    """
    deadline = Deadline.after(EVENT_SECONDS)
    while True:
        milliseconds = round((time.monotonic() - began) * 1000)
        document: dict[str, Json] = {"id": vm_id, "sinceMs": milliseconds, "ids": [*sorted(MOVES)]}
        found = connections.call(host, "vm-events", document).items("events")
        if found:
            last = found[-1]
            return Completed(
                event=last.whole("id"),
                downtime_ms=blackout_ms(last.texts("properties")),
                ended=time.time() - last.whole("agoMs") / 1000,
            )
        if deadline.passed:
            return None
        time.sleep(min(LOOK_SECONDS, deadline.left))


def blackout_ms(properties: tuple[str, ...]) -> int | None:
    """The blackout that the event of a completed migration names, in ms; its decimal point may be a comma."""
    try:
        seconds = float(properties[2].replace(",", "."))
    except (IndexError, ValueError):
        return None
    return round(seconds * 1000) if 0 <= seconds < 1e6 else None
