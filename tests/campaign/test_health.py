"""How quarantined hosts come back, or don't: health checks over a real store, under a clock of the test's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl import clock
from labctl.campaign import commands, health, judgement
from labctl.model.nic import Hypervisor
from labctl.model.outcome import CampaignState, HostState, Outcome, OutcomeDetail, Purpose
from labctl.model.patience import Patience
from labctl.model.result import AttemptResult
from labctl.model.window import Windows, WindowTime
from labctl.plan.applicability import placements
from labctl.plan.resolve import resolve
from labctl.store import WORKER_LOST, After, CampaignHead, HostRecord, Store, open_store
from tests.campaign.byhand import begin, end, lab_of
from tests.campaign.outbox import submitted

USUAL = Patience()


class Night:
    """A clock that stands still unless it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 1_800_000_000.0
        """Friday, 15 January 2027, 08:00 UTC."""
        monkeypatch.setattr(clock, "now", lambda: self.at)

    def pass_by(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch) -> Night:
    return Night(monkeypatch)


@pytest.fixture
def store(tmp_path: Path, night: Night) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def head(store: Store) -> CampaignHead:
    return submitted(store, lab_of("a", "b"), repeats=10)


def quarantine(store: Store, head: CampaignHead, name: str = "a") -> None:
    for _ in range(3):
        end(store, head, name, kind="host-unreachable", host=name)
    assert host(store, name).state is HostState.QUARANTINED


def host(store: Store, name: str = "a") -> HostRecord:
    return next(record for record in store.hosts("lab") if record.host == name)


def checks(store: Store, name: str = "a") -> list[CampaignHead]:
    lines = [line for line in store.campaigns() if line.purpose is Purpose.HEALTH and line.name.endswith(name)]
    return [store.head(line.id) for line in reversed(lines)]


def ends(store: Store, check: CampaignHead, outcome: Outcome, kind: str = "") -> None:
    """The check's run ended so, and the scheduler has seen that nothing of it is left."""
    end(store, check, "a", outcome=outcome, kind=kind, host="a" if kind else "")
    store.set_state(check.id, CampaignState.DONE)


def events(store: Store) -> list[str]:
    return [event.kind for event in store.untold()]


def test_the_first_check_is_made_a_minute_after_the_quarantine_and_only_once(
    store: Store, head: CampaignHead, night: Night
) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first - 1)
    health.due(store)
    assert checks(store) == []
    night.pass_by(1)
    for _ in range(3):
        health.due(store)
    assert len(checks(store)) == 1


def test_s5_a_wall_clock_that_is_set_back_delays_no_check(store: Store, head: CampaignHead, night: Night) -> None:
    quarantine(store, head)
    night.pass_by(-3600)
    health.due(store)
    (first,) = checks(store)
    ends(store, first, Outcome.LAB_ERROR, "host-unreachable")
    health.due(store)
    assert host(store).checks == 1, "it counts, although it was made before the quarantine began"
    night.pass_by(health.delay(1))
    health.due(store)
    _, second = checks(store)
    ends(store, second, Outcome.OK)
    health.due(store)
    assert host(store).state is HostState.GOOD


def test_of_many_engines_one_makes_the_check(store: Store, head: CampaignHead, night: Night, tmp_path: Path) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    ready = threading.Barrier(6)

    def engine() -> None:
        mine = open_store(tmp_path)
        ready.wait()
        health.due(mine)
        mine.close()

    engines = [threading.Thread(target=engine) for _ in range(6)]
    for thread in engines:
        thread.start()
    for thread in engines:
        thread.join()
    assert len(checks(store)) == 1


def test_a_check_is_a_small_run_that_can_only_be_placed_on_its_host(
    store: Store, head: CampaignHead, night: Night
) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    (check,) = checks(store)
    (run,) = store.pending_runs(check.id, limit=9)
    assert [place.hosts for place in placements(check.campaign, run.cell, check.lab)] == [("a",)]
    order = resolve(check.campaign, run.cell, check.lab)
    assert order.vm is not None
    assert (order.transfer.seconds, order.warmups, order.transfers, order.vm.nic_model) == (1.0, 0, 1, "virtio")
    assert set(check.lab.hosts) == {"a", "b"}, "its queue is that of the whole lab"
    assert check.campaign.lab_error_retries == 0


def test_a_check_has_vms_like_those_that_wait_for_the_host(head: CampaignHead) -> None:
    waits = replace(
        head,
        lab=replace(head.lab, hosts={"a": replace(head.lab.hosts["a"], hypervisor=Hypervisor.HYPERV)}),
        campaign=replace(
            head.campaign,
            settings={"memory": 2**31, "streams": 8},
            factors={"image": ("big", "small"), "nic_model": ("legacy",)},
        ),
    )
    campaign, _ = health.check_of(HostRecord(lab="lab", host="a"), waits)
    wanted = {"image": "big", "memory": 2**31, "nic_model": "synthetic"}
    assert {name: campaign.settings[name] for name in wanted} == wanted
    assert "streams" not in campaign.settings


def test_a_host_that_passes_its_check_is_let_in_and_begins_anew(store: Store, head: CampaignHead, night: Night) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    ends(store, checks(store)[0], Outcome.OK)
    assert (host(store).state, host(store).strikes, host(store).checks) == (HostState.GOOD, 0, 0)
    health.due(store)
    assert events(store) == ["quarantine", "host-back"]


def test_checks_that_fail_are_made_ever_more_seldom_until_the_host_is_out(
    store: Store, head: CampaignHead, night: Night
) -> None:
    quarantine(store, head)
    waits = [min(USUAL.check_first * 2**failed, USUAL.check_longest) for failed in range(USUAL.checks)]
    assert 3600 < sum(waits) < 4 * 3600
    for failed, seconds in enumerate(waits, start=1):
        night.pass_by(seconds - 1)
        health.due(store)
        assert len(checks(store)) == failed - 1
        night.pass_by(1)
        health.due(store)
        ends(store, checks(store)[-1], Outcome.LAB_ERROR, "host-unreachable")
        assert host(store).checks == failed
    assert host(store).state is HostState.OUT
    assert "host-unreachable" in host(store).why
    night.pass_by(10 * USUAL.check_longest)
    health.due(store)
    assert len(checks(store)) == USUAL.checks, "a host that is out is a person's to let in"
    assert events(store) == ["quarantine", *["check-failed"] * USUAL.checks, "host-out"]


def test_a_host_that_another_labctl_uses_is_let_in_when_it_is_free(
    store: Store, head: CampaignHead, night: Night
) -> None:
    for _ in range(3):
        end(store, head, "a", kind="host-shared", host="a")
    assert host(store).state is HostState.QUARANTINED
    for outcome, kind in ((Outcome.LAB_ERROR, "host-shared"), (Outcome.OK, "")):
        night.pass_by(health.delay(host(store).checks))
        health.due(store)
        ends(store, checks(store)[-1], outcome, kind)
    assert host(store).state is HostState.GOOD


def test_what_is_not_the_hosts_fault_is_no_failed_check(store: Store, head: CampaignHead, night: Night) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    (check,) = checks(store)
    lost = begin(store, check, "a")
    store.lose_attempts([lost.id], WORKER_LOST)
    judgement.cleaned(store, lost.id)
    assert not store.has_open_runs(check.id)
    health.due(store)
    assert (host(store).state, host(store).checks) == (HostState.QUARANTINED, 0)
    night.pass_by(health.delay(1))
    health.due(store)
    assert len(checks(store)) == 2, "it is checked again"


def test_a_check_that_somebody_cancelled_is_made_again(store: Store, head: CampaignHead, night: Night) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    commands.cancel(store, checks(store)[0].id)
    health.due(store)
    assert host(store).checks == 0
    night.pass_by(health.delay(1))
    health.due(store)
    assert len(checks(store)) == 2


def test_a_check_that_waits_for_its_host_is_not_doubled(store: Store, head: CampaignHead, night: Night) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    night.pass_by(3 * USUAL.check_longest)
    health.due(store)
    assert len(checks(store)) == 1


def test_a_check_of_an_earlier_quarantine_says_nothing_of_this_one(
    store: Store, head: CampaignHead, night: Night
) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    (check,) = checks(store)
    late = begin(store, check, "a")
    store.set_host("lab", "a", HostState.GOOD)
    night.pass_by(1)
    for _ in range(3):
        store.blame("lab", OutcomeDetail(outcome=Outcome.LAB_ERROR, what="Gone."), After(blamed=("a",)))
    assert judgement.accept(store, late, AttemptResult(detail=OutcomeDetail(outcome=Outcome.OK)))
    assert host(store).state is HostState.QUARANTINED


def test_a_check_lets_no_host_in_that_a_person_has_taken_out_meanwhile(
    store: Store, head: CampaignHead, night: Night
) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    store.set_host("lab", "a", HostState.OUT, why="its fan is broken")
    ends(store, checks(store)[0], Outcome.OK)
    assert (host(store).state, host(store).why) == (HostState.OUT, "its fan is broken")


def test_outside_of_all_windows_no_host_is_touched(store: Store, night: Night) -> None:
    from_ten = Windows(zone="UTC", times=(WindowTime(start=10 * 60, end=18 * 60),))
    head = submitted(store, lab_of("a", "b"), repeats=10, windows=from_ten)
    quarantine(store, head)
    night.pass_by(2 * 3600 - 1)
    health.due(store)
    assert checks(store) == []
    night.pass_by(1)
    health.due(store)
    assert [check.campaign.windows for check in checks(store)] == [from_ten], "it may have to wait for its host"


def test_without_a_campaign_that_waits_no_host_is_touched(store: Store, head: CampaignHead, night: Night) -> None:
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    commands.pause(store, head.id)
    health.due(store)
    assert checks(store) == []
    commands.resume(store, head.id)
    health.due(store)
    assert len(checks(store)) == 1


def test_a_host_that_no_small_run_fits_is_tried_again_with_real_ones(
    store: Store, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = submitted(store, lab_of("a", "b"), repeats=10)
    monkeypatch.setattr(health, "_USUAL_NIC", dict.fromkeys(Hypervisor, "vt-d"))
    quarantine(store, head)
    night.pass_by(USUAL.check_first)
    health.due(store)
    assert host(store).state is HostState.GOOD
    assert events(store) == ["quarantine", "host-back"]
