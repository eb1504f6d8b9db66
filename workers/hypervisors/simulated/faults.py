"""Faults of a simulated world: a plan that is written beforehand, and what it does to every operation.

The plan is the file `faults.json` of the world. Every operation of the driver and of the channels is a line at which a
fault may strike; occurrences are counted in files, so that a fault strikes once however many processes there are and
whichever of them dies.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from labctl import clock
from workers.hypervisors.simulated.figures import content_of

FILE = "faults.json"
HITS = "hits.jsonl"
_COUNTS = "faults"

FOR_EVER = 1e18


class FaultKind(StrEnum):
    """What goes wrong."""

    HOST_LOST = "host-lost"
    """The host answers nothing."""
    HANG = "hang"
    """The call comes back only when its deadline has passed."""
    FAIL = "fail"
    """The operation doesn't work, though the host answers."""
    VANISH = "vanish"
    """The VM is suddenly gone."""
    DIE = "die"
    """The process that asks for the operation is killed with SIGKILL before it begins."""
    NEVER_BOOTS = "never-boots"
    """The VM is created, its guest never answers. Operation `create`."""
    CONNECTION_LOST = "connection-lost"
    """The connection of a transfer is lost half way. Operation `start`."""
    NEVER_CONVERGES = "never-converges"
    """A migration copies for ever. Operation `migrate`."""
    SLOW = "slow"
    """Everything of the host takes `factor` times as long, and its transfers move so much less."""
    BUSY = "busy"
    """Somebody else uses the host: the share `factor` of its CPUs."""


AT_ONCE = frozenset({FaultKind.HOST_LOST, FaultKind.HANG, FaultKind.FAIL, FaultKind.VANISH, FaultKind.DIE})
"""Faults that strike before an operation, whatever it is. The others change what the operation does."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: what, and to which operations it happens. `operation` and `host` are any when empty.

    It strikes every operation that fits, or, with `nth`, only the n-th of them, counted from 1. `start` and `end` are
    seconds of `labctl.clock.monotonic`.
    """

    kind: FaultKind
    operation: str = ""
    host: str = ""
    nth: int = 0
    start: float = 0.0
    end: float = FOR_EVER
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A fault that has struck: which, on what, and when by `labctl.clock.monotonic`."""

    kind: FaultKind
    operation: str
    host: str
    vm: str
    at: float


class Faults:
    """The faults of one world, as this process meets them."""

    def __init__(self, directory: Path, faults: Iterable[Fault]) -> None:
        self._directory = directory
        self._faults = tuple(enumerate(faults))

    @classmethod
    def read(cls, directory: Path) -> Faults:
        """The plan of a world; no faults when it has none."""
        return cls(directory, _planned(content_of(f"{directory}/{FILE}")))

    def hit(self, operation: str, host: str, vm: str = "") -> FaultKind | None:
        """The fault that happens at this line; None when all goes well. `die` is carried out here."""
        found: FaultKind | None = None
        for index, fault in self._faults:
            if fault.kind in AT_ONCE and self._applies(index, fault, operation, host):
                self._note(fault, operation, host, vm)
                if fault.kind is FaultKind.DIE:
                    os.kill(os.getpid(), signal.SIGKILL)
                found = found or fault.kind
        return found

    def changes(self, kind: FaultKind, operation: str, host: str, vm: str = "") -> bool:
        """Whether an operation goes wrong in this way."""
        for index, fault in self._faults:
            if fault.kind is kind and self._applies(index, fault, operation, host):
                self._note(fault, operation, host, vm)
                return True
        return False

    def factor(self, kind: FaultKind, host: str, *, otherwise: float) -> float:
        """How slow or busy a host is now."""
        if not self._faults:
            return otherwise
        now = clock.monotonic()
        return next(
            (fault.factor for _, fault in self._faults if fault.kind is kind and _fits(fault, "", host, now)), otherwise
        )

    def spans(self, kind: FaultKind, host: str) -> tuple[Fault, ...]:
        """The faults of this kind that a host has at any time."""
        return tuple(fault for _, fault in self._faults if fault.kind is kind and fault.host in ("", host))

    def _applies(self, index: int, fault: Fault, operation: str, host: str) -> bool:
        if not _fits(fault, operation, host, clock.monotonic()):
            return False
        return not fault.nth or self._count(index) == fault.nth

    def _count(self, index: int) -> int:
        """How often the operations of a fault have happened, over all processes: one byte is appended for each, and
        where that byte came to lie is the number."""
        directory = self._directory / _COUNTS
        directory.mkdir(exist_ok=True)
        file = os.open(directory / str(index), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, b".")
            return os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)

    def _note(self, fault: Fault, operation: str, host: str, vm: str) -> None:
        hit = Hit(kind=fault.kind, operation=operation, host=host, vm=vm, at=clock.monotonic())
        file = os.open(self._directory / HITS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (json.dumps(asdict(hit)) + "\n").encode())
        finally:
            os.close(file)


def write_faults(directory: Path, faults: Iterable[Fault]) -> None:
    """Write the plan of a world. Attempts that begin from now on meet its faults."""
    directory.mkdir(parents=True, exist_ok=True)
    beside = directory / f"{FILE}.{os.getpid()}"
    beside.write_text(json.dumps([asdict(fault) for fault in faults], indent=1))
    beside.replace(directory / FILE)


def hits(directory: Path) -> tuple[Hit, ...]:
    """The faults that have struck in a world, oldest first."""
    try:
        lines = (directory / HITS).read_text().splitlines()
    except FileNotFoundError:
        return ()
    return tuple(_hit(json.loads(line)) for line in lines)


def _fits(fault: Fault, operation: str, host: str, now: float) -> bool:
    return (
        fault.host in ("", host)
        and (not operation or fault.operation in ("", operation))
        and fault.start <= now < fault.end
    )


@lru_cache(maxsize=8)
def _planned(content: bytes) -> tuple[Fault, ...]:
    return tuple(_fault(entry) for entry in json.loads(content)) if content else ()


def _fault(entry: Mapping[str, object]) -> Fault:
    values = dict(entry) | {"kind": FaultKind(str(entry["kind"]))}
    return Fault(**values)  # type: ignore[arg-type]


def _hit(entry: Mapping[str, object]) -> Hit:
    values = dict(entry) | {"kind": FaultKind(str(entry["kind"]))}
    return Hit(**values)  # type: ignore[arg-type]
