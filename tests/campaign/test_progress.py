"""How far a campaign is, how fast it goes, and when it will be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from labctl import clock
from labctl.campaign import commands, judgement
from labctl.campaign.progress import Left, Meter, Progress, progress
from labctl.errors import SpecError
from labctl.model.campaign import Order
from labctl.model.outcome import CampaignState, HostState, Outcome, Purpose
from labctl.model.scenario import Scenario
from labctl.model.window import Windows, WindowTime
from labctl.plan.estimate import run_seconds
from labctl.store import AttemptHandle, AttemptStart, CampaignHead, Store, open_store
from tests.campaign.outbox import submitted
from tests.values import a_campaign, a_cell, a_lab, a_result, an_order

DUBLIN = ZoneInfo("Europe/Dublin")
EVENING = datetime(2026, 10, 23, 18, 0, tzinfo=DUBLIN).timestamp()
HOUR = 3600.0
NIGHT = Windows(zone="Europe/Dublin", times=(WindowTime(start=22 * 60, end=6 * 60),))


class Wall:
    """A wall clock that a test moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall(EVENING)
    monkeypatch.setattr(clock, "now", wall)
    return wall


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def begin(store: Store, head: CampaignHead, *, host: str = "a", estimate: float = 10.0) -> AttemptHandle:
    """The next run in progress."""
    run = store.pending_runs(head.id, limit=1)[0]
    resources = frozenset({f"host:{host}"})
    asked = AttemptStart(run_id=run.id, order=an_order(host), resources=resources, estimate=estimate)
    (handle,) = store.start_attempts(head.lab.name, [asked])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    return handle


def ended(store: Store, head: CampaignHead, wall: Wall, *seconds: float, outcome: Outcome = Outcome.OK) -> None:
    """Runs that took so long, one after the other."""
    for each in seconds:
        handle = begin(store, head)
        wall.now += each
        assert judgement.accept(store, handle, a_result(outcome))


def looked(store: Store, head: CampaignHead) -> Progress:
    return progress(store, store.head(head.id))


def test_runs_are_counted_by_where_they_stand(store: Store, wall: Wall) -> None:
    head = submitted(store, repeats=3)
    ended(store, head, wall, 10, 10)
    ended(store, head, wall, 10, outcome=Outcome.FAILED)
    handle = begin(store, head)
    now = looked(store, head)
    assert (now.total, now.done) == (6, 3)
    assert now.counts == {"ok": 2, "failed": 1, "active": 1, "pending": 2}
    assert [attempt.id for attempt in now.active] == [handle.id]
    assert now.at == wall.now


def test_the_time_left_is_the_plans_estimate_at_first_and_then_what_runs_took(store: Store, wall: Wall) -> None:
    head = submitted(store, repeats=10)
    planned = 20 * run_seconds(head.campaign, a_cell(nic_model="virtio"))
    before = looked(store, head).left
    assert before.measured == 0
    assert before.seconds == pytest.approx((0.75 * planned, 1.25 * planned))
    ended(store, head, wall, *([100.0] * 10))
    after = looked(store, head).left
    assert after.measured == 10
    assert after.seconds == pytest.approx((900, 1100))


def test_a_cell_that_was_not_measured_counts_by_how_wrong_the_plan_was_of_others(store: Store, wall: Wall) -> None:
    head = submitted(store, repeats=4, factors={"seconds": (10.0, 100.0)}, order=Order.SEQUENTIAL)
    short, long = (run_seconds(head.campaign, a_cell(seconds=seconds)) for seconds in (10.0, 100.0))
    runs = store.pending_runs(head.id, limit=8)
    only_short = [run for run in runs if run.cell.levels["seconds"] == 10.0][:3]
    for run in only_short:
        asked = AttemptStart(run_id=run.id, order=an_order(), resources=frozenset({"host:a"}))
        (handle,) = store.start_attempts("lab", [asked])
        assert handle is not None
        assert store.claim(handle, worker="w:1") is not None
        wall.now += 2 * short
        assert judgement.accept(store, handle, a_result())
    expected = 2 * short + 4 * 2 * long
    assert looked(store, head).left.seconds == pytest.approx((0.9 * expected, 1.1 * expected))


def test_machines_work_side_by_side_and_two_host_runs_take_two(store: Store) -> None:
    one, two = a_lab(), a_lab(machines=("one", "two"))
    alone, side_by_side = submitted(store, one, repeats=10), submitted(store, two, repeats=10)
    across = submitted(store, two, repeats=10, scenarios=(Scenario.CROSS_HOST,))
    assert looked(store, side_by_side).left.seconds[0] == pytest.approx(looked(store, alone).left.seconds[0] / 2)
    assert looked(store, across).left.seconds[0] == pytest.approx(looked(store, alone).left.seconds[0])


def test_machines_whose_hosts_are_out_take_no_part(store: Store) -> None:
    head = submitted(store, a_lab(machines=("one", "two")), repeats=10)
    before = looked(store, head)
    store.set_host("lab", "b", HostState.OUT, why="burnt")
    after = looked(store, head)
    assert after.left.seconds[0] == pytest.approx(2 * before.left.seconds[0])
    assert before.bad_hosts == ()
    assert [record.why for record in after.bad_hosts] == ["burnt"]


def test_what_is_in_progress_is_counted_down(store: Store, wall: Wall) -> None:
    head = submitted(store, repeats=1, factors={"nic_model": ("virtio",)})
    begin(store, head, estimate=1000.0)
    seconds = [looked(store, head).left.seconds[1]]
    for _ in range(2):
        wall.now += 4.0
        seconds.append(looked(store, head).left.seconds[1])
    assert seconds[0] - seconds[1] == pytest.approx(4.0)
    assert seconds[1] - seconds[2] == pytest.approx(4.0)
    wall.now += 10_000
    assert looked(store, head).left.seconds == (0.0, 0.0)


def with_hours(store: Store, hours: int, windows: Windows | None) -> CampaignHead:
    """A campaign of so many hours of work for one machine, in runs of about one hour."""
    values = {"seconds": 3590.0, "warmup_seconds": 1.0}
    head = submitted(store, repeats=hours, factors={}, settings=values, warmups=0, windows=windows)
    assert run_seconds(head.campaign, a_cell()) == pytest.approx(HOUR, rel=0.01)
    return head


def test_a_campaign_without_windows_is_done_when_its_work_is(store: Store, wall: Wall) -> None:
    left = looked(store, with_hours(store, 4, None)).left
    assert left.done == pytest.approx((wall.now + left.seconds[0], wall.now + left.seconds[1]))
    assert left.nights == 0


def test_s4_nights_and_their_clock_changes_are_counted_in(store: Store, wall: Wall) -> None:
    """Row S4: the night of 24 October 2026 has nine hours, because the clock goes back."""
    head = with_hours(store, 14, NIGHT)
    left = looked(store, head).left
    assert None not in left.done
    assert left.nights == 3, "17.5 h at the worst: nights of 8, 9 and 8 hours"
    early, late = (datetime.fromtimestamp(instant or 0, DUBLIN) for instant in left.done)
    assert early.date().isoformat() == "2026-10-25"
    assert late.date().isoformat() in ("2026-10-25", "2026-10-26")


def test_windows_that_end_before_the_work_does_leave_no_time_to_be_done(store: Store, wall: Wall) -> None:
    until = datetime(2026, 10, 24, tzinfo=DUBLIN).date()
    head = with_hours(store, 14, Windows(zone="Europe/Dublin", times=NIGHT.times, until=until))
    assert looked(store, head).left.done == (None, None)


def test_the_rate_is_that_of_the_last_hour(store: Store, wall: Wall) -> None:
    head = submitted(store, repeats=20)
    assert looked(store, head).rate is None
    ended(store, head, wall, 60.0)
    assert looked(store, head).rate is None, "one end is no rate"
    ended(store, head, wall, *([60.0] * 5))
    assert looked(store, head).rate == pytest.approx(60.0)
    wall.now += 300.0
    assert looked(store, head).rate == pytest.approx(30.0), "it falls while nothing ends"
    wall.now += 2 * HOUR
    assert looked(store, head).rate is None
    ended(store, head, wall, 30.0, 30.0, 30.0)
    assert looked(store, head).rate == pytest.approx(120.0)


def test_others_that_want_the_same_hosts_are_named(store: Store) -> None:
    head, other = submitted(store), submitted(store)
    paused = submitted(store)
    commands.pause(store, paused.id)
    commands.submit(store, a_campaign(), a_lab(), campaign_text="", lab_text="", purpose=Purpose.HEALTH)
    assert looked(store, head).beside == (other.id,)


def test_nothing_is_left_of_what_is_done(store: Store, wall: Wall) -> None:
    head = submitted(store)
    ended(store, head, wall, 1, 1, 1, 1)
    store.set_state(head.id, CampaignState.DONE)
    now = looked(store, head)
    assert (now.state, now.done, now.total) == (CampaignState.DONE, 4, 4)
    assert now.left == Left(measured=4)


def test_runs_that_took_no_time_are_no_trouble(store: Store, wall: Wall) -> None:
    head = submitted(store, repeats=10, windows=NIGHT)
    ended(store, head, wall, *([0.0] * 5))
    now = looked(store, head)
    assert now.left.measured == 5
    assert now.rate is None


def test_looking_again_and_again_counts_all_runs_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all terminals do that look at a campaign of any size: they ask for what is in progress, not for all runs."""
    head = submitted(store)
    asked: list[str] = []

    def noting(name: str) -> Callable[..., object]:
        ask = getattr(store, name)
        return lambda *arguments, **more: (asked.append(name), ask(*arguments, **more))[1]

    for name in ("run_counts", "pending_cells", "durations", "latest_ends", "active_attempts"):
        monkeypatch.setattr(store, name, noting(name))
    monkeypatch.setattr("labctl.campaign.progress._SELDOM_SECONDS", 3600.0)
    meter = Meter(store, head.id)
    meter.look()
    assert set(asked) == {"run_counts", "pending_cells", "durations", "latest_ends", "active_attempts"}
    asked.clear()
    handle = begin(store, head)
    assert [attempt.id for attempt in meter.look().active] == [handle.id]
    assert asked == ["active_attempts"]


def test_the_last_look_is_exact(store: Store, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.campaign.progress._SELDOM_SECONDS", 3600.0)
    head = submitted(store)
    meter = Meter(store, head.id)
    assert meter.look().done == 0
    ended(store, head, wall, 1, 1)
    assert meter.look().done == 0
    commands.cancel(store, head.id)
    assert meter.look().counts == {"ok": 2, "cancelled": 2}


def test_a_campaign_that_is_not_there_is_said(store: Store) -> None:
    with pytest.raises(SpecError, match="no campaign 3"):
        Meter(store, 3).look()
