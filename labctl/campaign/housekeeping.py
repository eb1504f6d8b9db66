"""Keeping house: nothing new is started on a disk that is nearly full, old raw outputs are forgotten, results that the
store would not take are taken up.

The disk is that of the engine's machine: its state directory and its store. Workers on other machines write nothing but
their logs, and what becomes of a run is decided here before it is started, so they look at no disk of their own.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labctl import clock
from labctl.campaign import unstored
from labctl.errors import LabError, SpecError
from labctl.model.outcome import Purpose
from labctl.spec.values import BadValue, parse_bytes
from labctl.store import Event, Store

RESERVE = "LABCTL_RESERVE"
"""The environment variable that says how much disk space is kept back: `2 GB`, or `10 %` of the file system."""
LOOK_SECONDS = 5.0
"""The disk is looked at no more often than this."""
AGAIN_SHARE = 1.1
"""Work goes on with this many times the reserve, so that it doesn't stop and go on by turns."""
DAY_SECONDS = 86_400.0
PRUNED_AT_ONCE = 500
"""Raw outputs that are forgotten with one look, so that nothing waits long for the store."""
VACUUM_BYTES = 16 * 2**20
VACUUM_SHARE = 0.1
"""A vacuum must give back at least so many bytes and this share of the database."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Disk space that is kept back: the lesser of so many bytes and this share of the file system (0 to 1)."""

    bytes: float = 500e6
    share: float = 0.05

    def of(self, total: float) -> float:
        """The bytes that are kept back on a file system of this size."""
        return min(self.bytes, self.share * total)


class Housekeeping:
    """The housekeeping of one engine. `keep_raw` says for how many seconds raw outputs are kept; None: for ever.

    One that starts nothing itself doesn't tell either that nothing is started.
    """

    def __init__(
        self,
        store: Store,
        state: Path,
        *,
        keep_raw: float | None = None,
        tells: bool = True,
        reserve: Reserve | None = None,
    ) -> None:
        """Raises `SpecError` when the environment's reserve is none."""
        self._store = store
        self._state = state
        self._keep_raw = keep_raw
        self._tells = tells
        self._reserve = reserve or reserve_of(os.environ.get(RESERVE, ""))
        self._looked: float | None = None
        self._pruned: float | None = None
        self._vacuum_due = False
        self._hold = ""
        self._told: str | None = None

    def look(self) -> str:
        """Do what is due, and say what keeps runs from being started: `disk: ...`, or nothing.

        May be called as often as one likes, and is called before lost attempts are given up: the worker of a result that
        is taken up may be gone. Raises nothing that the disk or the store is to blame for.
        """
        with suppress(LabError):
            take_up(self._store)
        now = time.monotonic()
        if self._looked is None or now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._hold = disk_hold(disks_of(self._store, self._state), self._reserve, held=bool(self._hold))
            with suppress(LabError):
                self._keep(now)
        return self._hold

    def _keep(self, now: float) -> None:
        if self._tells and self._hold != self._told:
            tell_disk(self._store, self._hold)
            self._told = self._hold
        if self._hold:
            return
        keep_room(self._store)
        if self._keep_raw is not None and (self._pruned is None or now - self._pruned >= DAY_SECONDS):
            self._prune(now, self._keep_raw)
        if self._vacuum_due and not self._store.active_attempts():
            vacuum(self._store)
            self._vacuum_due = False

    def _prune(self, now: float, keep_raw: float) -> None:
        """Forget some old raw outputs with every look until none is left, then rest for a day."""
        if not prune(self._store, keep_raw):
            self._pruned = now
            self._vacuum_due = True


def reserve_of(text: str) -> Reserve:
    """The reserve that a text asks for, such as `2 GB` or `10 %`; the usual one for none. Raises `SpecError`."""
    allowed = "a size such as 2 GB, or a share of the disk such as 10 %"
    if not text.strip():
        return Reserve()
    try:
        if text.strip().endswith("%"):
            share = float(text.strip().removesuffix("%")) / 100
            if not 0 <= share < 1:
                raise BadValue("must be below 100 %", allowed=allowed)
            return Reserve(bytes=float("inf"), share=share)
        return Reserve(bytes=float(parse_bytes(text, allowed=allowed)), share=1.0)
    except (BadValue, ValueError) as error:
        raise SpecError(f"{RESERVE} is {text!r}.", why=str(error), todo=f"Give {allowed}, or unset it.") from error


def disks_of(store: Store, state: Path) -> tuple[Path, ...]:
    """A path on each file system that an engine writes to: its state directory and its store."""
    folders = [state] if store.database is None else [state, store.database.parent]
    by_device: dict[int, Path] = {}
    for folder in folders:
        try:
            by_device.setdefault(folder.stat().st_dev, folder)
        except OSError:
            return (folder,)
    return tuple(by_device.values())


def disk_hold(folders: Iterable[Path], reserve: Reserve, *, held: bool = False) -> str:
    """Why nothing must be started now, because one of these file systems has too little free space; else nothing.

    When work was held before, somewhat more than the reserve must be free.
    """
    for folder in folders:
        try:
            disk = shutil.disk_usage(folder)
        except OSError as error:
            return f"disk: {folder} can't be looked at: {error.strerror}"
        kept = reserve.of(disk.total)
        if disk.free < kept * (AGAIN_SHARE if held else 1.0):
            return (
                f"disk: {_megabytes(disk.free)} are free in {folder}, and {_megabytes(kept)} are kept back; "
                "it goes on by itself when there is room again"
            )
    return ""


def tell_disk(store: Store, hold: str) -> None:
    """Keep as an event of every active campaign that it waits for disk space (`disk`) or no longer does (`disk-back`),
    once for every time, however many engines look."""
    for item in store.queue():
        if item.purpose is Purpose.HEALTH:
            continue
        kinds = [event.kind for event in store.events(item.id) if event.kind in ("disk", "disk-back")]
        if (kinds[-1:] == ["disk"]) == bool(hold):
            continue
        kind = "disk" if hold else "disk-back"
        what = f"Nothing new is started: {hold.removeprefix('disk: ')}." if hold else "There is room on the disk again."
        store.tell(
            Event(
                scope=f"campaign-{item.id}",
                key=f"{kind}-{kinds.count(kind) + 1}",
                kind=kind,
                what=what,
                at=clock.now(),
                campaign_id=item.id,
            )
        )


def take_up(store: Store) -> int:
    """Hand in the results that the store would not take before. Returns how many were accepted. Raises `LabError`."""
    directory = unstored.directory_of(store)
    return unstored.take_up(store, directory) if directory is not None else 0


def keep_room(store: Store) -> None:
    """Keep room on the disk for results that the store won't take."""
    directory = unstored.directory_of(store)
    if directory is not None:
        try:
            unstored.keep_room(directory)
        except OSError as error:
            log.warning("no room is kept for results in %s: %s", directory, error)


def prune(store: Store, keep_seconds: float) -> int:
    """Forget some of the raw outputs that are older than this. Returns how many: 0 when none is left."""
    count, size = store.prune_raw(older_than=clock.now() - keep_seconds, limit=PRUNED_AT_ONCE)
    if count:
        log.info("%d raw outputs of %s were forgotten", count, _megabytes(size))
    return count


def vacuum(store: Store) -> bool:
    """Give the space of forgotten outputs back, when that is worth while and the disk has room for it. Must only be
    called while no attempt is in progress: writers wait until it is done."""
    free, size = store.reclaimable()
    if store.database is None or free < max(VACUUM_BYTES, VACUUM_SHARE * size):
        return False
    if shutil.disk_usage(store.database.parent).free < 2 * size:
        return False
    store.vacuum()
    log.info("the store gave %s back", _megabytes(free))
    return True


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"
