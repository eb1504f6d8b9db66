"""What a Hyper-V host is doing: two looks at its counters, half a second apart, in which nobody asks it anything."""

from __future__ import annotations

from dataclasses import dataclass

from workers.hypervisors.base import HostLoad
from workers.hypervisors.hyperv import vm as vms
from workers.hypervisors.hyperv.answers import Answer
from workers.hypervisors.hyperv.connection import Connections

_SECOND = 10_000_000
"""Windows counts in units of 100 ns."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What a host has counted up to a moment: `at` and `busy` (of each logical processor) in 100 ns."""

    at: int
    busy: tuple[int, ...]
    octets: int
    """Over all its physical adapters, both ways."""


def host_load(connections: Connections, host: str) -> HostLoad:
    """What a host does for a moment. Windows has no load average.

    The processors are those of the hypervisor: the parent partition's own don't show what VMs use. VMs of ours have the
    UUID that the store knows, others their VMId.
    """
    answer = connections.call(host, "host-load", {})
    running = {one.lower() for one in answer.texts("running")}
    before, after = _counters(answer.item("before")), _counters(answer.item("after"))
    return HostLoad(
        cpu=busy_share(before, after),
        running=frozenset(
            one.notes.uuid if one.notes is not None else one.id
            for one in vms.listing(connections, host)
            if one.id.lower() in running
        ),
        load=None,
        network=rate(before, after),
    )


def busy_share(before: Counters, after: Counters) -> float:
    """The share of all processors that was busy between two looks, 0 to 1."""
    elapsed = (after.at - before.at) * min(len(before.busy), len(after.busy))
    return min(1.0, max(0.0, (sum(after.busy) - sum(before.busy)) / elapsed)) if elapsed > 0 else 0.0


def rate(before: Counters, after: Counters) -> float:
    """bit/s between two looks. A counter that began anew in between counts as nothing moved."""
    seconds = (after.at - before.at) / _SECOND
    return 8 * max(0, after.octets - before.octets) / seconds if seconds > 0 else 0.0


def _counters(answer: Answer) -> Counters:
    return Counters(at=answer.whole("at"), busy=answer.wholes("busy"), octets=answer.whole("octets"))
