"""Who works for a lab, as people are told: the processes that start runs and those that carry them out."""

from __future__ import annotations

from dataclasses import dataclass

from labctl import clock
from labctl.campaign.processes import has_died
from labctl.campaign.queues import queue_of
from labctl.model.lab import Lab
from labctl.store import Store, WorkerRecord

ENGINE, WORKER = "engine", "worker"
"""Roles: who starts runs, and who carries them out."""
SILENT_SECONDS = 60.0
"""A process that has said nothing for so long is told of as silent. They say something every 5 s."""


@dataclass(frozen=True, kw_only=True)
class WorkerLine:
    """A process that works, and for how many seconds it has said nothing."""

    record: WorkerRecord
    silent: float

    @property
    def lives(self) -> bool:
        """Whether it has said something lately, and is no process of this machine that has died since."""
        return self.silent < SILENT_SECONDS and not self.has_died

    @property
    def has_died(self) -> bool:
        """Whether it is known to have died; of processes of other machines that can't be known."""
        return has_died(self.record.name.partition("@")[2])


def worker_lines(store: Store) -> tuple[WorkerLine, ...]:
    """All processes that said that they work."""
    now = clock.now()
    return tuple(WorkerLine(record=record, silent=max(0.0, now - record.seen)) for record in store.workers())


def campaign_scope(campaign_id: int) -> str:
    """What an engine that starts runs of one campaign only has in place of queues."""
    return f"campaign-{campaign_id}"


def serving(store: Store, lab: Lab) -> tuple[WorkerLine, ...]:
    """The living processes that carry out runs of a lab."""
    return tuple(line for line in worker_lines(store) if line.lives and queue_of(lab) in line.record.queues)


def unserved(store: Store, lab: Lab, campaign_id: int) -> str:
    """Why nothing would become of the runs of a campaign now, because nobody starts them or carries them out, and what to
    do about it, in a sentence; empty when they are served."""
    queue = queue_of(lab)
    if not serving(store, lab):
        return f"No worker serves queue {queue}: start `labctl worker`."
    engines = (line.record.queues for line in worker_lines(store) if line.lives and line.record.role == ENGINE)
    if not any(not only or campaign_scope(campaign_id) in only for only in engines):
        return f"Workers serve queue {queue}, but nobody starts runs of campaign {campaign_id}: start `labctl worker`."
    return ""
