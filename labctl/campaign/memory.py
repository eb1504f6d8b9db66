"""What a process keeps in mind of a store for scheduling. Losing it costs a moment's work, nothing else."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from weakref import WeakKeyDictionary

from labctl.campaign.known import KnownCampaign
from labctl.plan.choose import Places, Resources, WaitingRun
from labctl.plan.resources import host_resource
from labctl.store import PendingRun, QueuedCampaign, Store

AHEAD = 256
"""So many waiting runs of a campaign are looked at in one call for one whose hosts are free."""
_SPARE = 8
"""So many more runs than there are free machines are read at first."""


class Memory:
    """What is kept in mind of the active campaigns of a store. Threads with one store take turns (`lock`)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.told: set[int] = set()
        """Campaigns of which it has been told that they have started."""
        self.said: dict[int, float] = {}
        """When the hold of each campaign was written last (monotonic)."""
        self._resources: dict[str, Resources] = {}
        self._campaigns: dict[int, KnownCampaign] = {}
        self._considered: dict[int, dict[str, int]] = {}

    def resources(self, lab: str) -> Resources:
        """The numbers of what runs lease in a lab."""
        return self._resources.setdefault(lab, Resources())

    def known(self, store: Store, item: QueuedCampaign) -> KnownCampaign:
        """What is known of a campaign."""
        if item.id not in self._campaigns:
            self._campaigns[item.id] = KnownCampaign(store.head(item.id), self.resources(item.lab))
        return self._campaigns[item.id]

    def considered(self, campaign_id: int) -> dict[str, int]:
        """Cells of a campaign with adaptive repeats that needed no more runs, with how many they had then."""
        return self._considered.setdefault(campaign_id, {})

    def keep_only(self, campaigns: Iterable[int]) -> None:
        """Forget all campaigns but these."""
        active = frozenset(campaigns)
        for by_campaign in (self.said, self._campaigns, self._considered):
            for gone in by_campaign.keys() - active:
                del by_campaign[gone]
        self.told &= active


_MEMORIES: WeakKeyDictionary[Store, Memory] = WeakKeyDictionary()


def memory_of(store: Store) -> Memory:
    """What this process keeps in mind of a store."""
    return _MEMORIES.setdefault(store, Memory())


class Reader:
    """The waiting runs of a campaign in its order of work, read only as far as they are asked for.

    `free` says how many machines are, so many runs are read at first. Runs each of whose placements has a host that is
    `out` are not among them: they are `without_host`.
    """

    def __init__(self, store: Store, known: KnownCampaign, *, free: int, out: Collection[str]) -> None:
        self.runs: dict[int, PendingRun] = {}
        """Those that were read and may still be made, by id."""
        self.without_host: list[int] = []
        self.complete = False
        """Whether all that may be started now were read."""
        self._store = store
        self._known = known
        self._first = min(free + _SPARE, AHEAD)
        self._out = tuple(host_resource(name) for name in out)
        self._nowhere: dict[Places, bool] = {}

    def __iter__(self) -> Iterator[WaitingRun]:
        read: set[int] = set()
        for limit in dict.fromkeys((self._first, AHEAD)):
            page = self._store.pending_runs(self._known.id, limit=limit)
            self.complete = len(page) < limit
            for run in page:
                if run.id in read:
                    continue
                read.add(run.id)
                waiting = self._known.waiting_run(self._store, run)
                if self._can_be_nowhere(waiting.places):
                    self.without_host.append(run.id)
                else:
                    self.runs[run.id] = run
                    yield waiting
            if self.complete:
                return

    def _can_be_nowhere(self, places: Places) -> bool:
        if not self._out:
            return False
        if places not in self._nowhere:
            self._nowhere[places] = places.all_need(self._out)
        return self._nowhere[places]
