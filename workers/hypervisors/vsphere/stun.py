"""How long a VM stood still: what ESXi writes of it into its logs, because the API says nothing of it.

`vmware.log`, beside the VM's other files, has a line for each time that the VM's processors were stopped:

    2023-04-15T08:52:46.418Z In(05) vcpu-0 - Checkpoint_Unstun: vm stopped for 411683 us

(`| vcpu-0| I120:` instead of `In(05) vcpu-0 -` before vSphere 7). Snapshots, hot-added hardware and vMotion all do that; of a
vMotion it is told on the destination, whose log begins with the id of the migration. `vmkernel.log` of both hosts has the
phases of each migration by its id; from the end of pre-copy to the last page is the least that the VM stood still.
Source: Broadcom KB 436882 (vMotion stun time) and KB 432796 (hot add).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Stun:
    """One time that a VM was stopped: epoch seconds by the host's clock at its end, microseconds, and the id of the
    migration that it belongs to (empty: it was something else)."""

    at: float
    microseconds: int
    migration: str = ""


@dataclass(frozen=True, kw_only=True)
class SwitchOver:
    """The last phase of a migration as `vmkernel.log` has it: epoch seconds by that host's clock."""

    migration: str
    began: float
    """Pre-copy ended."""
    ended: float
    """The last page was sent, or had arrived, whichever this log says last."""

    @property
    def milliseconds(self) -> int:
        """Its length."""
        return round((self.ended - self.began) * 1000)


def stuns(vmware_log: str) -> tuple[Stun, ...]:
    """All stops of a VM that a `vmware.log` tells, in their order."""
    return tuple(_stuns(vmware_log))


def stun_of_migration(vmware_log: str, *, since: float, until: float) -> Stun | None:
    """The stop of the migration that a destination's `vmware.log` tells between two times (epoch seconds of the host's
    clock); None when it tells of none, or of several."""
    found = [stun for stun in stuns(vmware_log) if stun.migration and since <= stun.at <= until]
    return found[0] if len(found) == 1 else None


def switch_overs(vmkernel_log: str) -> tuple[SwitchOver, ...]:
    """The last phases of all migrations that a `vmkernel.log` tells whole, in their order."""
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    for line in vmkernel_log.splitlines():
        at = _moment(line)
        phase = _PHASE.search(line)
        if at is None or phase is None:
            continue
        migration = phase["migration"]
        if phase["began"]:
            began[migration] = at
        elif migration in began:
            ended[migration] = at
    return tuple(
        SwitchOver(migration=migration, began=at, ended=ended[migration])
        for migration, at in began.items()
        if migration in ended
    )


def _stuns(vmware_log: str) -> Iterator[Stun]:
    migration = ""
    for line in vmware_log.splitlines():
        arrival = _ARRIVAL.search(line)
        if arrival is not None:
            migration = arrival["migration"]
        stop = _STOP.search(line)
        at = _moment(line)
        if stop is not None and at is not None:
            yield Stun(at=at, microseconds=int(stop["microseconds"]), migration=migration)
            migration = ""  # a later stop is something else


def _moment(line: str) -> float | None:
    stamp = _STAMP.match(line)
    if stamp is None:
        return None
    try:
        return datetime.fromisoformat(stamp[1] + "+00:00").timestamp()
    except ValueError:
        return None


_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z")
_STOP = re.compile(r"Checkpoint_Unstun: vm stopped for (?P<microseconds>\d+) us")
_ARRIVAL = re.compile(
    r"(?:Migrate_Open: Restoring from <[^>]*> with migration id|Received migrate 'from' request for mid id) "
    r"(?P<migration>\d+)"
)
_PHASE = re.compile(
    r"VMotion\w*: \d+: (?P<migration>\d+) [SD]: "
    r"(?:(?P<began>Stopping pre-copy)|Sent all modified pages|Received all (?:changed|modified) pages)"
)
