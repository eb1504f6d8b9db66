"""The scheduler when anybody calls it at any time, and whatever else happens meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.campaign import commands, judgement, scheduler
from labctl.model.campaign import Adaptive
from labctl.model.lab import Limits
from labctl.model.outcome import CampaignState, HostState, Outcome
from labctl.model.scenario import Scenario
from labctl.model.window import Windows, WindowTime
from labctl.plan.windows import fits
from labctl.store import WORKER_LOST, AttemptHandle, CampaignHead, open_store, sqlite_url
from tests.campaign.byhand import lab_of
from tests.campaign.hurrying import hurry
from tests.campaign.outbox import Outbox, submitted
from tests.campaign.wall import Wall
from tests.store.invariants import check
from tests.store.processes import at_once
from tests.values import a_result

LAB = replace(lab_of("a", "b", "c", "d", "e"), limits=Limits(migrations_at_once=1))
ALL_SORTS: dict[str, object] = {
    "scenarios": (Scenario.SAME_HOST, Scenario.CROSS_HOST, Scenario.DURING_MIGRATION),
    "settings": {"seconds": 20.0},
}


def test_many_processes_that_advance_and_work_start_every_run_once(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    store = open_store(tmp_path)
    heads = [submitted(store, LAB, **ALL_SORTS, name=f"campaign {number}", priority=number // 2) for number in range(3)]
    said = at_once(hurry, [(url, seed) for seed in range(4)])
    assert sum(started for started, _ in said) == 3 * 12
    assert max(most for _, most in said) <= 1
    for head in heads:
        assert store.state(head.id) is CampaignState.DONE
        assert store.run_counts(head.id) == {Outcome.OK: 12}
        assert all(len(store.attempts_of_run(run.id)) == 1 for run in store.record(head.id).runs)
    assert store.leases() == ()
    store.close()


class Night:
    """A seeded night: campaigns, engines, workers, hosts and people, each doing whatever they may at any moment."""

    def __init__(self, seed: int, directory: Path, wall: Wall) -> None:
        self._source = random.Random(seed)
        self._wall = wall
        self._stores = [open_store(directory) for _ in range(2)]
        self.store = self._stores[0]
        self.heads = [self._submit(number) for number in range(3)]
        self._sent: dict[int, AttemptHandle] = {}
        self._claimed: dict[int, AttemptHandle] = {}
        self._lost: set[int] = set()

    def _submit(self, number: int) -> CampaignHead:
        opens = self._source.randrange(1440)
        night = Windows(
            zone="UTC", times=(WindowTime(start=opens, end=(opens + self._source.randrange(720, 1400)) % 1440),)
        )
        return submitted(
            self.store, LAB, **ALL_SORTS, name=str(number), priority=self._source.choice([0, 0, 5]), repeats=2,
            windows=self._source.choice([None, night]),
            back_off=self._source.choice([0.0, 30.0]), seed=self._source.randrange(100),
            adaptive=self._source.choice([None, Adaptive(maximum=3, within=0.01)]),
        )  # fmt: skip

    def step(self) -> None:
        """Something happens."""
        self._source.choice([self.advance, self.advance, self.work, self.work, self.lose, self.hosts, self.people])()
        self._wall.pass_by(self._source.choice([0.0, 1.0, 30.0, 1800.0]))

    def advance(self) -> None:
        store, outbox = self._source.choice(self._stores), Outbox()
        bad = {host.host for host in store.hosts(LAB.name) if host.state is not HostState.GOOD}
        active = {item.id for item in store.queue()}
        scheduler.advance(store, outbox)
        started = [item for item in store.active_attempts() if item.id in {handle.id for handle in outbox.attempts}]
        for item in started:
            assert not bad & set(item.hosts)
            assert item.campaign_id in active
            campaign = self.store.head(item.campaign_id).campaign
            assert fits(campaign.windows, self._wall.at, item.estimate)
        self._sent |= {handle.id: handle for handle in outbox.attempts}
        names = [line.resource for line in store.leases()]
        assert len(names) == len(set(names))
        assert sum(name.startswith("migration:") for name in names) <= 1

    def work(self) -> None:
        """A message arrives, or an attempt ends."""
        if self._sent and self._source.random() < 0.5:
            handle = self._sent.pop(self._source.choice(list(self._sent)))
            if self.store.claim(handle, worker="w:1") is not None:
                self._claimed[handle.id] = handle
        elif self._claimed:
            handle = self._claimed.pop(self._source.choice(list(self._claimed)))
            outcome = self._source.choice([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.LAB_ERROR, Outcome.CANCELLED])
            kind = {Outcome.LAB_ERROR: "worker-lost", Outcome.CANCELLED: "cancelled"}.get(outcome, "")
            judgement.accept(self.store, handle, a_result(outcome, kind=kind))

    def lose(self) -> None:
        """An attempt is given up, or what it left is cleaned."""
        if self._lost:
            judgement.cleaned(self.store, self._lost.pop())
        elif self._claimed and self._source.random() < 0.3:
            handle = self._claimed.pop(self._source.choice(list(self._claimed)))
            self._lost |= set(self.store.lose_attempts([handle.id], WORKER_LOST))

    def hosts(self) -> None:
        """A host is quarantined, taken out, or let back in."""
        name = self._source.choice(list(LAB.hosts))
        state = self._source.choice([HostState.GOOD, HostState.GOOD, HostState.QUARANTINED, HostState.OUT])
        out = sum(host.state is HostState.OUT for host in self.store.hosts(LAB.name))
        if state is not HostState.OUT or out < 2:
            self.store.set_host(LAB.name, name, state)

    def people(self) -> None:
        """Somebody pauses a campaign or lets it go on."""
        head = self._source.choice(self.heads)
        if self.store.state(head.id) is CampaignState.ACTIVE and self._source.random() < 0.3:
            commands.pause(self.store, head.id)
        elif self.store.state(head.id) is CampaignState.PAUSED:
            commands.resume(self.store, head.id)

    def drain(self) -> None:
        """Nothing bad happens any more: everything ends."""
        for name in LAB.hosts:
            self.store.set_host(LAB.name, name, HostState.GOOD)
        for attempt in tuple(self._lost):
            judgement.cleaned(self.store, attempt)
        for head in self.heads:
            if self.store.state(head.id) is CampaignState.PAUSED:
                commands.resume(self.store, head.id)
        for _ in range(400):
            if all(self.store.state(head.id) is CampaignState.DONE for head in self.heads):
                return
            self.advance()
            for handle in (*self._sent.values(), *self._claimed.values()):
                if handle.id in self._claimed or self.store.claim(handle, worker="w:1") is not None:
                    judgement.accept(self.store, handle, a_result())
            self._sent, self._claimed = {}, {}
            self._wall.pass_by(900.0)
        raise AssertionError(f"campaigns did not end: {self.store.campaigns()}")

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_in_a_night_everything_ends_and_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night(seed, tmp_path, Wall(monkeypatch))
    for _ in range(120):
        night.step()
    with night.store._db.reading() as db:
        check(db)
    night.drain()
    with night.store._db.reading() as db:
        check(db)
    assert night.store.leases() == ()
    for head in night.heads:
        assert set(night.store.run_counts(head.id)) <= {Outcome.OK, Outcome.LAB_ERROR}
    night.close()
