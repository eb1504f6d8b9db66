"""What a service serves: which queues, with how many slots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labctl.campaign.queues import queue_of
from labctl.campaign.worker_files import Wanted
from labctl.model.lab import Lab
from labctl.plan.resources import machines_of
from labctl.store import Store

NO_QUEUE = "labctl.none"
"""The queue of a worker that has nothing to serve yet: nothing is ever sent there."""
SLOTS_FOR_CLEANING = 1
"""Slots beside those for attempts, so that no attempt waits for the cleaning of a host that doesn't answer."""
MOST_SLOTS = 64
"""Slots that a worker has at the most when it is not told how many: each is a process."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What a service serves, and how.

    Without `broker` (URL) it has a private Redis. Without `queues` it serves those of all labs that have something to do,
    and without `slots` it has as many as these have machines. `only` restricts it to one campaign, with whose end it
    ends; one that doesn't `schedule` carries out what others start. At its end attempts in progress may finish for `grace`
    seconds. `keep_raw` says for how many seconds raw outputs are kept.
    """

    state: Path
    store_url: str
    broker: str | None = None
    queues: tuple[str, ...] | None = None
    slots: int | None = None
    only: int | None = None
    schedules: bool = True
    grace: float = 0.0
    keep_raw: float | None = None
    app: str = "workers.app"
    """The Celery app of its worker."""


class Served:
    """What there is to serve. It grows with the campaigns that come, and never shrinks."""

    def __init__(self, store: Store, serving: Serving) -> None:
        self._store = store
        self._serving = serving
        self._known: set[int] = set()
        self._labs: dict[str, tuple[str, int]] = {}
        """The queue of each lab, and how many machines it has."""

    def wanted(self) -> Wanted:
        """The queues and slots of the worker, as the campaigns are now."""
        for campaign_id in self._at_work() - self._known:
            self._known.add(campaign_id)
            self._meet(self._store.head(campaign_id).lab)
        queues = self._serving.queues
        if queues is None:
            queues = tuple(sorted({queue for queue, _ in self._labs.values()}))
        machines = sum(count for queue, count in self._labs.values() if queue in queues)
        slots = self._serving.slots or min(max(1, machines) + SLOTS_FOR_CLEANING, MOST_SLOTS)
        return Wanted(queues=queues or (NO_QUEUE,), slots=slots)

    def _at_work(self) -> set[int]:
        """Campaigns with something to do: runs to start, or attempts to end and to clean up after, or VMs to remove."""
        if self._serving.only is not None:
            return {self._serving.only}
        busy = {line.campaign_id for line in self._store.leases()} | {vm.campaign_id for vm in self._store.live_vms()}
        return {queued.id for queued in self._store.queue()} | busy

    def _meet(self, lab: Lab) -> None:
        _, known = self._labs.get(lab.name, ("", 0))
        self._labs[lab.name] = queue_of(lab), max(known, machines_of(lab))
