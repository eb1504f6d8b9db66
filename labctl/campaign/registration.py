"""What a service says of itself in the store, and whom it strikes off there: everybody sees who works, and on what."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from labctl import clock
from labctl.campaign.liveness import Stillness
from labctl.campaign.processes import has_died, process_name, this_machine, this_process
from labctl.campaign.session import Session
from labctl.campaign.versions import code_version
from labctl.campaign.workers import ENGINE, WORKER, campaign_scope, worker_lines
from labctl.errors import LabError
from labctl.store import Store, WorkerRecord

_BEAT_SECONDS = 5.0
_GONE_SECONDS = 300.0
"""Whoever on another machine has given no sign of life for so long is struck off. If it lives it comes back by itself."""


class Registration:
    """The rows of one service: an `engine` if it starts runs, and a `worker` for the process that carries them out. An
    engine of `only` one campaign says so in place of queues."""

    def __init__(self, store: Store, *, schedules: bool, only: int | None = None) -> None:
        self._store = store
        self._schedules = schedules
        self._only = (campaign_scope(only),) if only is not None else ()
        self._rows: dict[str, WorkerRecord] = {}
        """What is in the store, by role."""
        self._beaten = 0.0
        self._stillness = Stillness()

    def look(self, running: Session) -> None:
        """Say what there is to say, when it has changed or every few seconds, and strike off who has died."""
        rows = {row.role: row for row in self._true_rows(running)}
        changed = rows.keys() != self._rows.keys() or not all(
            _same(self._rows[role], row) for role, row in rows.items()
        )
        if not changed and time.monotonic() - self._beaten < _BEAT_SECONDS:
            return
        self._beaten = time.monotonic()
        for role, row in self._rows.items():
            if role not in rows or rows[role].name != row.name:
                self._store.remove_worker(row.name)
        for role, row in rows.items():
            known = role in self._rows and _same(self._rows[role], row)
            if not known or not self._store.beat_worker(row.name, doing=row.doing):
                self._store.register_worker(row)
        self._rows = rows
        self._strike_off()

    def end(self) -> None:
        """Say that the service has ended."""
        with suppress(LabError):
            for row in self._rows.values():
                self._store.remove_worker(row.name)

    def _true_rows(self, running: Session) -> Iterator[WorkerRecord]:
        """What is the case now."""
        if self._schedules:
            yield self._row(ENGINE, os.getpid(), queues=self._only, doing=running.trouble)
        process = running.kept.process
        if process is not None and running.kept.up:
            wanted, pulse = running.worker.wanted, running.worker.files.pulse()
            busy = f"{pulse.busy} of {wanted.slots} slots are busy" if pulse is not None else ""
            yield self._row(
                WORKER, process.pid, queues=wanted.queues, slots=wanted.slots, doing=running.trouble or busy
            )

    def _row(self, role: str, pid: int, *, doing: str, queues: tuple[str, ...] = (), slots: int = 0) -> WorkerRecord:
        return WorkerRecord(
            name=f"{role}@{process_name(pid)}",
            role=role,
            machine=this_machine(),
            pid=pid,
            version=code_version(),
            queues=queues,
            slots=slots,
            started=clock.now(),
            doing=doing,
        )

    def _strike_off(self) -> None:
        rows = self._store.workers()
        still = self._stillness.seconds({row.name: row.beats for row in rows})
        for row in rows:
            if has_died(row.name.partition("@")[2]) or still[row.name] > _GONE_SECONDS:
                self._store.remove_worker(row.name)


def other_engines(store: Store, *, of_all: bool = False) -> bool:
    """Whether another service than this one starts runs, as far as is known; with `of_all`, those of all campaigns.

    One that has been silent for a minute, which is twelve signs of life, counts as gone. To be wrong with that costs little:
    a VM is made anew, or a run starts a little later. To wait for one that is gone would leave VMs behind.
    """
    mine = f"{ENGINE}@{this_process()}"
    engines = (line for line in worker_lines(store) if line.record.role == ENGINE and line.record.name != mine)
    return any(line.lives and not (of_all and line.record.queues) for line in engines)


def _same(before: WorkerRecord, now: WorkerRecord) -> bool:
    """Whether a row says the same but for what is being done."""
    return (before.name, before.queues, before.slots) == (now.name, now.queues, now.slots)
