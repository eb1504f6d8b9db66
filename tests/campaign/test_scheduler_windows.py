"""Windows: a run starts only when one is open and it will have ended before that closes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from labctl.campaign import judgement, scheduler
from labctl.campaign.known import KnownCampaign
from labctl.model.outcome import CampaignState
from labctl.model.scenario import Scenario
from labctl.model.window import Day, Windows, WindowTime
from labctl.plan.choose import Resources
from labctl.store import AttemptHandle, Store, open_store
from tests.campaign.byhand import lab_of
from tests.campaign.outbox import Outbox, carry_out, submitted
from tests.campaign.wall import Wall, machine_in
from tests.values import a_result

DUBLIN = "Europe/Dublin"
NIGHTS = Windows(zone=DUBLIN, times=(WindowTime(start=22 * 60, end=6 * 60),))
ONE_CELL: dict[str, object] = {"factors": {"nic_model": ("virtio",)}}
HOUR = 3600.0


@pytest.fixture(autouse=True)
def in_dublin() -> Iterator[None]:
    """This machine, too."""
    with machine_in(DUBLIN):
        yield


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    """Monday, 12 October 2026, 21:00 in Dublin."""
    wall = Wall(monkeypatch)
    wall.go_to("2026-10-12 21:00", DUBLIN)
    return wall


@pytest.fixture
def store(tmp_path: Path, wall: Wall) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def instant(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(DUBLIN)).timestamp()


def begun(store: Store) -> AttemptHandle:
    """The only run that can be started, claimed."""
    outbox = Outbox()
    assert scheduler.advance(store, outbox).started == 1
    assert store.claim(outbox.attempts[0], worker="w:1") is not None
    return outbox.attempts[0]


def work(store: Store, wall: Wall, *, seconds: float) -> int:
    """Start what can be started, and carry it out. Returns how many that was."""
    outbox = Outbox()
    started = scheduler.advance(store, outbox).started
    for handle in outbox.attempts:
        assert store.claim(handle, worker="w:1") is not None
    wall.pass_by(seconds)
    for handle in outbox.attempts:
        assert judgement.accept(store, handle, a_result())
    return started


def kinds(store: Store, campaign: int) -> list[str]:
    return [event.kind for event in store.events(campaign)]


def test_outside_of_its_windows_a_campaign_waits_and_says_for_what(store: Store, wall: Wall) -> None:
    head = submitted(store, windows=NIGHTS)
    done = scheduler.advance(store, Outbox())
    assert (done.started, done.next_look) == (0, instant("2026-10-12 22:00"))
    assert store.head(head.id).hold == "window opens 22:00 Europe/Dublin"
    wall.go_to("2026-10-12 22:00", DUBLIN)
    assert scheduler.advance(store, Outbox()).started == 1
    assert store.head(head.id).hold == ""


def test_the_day_is_said_of_another_day_and_the_date_when_it_is_not_within_a_week(store: Store, wall: Wall) -> None:
    weekly = replace(NIGHTS, times=(replace(NIGHTS.times[0], days=frozenset({Day.THU})),))
    near = submitted(store, windows=weekly)
    far = submitted(store, windows=replace(weekly, blackout=frozenset({date(2026, 10, 15), date(2026, 10, 16)})))
    scheduler.advance(store, Outbox())
    assert store.head(near.id).hold == "window opens Thu 22:00 Europe/Dublin"
    assert store.head(far.id).hold == "window opens Thu 2026-10-22 22:00 Europe/Dublin"


def test_only_what_fits_before_the_window_closes_is_started(store: Store, wall: Wall) -> None:
    head = submitted(
        store, lab_of("a", "b", "c"), windows=NIGHTS, factors={"seconds": (600.0, 3600.0)}, repeats=2, warmups=0
    )
    wall.go_to("2026-10-13 05:30", DUBLIN)
    done = scheduler.advance(store, Outbox())
    assert done.next_look == instant("2026-10-13 06:00")
    assert [item.cell.levels["seconds"] for item in store.active_attempts()] == [600.0, 600.0]
    assert store.head(head.id).hold == ""


def test_when_nothing_that_is_left_fits_people_are_told(store: Store, wall: Wall) -> None:
    head = submitted(store, windows=NIGHTS, settings={"seconds": 3600.0}, **ONE_CELL)
    wall.go_to("2026-10-13 05:30", DUBLIN)
    assert scheduler.advance(store, Outbox()).started == 0
    assert store.head(head.id).hold == "nothing that is left fits before 06:00 Europe/Dublin"


def test_how_long_runs_took_so_far_decides_whether_the_next_one_fits(store: Store, wall: Wall) -> None:
    submitted(store, lab_of("a"), windows=NIGHTS, settings={"seconds": 60.0}, **ONE_CELL, repeats=9)
    wall.go_to("2026-10-13 02:00", DUBLIN)
    assert work(store, wall, seconds=1.5 * HOUR) == 1
    assert work(store, wall, seconds=1.5 * HOUR) == 1
    assert work(store, wall, seconds=1.0 * HOUR) == 0, "an hour and a half doesn't fit into one"
    wall.go_to("2026-10-13 22:00", DUBLIN)
    assert work(store, wall, seconds=0.5 * HOUR) == 1, "the campaign goes on in the next night"


def test_what_was_learnt_of_others_decides_for_cells_without_a_run_yet(store: Store, wall: Wall) -> None:
    submitted(store, lab_of("a"), windows=NIGHTS, settings={"seconds": 60.0}, repeats=1)
    wall.go_to("2026-10-13 04:00", DUBLIN)
    assert work(store, wall, seconds=1.5 * HOUR) == 1
    assert work(store, wall, seconds=0.0) == 0


def test_a_message_that_waited_too_long_begins_nothing_that_would_outlast_the_window(store: Store, wall: Wall) -> None:
    windows = {"windows": NIGHTS, "settings": {"seconds": 3600.0}, "repeats": 1, "warmups": 0} | ONE_CELL
    head, outbox = submitted(store, **windows), Outbox()
    wall.go_to("2026-10-13 04:30", DUBLIN)
    scheduler.advance(store, outbox)
    (handle,) = outbox.attempts
    share = store.queue()[0].share
    wall.go_to("2026-10-13 05:15", DUBLIN)
    assert store.claim(handle, worker="w:1") is None
    assert (store.signs(), store.leases(), store.run_counts(head.id)) == ((), (), {"pending": 1})
    assert store.queue()[0].share < share, "what it was given is given back"
    assert scheduler.advance(store, outbox).started == 0
    assert store.head(head.id).hold == "nothing that is left fits before 06:00 Europe/Dublin"
    wall.go_to("2026-10-13 22:00", DUBLIN)
    assert scheduler.advance(store, outbox).started == 1
    wall.pass_by(60)
    claimed = store.claim(outbox.attempts[1], worker="w:1")
    assert claimed is not None, "it may still end in time"
    assert store.pending_runs(head.id, limit=1) == ()
    assert store.tries(claimed.id)[1] == 1


def test_a_run_that_fits_to_the_second_may_begin_at_once(store: Store, wall: Wall) -> None:
    head = submitted(store, windows=NIGHTS, settings={"seconds": 3600.0}, **ONE_CELL, repeats=1, warmups=0)
    estimate = KnownCampaign(head, Resources()).waiting_run(store, store.pending_runs(head.id, limit=1)[0]).seconds
    wall.at = instant("2026-10-13 06:00") - estimate
    outbox = Outbox()
    assert scheduler.advance(store, outbox).started == 1
    assert store.claim(outbox.attempts[0], worker="w:1") is not None


@pytest.mark.parametrize(
    ("evening", "hours", "fits"),
    [
        ("2026-10-24 22:00", 8.9, True),
        ("2026-10-23 22:00", 8.9, False),
        ("2026-03-28 22:00", 6.9, True),
        ("2026-03-28 22:00", 7.1, False),
    ],
)
def test_s4_nights_with_a_clock_change_are_as_long_as_they_are(
    store: Store, wall: Wall, evening: str, hours: float, fits: bool
) -> None:
    submitted(store, windows=NIGHTS, settings={"seconds": float(round(hours * HOUR))}, **ONE_CELL, repeats=1)
    wall.go_to(evening, DUBLIN)
    assert scheduler.advance(store, Outbox()).started == (1 if fits else 0)


def test_a_long_run_reserves_no_hosts_in_a_night_in_which_it_cannot_end(store: Store, wall: Wall) -> None:
    lab = lab_of("a", "b")
    one = submitted(
        store, replace(lab, hosts={"a": lab.hosts["a"]}), settings={"seconds": 600.0}, repeats=1, **ONE_CELL
    )
    wall.go_to("2026-10-13 05:00", DUBLIN)
    scheduler.advance(store, Outbox())
    pair = {"scenarios": (Scenario.CROSS_HOST,), "settings": {"seconds": 3300.0}}
    submitted(store, lab, windows=NIGHTS, priority=9, repeats=1, **ONE_CELL, **pair)
    other = submitted(store, lab, settings={"seconds": 1800.0}, repeats=1, **ONE_CELL)
    scheduler.advance(store, Outbox())
    assert {item.campaign_id for item in store.active_attempts()} == {one.id, other.id}


def test_that_a_window_closed_is_told_once_a_night_and_only_of_campaigns_that_had_begun(
    store: Store, wall: Wall
) -> None:
    begun = submitted(store, lab_of("a"), windows=NIGHTS, repeats=3, **ONE_CELL)
    waits = submitted(store, lab_of("a"), windows=NIGHTS, priority=-1)
    scheduler.advance(store, Outbox())
    for morning in ("2026-10-13 06:00", "2026-10-14 06:00"):
        wall.pass_by(HOUR)
        assert work(store, wall, seconds=60.0) == 1
        wall.go_to(morning, DUBLIN)
        for _ in range(3):
            scheduler.advance(store, Outbox())
            wall.pass_by(2.0)
        wall.go_to(morning.replace("06:00", "21:00"), DUBLIN)
    assert kinds(store, begun.id) == ["started", "window-closed", "window-closed"]
    assert store.events(begun.id)[1].what == (
        f"A window of campaign {begun.id} (small) has closed with 2 of 3 runs left; the next window opens 22:00 Europe/Dublin."
    )
    assert kinds(store, waits.id) == []


def test_c11_many_engines_tell_of_a_window_once(store: Store, wall: Wall, tmp_path: Path) -> None:
    head = submitted(store, lab_of("a"), windows=NIGHTS, **ONE_CELL)
    wall.go_to("2026-10-12 22:00", DUBLIN)
    work(store, wall, seconds=60.0)
    others = [open_store(tmp_path) for _ in range(3)]
    wall.go_to("2026-10-13 06:00", DUBLIN)
    for each in (store, *others):
        scheduler.advance(each, Outbox())
    for each in others:
        each.close()
    assert kinds(store, head.id) == ["started", "window-closed"]


def test_a_campaign_whose_windows_are_closed_for_good_is_stopped_and_says_why(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), windows=replace(NIGHTS, until=date(2026, 10, 13)), repeats=3, **ONE_CELL)
    wall.go_to("2026-10-13 23:00", DUBLIN)
    handle = begun(store)
    wall.go_to("2026-10-14 00:00", DUBLIN)
    assert scheduler.advance(store, Outbox()).ended == (head.id,)
    stopped = store.head(head.id)
    assert stopped.state is CampaignState.STOPPED
    assert stopped.why == (
        "Its windows are closed for good: nothing of it runs after 2026-10-13, with 2 of 3 runs left."
    )
    assert kinds(store, head.id) == ["started", "campaign-stopped"]
    assert judgement.accept(store, handle, a_result()), "an attempt in progress may finish"
    store.set_state(head.id, CampaignState.ACTIVE)
    scheduler.advance(store, Outbox())
    assert store.state(head.id) is CampaignState.STOPPED


def test_a_campaign_that_had_its_last_run_in_its_last_window_is_done(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), windows=replace(NIGHTS, until=date(2026, 10, 13)), repeats=1, **ONE_CELL)
    wall.go_to("2026-10-13 23:59", DUBLIN)
    handle = begun(store)
    wall.go_to("2026-10-14 00:00", DUBLIN)
    scheduler.advance(store, Outbox())
    assert store.state(head.id) is CampaignState.ACTIVE
    assert judgement.accept(store, handle, a_result())
    assert scheduler.advance(store, Outbox()).ended == (head.id,)
    assert store.state(head.id) is CampaignState.DONE


def test_a_campaign_is_not_made_up_for_the_time_in_which_its_windows_were_closed(store: Store, wall: Wall) -> None:
    lab = lab_of("a", "b")
    night = submitted(store, lab, windows=NIGHTS, repeats=90)
    day = submitted(store, lab, repeats=90)
    while wall.at < instant("2026-10-12 22:00"):
        assert work(store, wall, seconds=600.0) == 2
    for _ in range(3):
        outbox = Outbox()
        scheduler.advance(store, outbox)
        assert {item.campaign_id for item in store.active_attempts()} == {night.id, day.id}
        wall.pass_by(600.0)
        for handle in outbox.attempts:
            carry_out(store, handle, a_result())


def test_s5_a_wall_clock_that_is_set_back_is_believed_at_once(store: Store, wall: Wall) -> None:
    submitted(store, lab_of("a"), windows=NIGHTS, **ONE_CELL, repeats=9)
    wall.go_to("2026-10-13 05:00", DUBLIN)
    assert work(store, wall, seconds=60.0) == 1
    wall.step(-12 * HOUR)
    done = scheduler.advance(store, Outbox())
    assert (done.started, done.next_look) == (0, instant("2026-10-12 22:00"))
    wall.step(5 * HOUR)
    assert scheduler.advance(store, Outbox()).started == 1


def test_a_campaign_whose_runs_turn_out_longer_than_any_window_is_stopped_and_says_so(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), windows=NIGHTS, **ONE_CELL, repeats=3)
    wall.go_to("2026-10-12 22:00", DUBLIN)
    assert work(store, wall, seconds=9.5 * HOUR) == 1
    wall.go_to("2026-10-13 22:00", DUBLIN)
    assert scheduler.advance(store, Outbox()).ended == (head.id,)
    stopped = store.head(head.id)
    assert stopped.state is CampaignState.STOPPED
    assert stopped.why == (
        "What is left fits in none of its windows: a run takes 570.0 min at the least, as those before did, and the longest "
        "window 540.0 min, with 2 of 3 runs left."
    )
