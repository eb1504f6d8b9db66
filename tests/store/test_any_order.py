"""Whatever is done to a store, in whatever order and however often: its promises hold after each step."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from labctl import clock
from labctl.errors import AttemptCancelled, LabError
from labctl.model.outcome import AttemptState, CampaignState, Outcome, OutcomeDetail
from labctl.store import (
    MESSAGE_LOST,
    WORKER_LOST,
    After,
    AttemptHandle,
    AttemptStart,
    Store,
    VmRecord,
    open_store,
    sqlite_url,
)
from labctl.store.engines import make_engine
from labctl.store.place import parse_url
from tests.store import invariants
from tests.store.steps import submit, vm_for
from tests.values import a_result, an_order

RESOURCES = [frozenset({"host:a", "machine:one"}), frozenset({"host:b"}), frozenset({"host:a", "host:b"})]
IN_PROGRESS = (AttemptState.SENT, AttemptState.CLAIMED)
STOPPED = OutcomeDetail(outcome=Outcome.CANCELLED, kind="cell-stopped")
FIRST, LAST = IPv4Address("198.18.0.16"), IPv4Address("198.18.0.18")
RESULTS = st.sampled_from([Outcome.OK, Outcome.FAILED, Outcome.LAB_ERROR, Outcome.CANCELLED])


class SteppedClock(clock.SystemClock):
    """A wall clock that is set forward and back."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@dataclass
class Known:
    """What is known of an attempt without asking the store."""

    handle: AttemptHandle
    run: int
    campaign: int
    resources: frozenset[str]
    state: AttemptState = AttemptState.SENT
    beats: int = 0


@cache
def an_empty_store() -> bytes:
    """A database with the newest tables, to be copied."""
    with tempfile.TemporaryDirectory() as directory:
        open_store(Path(directory)).close()
        return (Path(directory) / "labctl.sqlite").read_bytes()


class AnyOrder(RuleBasedStateMachine):
    """A store, and beside it what must be so."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="labctl-test-"))
        (self.directory / "labctl.sqlite").write_bytes(an_empty_store())
        self.store: Store = open_store(self.directory)
        self.database = make_engine(parse_url(sqlite_url(self.directory)))
        self.clock = SteppedClock()
        self.using = clock.using(self.clock)
        self.using.__enter__()
        self.attempts: dict[int, Known] = {}
        self.leased: dict[str, int] = {}
        self.campaigns: dict[int, CampaignState] = {}
        self.runs: list[int] = []
        self.vms: dict[str, int] = {}
        self.reopened = False

    def teardown(self) -> None:
        self.using.__exit__(None, None, None)
        self.store.close()
        self.database.dispose()
        shutil.rmtree(self.directory)

    @invariant()
    def promises_hold(self) -> None:
        with self.database.connect() as db:
            invariants.check(db, reopened=self.reopened)
        assert {line.resource: line.attempt_id for line in self.store.leases()} == self.leased
        assert {sign.attempt_id: (sign.state, sign.beats) for sign in self.store.signs()} == {
            id_: (known.state, known.beats) for id_, known in self.attempts.items() if known.state in IN_PROGRESS
        }
        held = {known for known, attempt in self.leased.items() if self.attempts[attempt].state not in IN_PROGRESS}
        assert set(self.store.lost_attempts()) == {self.leased[resource] for resource in held}

    @rule()
    @precondition(lambda self: len(self.campaigns) < 2)
    def submit(self) -> None:
        campaign = submit(self.store, replicates=2)
        self.campaigns[campaign] = CampaignState.ACTIVE
        self.runs += [run.id for run in self.store.record(campaign).runs]

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        campaign_of, pending = self._pending()
        likely = st.sampled_from(sorted(pending) * 5 + self.runs)
        wanted = data.draw(st.lists(st.tuples(likely, st.sampled_from(RESOURCES)), min_size=1, max_size=3))
        handles = self.store.start_attempts(
            "lab",
            [AttemptStart(run_id=run, order=an_order(), resources=names, estimate=1.0) for run, names in wanted],
        )
        for (run, names), handle in zip(wanted, handles, strict=True):
            free = run in pending and not names & self.leased.keys()
            active = run in campaign_of and self.campaigns[campaign_of[run]] is CampaignState.ACTIVE
            assert (handle is not None) == (free and active)
            if handle is not None:
                pending.remove(run)
                self.attempts[handle.id] = Known(handle, run, campaign_of[run], names)
                self.leased |= dict.fromkeys(names, handle.id)

    def _pending(self) -> tuple[dict[int, int], set[int]]:
        campaign_of = {run.id: campaign for campaign in self.campaigns for run in self.store.record(campaign).runs}
        waiting = {
            run.id for campaign in self.campaigns for run in self.store.record(campaign).runs if run.state == "pending"
        }
        return campaign_of, waiting

    def _any(self, data: st.DataObject, *likely: AttemptState) -> Known:
        """Any attempt, and more often one that stands so."""
        fitting = sorted(id_ for id_, known in self.attempts.items() if known.state in likely)
        return self.attempts[data.draw(st.sampled_from(fitting * 5 + sorted(self.attempts)))]

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), forged=st.sampled_from([False, False, False, True]))
    def claim(self, data: st.DataObject, forged: bool) -> None:
        known = self._any(data, AttemptState.SENT)
        shown = AttemptHandle(id=known.handle.id, token="0" * 32) if forged else known.handle
        claimed = self.store.claim(shown, worker="w:1")
        assert (claimed is not None) == (known.state is AttemptState.SENT and not forged)
        if claimed is not None:
            assert (claimed.run_id, claimed.campaign_id) == (known.run, known.campaign)
            known.state, known.beats = AttemptState.CLAIMED, 1

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        known = self._any(data, AttemptState.CLAIMED)
        said = self.store.heartbeat(known.handle, phase="transfer")
        claimed = known.state is AttemptState.CLAIMED
        assert ("void" in said) == (not claimed)
        assert self.store.holds_token(known.handle) is claimed
        known.beats += claimed

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), outcome=RESULTS, again=st.booleans(), not_before=st.floats(0, 1e12))
    def accept(self, data: st.DataObject, outcome: Outcome, again: bool, not_before: float) -> None:
        known = self._any(data, AttemptState.CLAIMED)
        after = After(again=again, not_before=not_before, blamed=("a",) if again else (), cleared=("b",))
        accepted = self.store.accept(known.handle, a_result(outcome), after)
        assert (accepted is not None) == (known.state is AttemptState.CLAIMED)
        if accepted is not None:
            known.state = AttemptState.ENDED
            if known.handle.id not in self.vms.values():
                self._free(known)

    @precondition(lambda self: self.attempts)
    @rule(
        data=st.data(),
        why=st.sampled_from([WORKER_LOST, MESSAGE_LOST]),
        states=st.sampled_from([IN_PROGRESS, IN_PROGRESS[:1], IN_PROGRESS[1:]]),
    )
    def lose(self, data: st.DataObject, why: OutcomeDetail, states: Sequence[AttemptState]) -> None:
        ids = [self._any(data, *IN_PROGRESS).handle.id for _ in range(data.draw(st.integers(0, 2)))]
        expected = {id_ for id_ in ids if self.attempts[id_].state in states}
        assert set(self.store.lose_attempts(ids, why, states=states)) == expected
        for id_ in expected:
            self.attempts[id_].state = AttemptState.LOST

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), again=st.booleans())
    def clean(self, data: st.DataObject, again: bool) -> None:
        known = self._any(data, AttemptState.LOST, AttemptState.ENDED)
        for uuid in [uuid for uuid, attempt in self.vms.items() if attempt == known.handle.id]:
            if known.state not in IN_PROGRESS and self.store.take_idle(uuid):
                self.store.change_vm(uuid, state="gone")
                del self.vms[uuid]
        self.store.cleaned(known.handle.id, again=again)
        if known.state not in IN_PROGRESS:
            self._free(known)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def record_vm(self, data: st.DataObject) -> None:
        known = self._any(data, AttemptState.CLAIMED)
        values = vm_for(known.handle, known.campaign, f"vm-{len(self.vms)}-{len(self.attempts)}-{known.beats}")
        if self.store.vm(str(values["uuid"])) is not None:
            return
        try:
            record = self.store.record_vm(
                lambda address: VmRecord(**values, address=f"{address}/24"), first=FIRST, last=LAST, after=len(self.vms)
            )
        except AttemptCancelled:
            assert known.state is not AttemptState.CLAIMED
        except LabError:
            assert len(self.store.live_vms("lab")) == 3, "all addresses are given"
        else:
            assert known.state is AttemptState.CLAIMED
            self.vms[record.uuid] = known.handle.id

    @precondition(lambda self: self.vms)
    @rule(data=st.data(), park=st.booleans())
    def let_go_of_vm(self, data: st.DataObject, park: bool) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.vms)))
        known = self.attempts[self.vms[uuid]]
        if park:
            assert self.store.park_vm(uuid, known.handle.id) is (known.state is AttemptState.CLAIMED)
        elif known.state is AttemptState.CLAIMED:
            self.store.change_vm(uuid, state="gone")
        if park and known.state is AttemptState.CLAIMED:
            taken = self.store.take_parked(
                known.campaign, host="a", role="sender", shape="s", attempt_id=known.handle.id
            )
            assert taken is not None
            assert (taken.uuid, taken.attempt_id) == (uuid, known.handle.id)
        elif known.state is AttemptState.CLAIMED:
            del self.vms[uuid]

    @precondition(lambda self: self.vms)
    @rule(data=st.data())
    def remove_idle_vm(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.vms)))
        idle = self.attempts[self.vms[uuid]].state not in IN_PROGRESS
        assert self.store.take_idle(uuid) is idle
        if idle:
            self.store.change_vm(uuid, state="gone")
            del self.vms[uuid]

    @precondition(lambda self: self.campaigns)
    @rule(data=st.data(), state=st.sampled_from([CampaignState.ACTIVE] * 5 + [*CampaignState]))
    def set_state(self, data: st.DataObject, state: CampaignState) -> None:
        campaign = data.draw(st.sampled_from(sorted(self.campaigns)))
        changed = self.store.set_state(campaign, state, stop_attempts=state is CampaignState.PAUSED)
        assert changed == (self.campaigns[campaign] is not state)
        self.campaigns[campaign] = state
        for known in self.attempts.values():
            if known.campaign == campaign and known.state is AttemptState.SENT and state is not CampaignState.ACTIVE:
                known.state = AttemptState.LOST
                self._free(known)

    @precondition(lambda self: self.campaigns)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        campaign = data.draw(st.sampled_from(sorted(self.campaigns)))
        active = self.campaigns[campaign] is CampaignState.ACTIVE
        assert self.store.finish(campaign) == (active and not self.store.has_open_runs(campaign))
        if active and not self.store.has_open_runs(campaign):
            self.campaigns[campaign] = CampaignState.DONE

    @precondition(lambda self: self.campaigns)
    @rule(data=st.data(), outcome=RESULTS)
    def reopen(self, data: st.DataObject, outcome: Outcome) -> None:
        campaign = data.draw(st.sampled_from(sorted(self.campaigns)))
        before = self.store.run_counts(campaign).get(outcome, 0)
        assert self.store.reopen(campaign, [outcome]) == before
        assert self.store.run_counts(campaign).get(outcome, 0) == 0
        self.reopened = self.reopened or before > 0

    @precondition(lambda self: self.campaigns)
    @rule(data=st.data())
    def end_pending(self, data: st.DataObject) -> None:
        campaign = data.draw(st.sampled_from(sorted(self.campaigns)))
        waiting = [run.id for run in self.store.record(campaign).runs if run.state == "pending"]
        some = waiting[: data.draw(st.integers(0, 2))]
        assert self.store.end_pending(campaign, STOPPED, run_ids=some) == len(some)

    @rule(seconds=st.sampled_from([-1e7, -3600.0, 60.0, 1e7]))
    def step_clock(self, seconds: float) -> None:
        """S5: the wall clock is set; nothing waits longer than the longest back-off for it."""
        self.clock.ahead += seconds

    def _free(self, known: Known) -> None:
        for resource in [name for name, attempt in self.leased.items() if attempt == known.handle.id]:
            del self.leased[resource]


AnyOrder.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase
