"""C12: a worker that was paused for longer than its lease finds its token void and touches no host any more.

The worker is a real process that stops itself with SIGSTOP at a line of the attempt. Meanwhile its attempt is given up and
cleaned, and another one begins on its host. Then it goes on.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from labctl.campaign import commands, judgement
from labctl.campaign.versions import code_version
from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Lab
from labctl.model.outcome import Outcome
from labctl.model.patience import VARIABLE
from labctl.model.scenario import Scenario
from labctl.plan.applicability import placements
from labctl.plan.resolve import resolve
from labctl.store import WORKER_LOST, AttemptHandle, AttemptStart, CampaignHead, Store, open_store
from tests.simulated import a_simulated_lab, vms_left
from tests.values import a_campaign, a_result
from workers import fence as fences
from workers.cleaning import clean_campaign
from workers.fence import Fence
from workers.guard import Guard
from workers.hypervisors.simulated.figures import Figures
from workers.machines import Machines
from workers.placing import place

PATIENCE = 60.0
FRESH = 0.1
START = multiprocessing.get_context("forkserver")
"""Workers are forked from a process that has imported everything and has no threads."""
START.set_forkserver_preload(["workers.tasks", "workers.hypervisors.simulated.driver"])


def work(log: Path, state: Path, spot: str, when: str, handle: AttemptHandle) -> None:
    """Carry out an attempt as a worker does, and stop at a spot, `MODULE:OBJECT:FUNCTION`, `before` or `after` it."""
    from workers import attempt, heartbeat, placing, tasks
    from workers.hypervisors.simulated.driver import SimulatedChannel, SimulatedDriver

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(out, stream)
    logging.basicConfig(stream=sys.stderr, force=True)
    os.environ["LABCTL_STORE"] = f"sqlite:///{state / 'labctl.sqlite'}"
    os.environ[VARIABLE] = json.dumps({"beat": FRESH / 2, "silent": 10 * FRESH, "fresh": FRESH})
    stopped: list[bool] = []
    beating = threading.RLock()

    def stop(*_: object) -> None:
        # Never in the middle of a beat: its transaction would keep the store locked for everybody.
        with beating:
            if not stopped:
                stopped.append(True)
                os.kill(os.getpid(), signal.SIGSTOP)

    def note(operation: str) -> None:
        os.write(out, f"touched {operation} {'later' if stopped else 'first'}\n".encode())

    def in_turn(items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        return [work(item) for item in items]

    # One thing at a time: a second thread could be anywhere when the first one stops.
    attempt.together = placing.together = in_turn
    around(heartbeat, "_store_says", before=beating.acquire, after=beating.release)
    for operation in ("create", "migrate", "pause", "unpause", "destroy"):
        around(SimulatedDriver, operation, before=partial(note, operation))
    around(SimulatedChannel, "start", before=partial(note, "start"))
    module, owner, name = spot.split(":")
    around(getattr(import_module(module), owner), name, **{when: stop})
    tasks.attempt(attempt_id=handle.id, token=handle.token, version=code_version())


def nothing() -> None:
    """Nothing."""


def around(
    owner: Any, name: str, *, before: Callable[[], object] = nothing, after: Callable[[], object] = nothing
) -> None:  # fmt: skip
    """Have something done before and after a function of an object."""
    inner = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        before()
        result = inner(*arguments, **named)
        after()
        return result

    setattr(owner, name, call)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return a_simulated_lab(tmp_path / "world", figures=replace(Figures.instant(), migration=1e11))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()


def submitted(store: Store, lab: Lab, scenario: Scenario, *, reuse: bool = False) -> CampaignHead:
    settings = {"tool": "iperf", "seconds": 2.0 if scenario.migrates else 0.5, "interval": 0.1}
    campaign = a_campaign(
        scenarios=(scenario,), settings=settings, warmups=0, repeats=4, back_off=0.0, reuse=reuse,
        factors={"nic_model": ("virtio",)},
    )  # fmt: skip
    return store.head(commands.submit(store, campaign, lab, campaign_text="c", lab_text="l"))


def sent(store: Store, head: CampaignHead) -> AttemptHandle:
    """An attempt of the next run, in the first placement of its lab."""
    run = store.pending_runs(head.id, limit=1)[0]
    placement = placements(head.campaign, run.cell, head.lab)[0]
    order = resolve(head.campaign, run.cell, head.lab, placement=placement)
    names = frozenset(f"host:{host}" for host in placement.hosts)
    (handle,) = store.start_attempts(head.lab.name, [AttemptStart(run_id=run.id, order=order, resources=names)])
    assert handle is not None
    return handle


class PausedWorker:
    """A worker process that carries out an attempt and stops itself at a spot."""

    def __init__(self, state: Path, handle: AttemptHandle, spot: str, when: str = "before") -> None:
        self._log = state.parent / "log"
        self._log.touch()
        self._process = START.Process(target=work, args=(self._log, state, spot, when, handle))
        self._process.start()

    def await_pause(self) -> None:
        """Wait until it has stopped, and for longer than a heartbeat counts."""
        deadline = time.monotonic() + PATIENCE
        while self._state() != "T":
            assert self._process.is_alive(), self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)
        paused = time.monotonic()
        while time.monotonic() - paused < 2 * FRESH:
            time.sleep(0.01)

    def go_on(self) -> None:
        """Let it go on, and wait for its end."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)
        self._process.join(PATIENCE)
        assert self._process.exitcode == 0, self.said

    def end(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def touched(self) -> list[str]:
        """What it has done to VMs and endpoints since it was paused."""
        words = [line.split() for line in self.said.splitlines() if line.startswith("touched")]
        return [operation for _, operation, moment in words if moment == "later"]

    @property
    def said(self) -> str:
        return self._log.read_text()

    def _state(self) -> str:
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


SPOTS = {
    "before a VM is created": ("workers.hypervisors.fenced:_Fenced:create", Scenario.SAME_HOST),
    "between the record of a VM and the VM": ("workers.placing:VmRequest:__init__", Scenario.SAME_HOST),
    "before a transfer": ("workers.attempt:Attempt:_check_company", Scenario.SAME_HOST),
    "before a migration": ("workers.hypervisors.fenced:_Fenced:migrate", Scenario.DURING_MIGRATION),
    "before the release": ("workers.attempt:Attempt:_release", Scenario.SAME_HOST),
    "before a VM is destroyed": ("workers.hypervisors.fenced:_Fenced:destroy", Scenario.SAME_HOST),
    "before its result is handed in": ("workers.tasks:Attempt:carry_out", Scenario.SAME_HOST),
}


@pytest.mark.parametrize("spot", SPOTS)
def test_c12_a_worker_that_was_paused_too_long_touches_nothing(
    lab: Lab, store: Store, tmp_path: Path, spot: str
) -> None:
    where, scenario = SPOTS[spot]
    when = "after" if "carry_out" in where else "before"
    head = submitted(store, lab, scenario)
    first = sent(store, head)
    worker = PausedWorker(tmp_path / "state", first, where, when)
    try:
        worker.await_pause()
        store.lose_attempts([first.id], WORKER_LOST)
        clean_campaign(store, head.id)
        assert vms_left(lab) == []
        assert store.leases(lab.name) == ()
        second = sent(store, head)
        claimed = store.claim(second, worker="w:2")
        assert claimed is not None
        place(claimed, Machines(lab, store=store.identity, guard=Guard()), store, Guard())
        theirs = vms_left(lab)
        worker.go_on()
        assert worker.touched == []
        assert vms_left(lab) == theirs
        assert judgement.accept(store, second, a_result())
        assert store.run_counts(head.id)["ok"] == 1
        assert "its token became void" in worker.said
    finally:
        worker.end()


def test_c12_a_vm_that_came_about_while_its_worker_was_given_up_is_removed_by_the_worker_at_once(
    lab: Lab, store: Store, tmp_path: Path
) -> None:
    head = submitted(store, lab, Scenario.SAME_HOST)
    first = sent(store, head)
    # Stopped in the middle of creating it: nobody who looks at the host finds it yet.
    worker = PausedWorker(tmp_path / "state", first, "workers.hypervisors.simulated.driver:vms:create")
    try:
        worker.await_pause()
        store.lose_attempts([first.id], WORKER_LOST)
        clean_campaign(store, head.id)
        assert store.leases(lab.name) == ()
        worker.go_on()
        assert vms_left(lab) == []
        assert set(worker.touched) <= {"create", "destroy"}
    finally:
        worker.end()


def test_c12_a_worker_that_was_paused_too_long_parks_nothing_that_others_could_take(
    lab: Lab, store: Store, tmp_path: Path
) -> None:
    head = submitted(store, lab, Scenario.SAME_HOST, reuse=True)
    first = sent(store, head)
    worker = PausedWorker(tmp_path / "state", first, "labctl.store:Store:park_vm")
    try:
        worker.await_pause()
        store.lose_attempts([first.id], WORKER_LOST)
        worker.go_on()
        assert {record.state for record in store.live_vms(lab.name)} == {"live"}
        clean_campaign(store, head.id)
        assert vms_left(lab) == []
    finally:
        worker.end()


def test_a_worker_that_was_paused_and_not_given_up_goes_on(lab: Lab, store: Store, tmp_path: Path) -> None:
    head = submitted(store, lab, Scenario.SAME_HOST)
    worker = PausedWorker(tmp_path / "state", sent(store, head), SPOTS["before a transfer"][0])
    try:
        worker.await_pause()
        worker.go_on()
    finally:
        worker.end()
    assert store.run_counts(head.id)["ok"] == 1
    assert vms_left(lab) == []


# The fence itself


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(fences, "real_seconds", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Token:
    """A token that can be voided, and a store that counts how often it was asked, or can't be."""

    def __init__(self) -> None:
        self.good, self.reachable, self.asked = True, True, 0

    def __call__(self) -> bool:
        self.asked += 1
        if not self.reachable:
            raise LabError("The store could not be read.", kind="store")
        return self.good


def test_nothing_is_asked_while_heartbeats_get_through(clock: Clock) -> None:
    token = Token()
    fence = Fence(token, fresh=6.0)
    fence.heard(clock.now)
    clock.now += 5.9
    fence.confirm()
    assert token.asked == 0
    clock.now += 0.2
    fence.confirm()
    assert token.asked == 1
    fence.confirm()
    assert token.asked == 1, "what the store has just said counts like a heartbeat"


def test_a_fence_that_was_never_told_anything_asks(clock: Clock) -> None:
    token = Token()
    Fence(token, fresh=6.0).confirm()
    assert token.asked == 1


def test_after_a_doubt_the_store_is_asked_at_once(clock: Clock) -> None:
    token = Token()
    fence = Fence(token, fresh=6.0)
    fence.heard(clock.now)
    token.good = False
    fence.doubt()
    with pytest.raises(AttemptCancelled, match="no longer this worker's"):
        fence.confirm()


def test_a_void_token_stays_void_and_is_not_asked_about_again(clock: Clock) -> None:
    token = Token()
    token.good = False
    fence = Fence(token, fresh=6.0)
    for _ in range(3):
        with pytest.raises(AttemptCancelled):
            fence.confirm()
        fence.heard(clock.now)
    assert token.asked == 1


def test_what_nobody_knows_is_not_confirmed(clock: Clock) -> None:
    token = Token()
    token.reachable = False
    with pytest.raises(LabError, match="could not be read"):
        Fence(token, fresh=6.0).confirm()


def test_a_guard_that_was_stopped_confirms_nothing_and_the_release_has_one_of_its_own() -> None:
    fence = Fence(Token(), fresh=6.0)
    guard = Guard(fence)
    guard.stop("somebody wants it")
    with pytest.raises(AttemptCancelled, match="asked to end"):
        guard.confirm()
    Guard(fence).confirm()
    Guard().confirm()


def test_a_cancelled_attempt_still_removes_its_vms(lab: Lab, store: Store, tmp_path: Path) -> None:
    head = submitted(store, lab, Scenario.SAME_HOST)
    worker = PausedWorker(tmp_path / "state", sent(store, head), SPOTS["before a transfer"][0])
    try:
        worker.await_pause()
        assert len(vms_left(lab)) == 2
        commands.pause(store, head.id, now=True)
        worker.go_on()
    finally:
        worker.end()
    assert vms_left(lab) == []
    assert store.run_counts(head.id) == {"pending": 4}
    assert Outcome.CANCELLED in {run.earlier[0].detail.outcome for run in store.record(head.id).runs if run.earlier}
