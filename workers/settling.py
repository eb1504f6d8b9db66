"""Settling: before a transfer its hosts are looked at, and waited for until they do nothing else.

On a machine that is worker and host at once labctl itself is a part of the load. It sleeps while it looks, and the rest of
it (heartbeats, the engine) needs about one hundredth of a core: limits below that are never kept there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from labctl import clock
from labctl.errors import LabError
from labctl.model.campaign import NotQuiet, QuietWait
from labctl.model.lab import QuietLimits
from labctl.model.result import Fact
from workers.guard import Deadline, Guard
from workers.hypervisors.base import HostLoad
from workers.machines import Machines
from workers.together import together

LOOK_SECONDS = 2.0
"""Seconds between two looks at hosts that are waited for."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a host: what it was doing, and what of that is beyond the limits, in words; nothing: it is quiet."""

    host: str
    load: HostLoad
    others: int
    """Running VMs that are not of the attempt."""
    beyond: str


def settle(
    wait: QuietWait,
    limits: QuietLimits,
    hosts: Sequence[str],
    machines: Machines,
    guard: Guard,
    *,
    ours: Collection[str],
    keep: Callable[[str, Mapping[str, Fact]], None],
) -> str:
    """Wait until all hosts are within the limits, and return nothing; or what they were still doing after the wait.

    `ours` are the UUIDs of the attempt's VMs. What was seen last is given to `keep`, host by host. Raises `LabError`:
    `not-quiet` when the campaign would rather skip such a transfer, and whatever keeps a host from being looked at.
    """
    began, deadline = clock.monotonic(), Deadline.after(wait.wait)
    while True:
        looks = together(hosts, lambda host: look(host, limits, machines, ours))
        loud = [one for one in looks if one.beyond]
        if not loud or deadline.passed:
            break
        guard.sleep(min(LOOK_SECONDS, deadline.left))
    waited = clock.monotonic() - began
    for one in looks:
        keep(one.host, facts_of(one, waited))
    noise = "; ".join(f"host {one.host}: {one.beyond}" for one in loud)
    if noise and wait.then is NotQuiet.SKIP:
        raise LabError(
            f"Host {loud[0].host} is not quiet enough to be measured on.",
            kind="not-quiet",
            why=f"After {wait.wait:g} s, {noise}.",
            todo="See what else runs there, raise `quiet` in the lab file, or let the campaign wait longer or run all the same.",
            host=loud[0].host,
        )
    return noise


def look(host: str, limits: QuietLimits, machines: Machines, ours: Collection[str]) -> Look:
    """Look at a host once."""
    load = machines.driver(host).load(host)
    others = len(load.running.difference(ours))
    return Look(host=host, load=load, others=others, beyond=", ".join(beyond(load, others, limits)))


def facts_of(seen: Look, waited: float) -> dict[str, Fact]:
    """What is kept of a look. `waited` is how many seconds were spent until then."""
    return {
        "quiet.cpu": round(seen.load.cpu, 4),
        "quiet.load": round(seen.load.load, 3) if seen.load.load is not None else None,
        "quiet.network": round(seen.load.network) if seen.load.network is not None else None,
        "quiet.other_vms": seen.others,
        "quiet.waited": round(waited, 2),
    }


def beyond(load: HostLoad, others: int, limits: QuietLimits) -> list[str]:
    """What is more than the limits allow. What is not known is not beyond them."""
    said = []
    if limits.cpu is not None and load.cpu > limits.cpu:
        said.append(f"{load.cpu:.0%} of its processors are busy (limit {limits.cpu:.3g})")
    if limits.load is not None and load.load is not None and load.load > limits.load:
        said.append(f"load average {load.load:.2f} per core (limit {limits.load:g})")
    if limits.network is not None and load.network is not None and load.network > limits.network:
        said.append(f"{load.network / 1e6:.3g} Mbit/s on its network (limit {limits.network / 1e6:g})")
    if limits.other_vms is not None and others > limits.other_vms:
        said.append(f"{others} other VMs run (limit {limits.other_vms})")
    return said
