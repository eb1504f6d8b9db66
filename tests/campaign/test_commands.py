"""What people ask of campaigns, in every state, once and twice, with runs in progress."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl import clock
from labctl.campaign import commands, judgement, scheduler
from labctl.errors import SpecError
from labctl.model.campaign import Anchor, Campaign
from labctl.model.lab import SecretRef
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, Purpose
from labctl.model.window import Windows, WindowTime
from labctl.store import AttemptHandle, AttemptStart, Store, open_store
from tests.campaign.outbox import Outbox, submitted
from tests.values import a_campaign, a_lab, a_result, an_order

STATES = tuple(CampaignState)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def submit(store: Store, campaign: Campaign | None = None, *, again: bool = True) -> int:
    return commands.submit(store, campaign or a_campaign(), a_lab(), campaign_text="c", lab_text="l", again=again)


def in_progress(store: Store, campaign_id: int) -> AttemptHandle:
    """Start the next run of a campaign and claim it."""
    run = store.pending_runs(campaign_id, limit=1)[0]
    start = AttemptStart(run_id=run.id, order=an_order(), resources=frozenset({"host:a"}))
    (handle,) = store.start_attempts("lab", [start])
    assert handle is not None
    assert store.claim(handle, worker="w:1") is not None
    return handle


def end(store: Store, campaign_id: int, outcome: Outcome, kind: str = "") -> None:
    assert judgement.accept(store, in_progress(store, campaign_id), a_result(outcome, kind=kind))


# Submitting


def test_the_same_content_is_not_submitted_twice_by_mistake(store: Store) -> None:
    first = submit(store)
    with pytest.raises(SpecError, match=rf"Campaign {first} \(small\) measures the same .* is active"):
        submit(store, again=False)
    assert [line.id for line in store.campaigns()] == [first]
    assert submit(store, again=True) != first


def test_what_has_ended_may_be_measured_anew_without_being_asked(store: Store) -> None:
    commands.cancel(store, submit(store))
    submit(store, again=False)


def test_two_terminals_that_submit_the_same_at_once_submit_it_once(store: Store, tmp_path: Path) -> None:
    done: list[object] = []

    def hurry() -> None:
        mine = open_store(tmp_path)
        try:
            done.append(submit(mine, again=False))
        except SpecError as error:
            done.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=hurry) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(item) for item in done].count(SpecError) == 3
    assert len(store.campaigns()) == 1


def test_when_how_urgently_and_for_whom_is_no_part_of_the_content() -> None:
    lab, night = a_lab(), Windows(zone="Europe/Dublin", times=(WindowTime(start=1320, end=360),))
    same = a_campaign(windows=night, priority=7, max_runs=50, notify=(SecretRef(scheme="env", locator="X"),))
    assert commands.content_digest(same, lab) == commands.content_digest(a_campaign(), lab)
    assert commands.content_digest(a_campaign(), replace(lab, site="elsewhere")) == commands.content_digest(same, lab)


@pytest.mark.parametrize(
    "change", [{"repeats": 3}, {"seed": 2}, {"name": "x"}, {"factors": {"nic_model": ("virtio",)}}]
)
def test_what_is_measured_is_the_content(change: dict[str, object]) -> None:
    assert commands.content_digest(a_campaign(**change), a_lab()) != commands.content_digest(a_campaign(), a_lab())


def test_another_lab_is_another_content() -> None:
    here, there = a_lab(), replace(a_lab(), name="other")
    assert commands.content_digest(a_campaign(), here) != commands.content_digest(a_campaign(), there)


def test_the_content_has_one_name_in_every_process() -> None:
    script = (
        "from labctl.campaign.commands import content_digest; from tests.values import a_campaign, a_lab;"
        "print(content_digest(a_campaign(), a_lab()))"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert names == {commands.content_digest(a_campaign(), a_lab())}


def test_runs_of_the_anchor_are_between_the_others(store: Store) -> None:
    anchor = Anchor(levels={"scenario": "same-host", "nic_model": "virtio"}, every=2)
    campaign_id = submit(store, a_campaign(anchor=anchor))
    purposes = [run.purpose for run in store.record(campaign_id).runs]
    assert purposes == [Purpose.MEASURE, Purpose.MEASURE, Purpose.ANCHOR] * 2


def a_night(**changes: object) -> Windows:
    values: dict[str, object] = {"zone": "Europe/Dublin", "times": (WindowTime(start=22 * 60, end=6 * 60),)}
    return Windows(**(values | changes))  # type: ignore[arg-type]


def test_windows_that_have_ended_or_are_too_short_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: datetime(2026, 12, 1, tzinfo=UTC).timestamp())
    with pytest.raises(SpecError, match="have ended: `until` is 2026-11-30"):
        submit(store, a_campaign(windows=a_night(until=date(2026, 11, 30))))
    short = a_night(times=(WindowTime(start=0, end=1),))
    with pytest.raises(SpecError, match="shorter than one of its runs"):
        submit(store, a_campaign(windows=short, settings={"seconds": 100.0}))
    assert store.newest_campaign() is None


def test_a_campaign_whose_windows_have_ended_does_not_go_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: datetime(2026, 11, 30, tzinfo=UTC).timestamp())
    campaign_id = submit(store, a_campaign(windows=a_night(until=date(2026, 11, 30)), lab_error_retries=0))
    end(store, campaign_id, Outcome.LAB_ERROR, "x")
    monkeypatch.setattr(clock, "now", lambda: datetime(2026, 12, 2, tzinfo=UTC).timestamp())
    store.set_state(campaign_id, CampaignState.STOPPED, why="its windows have ended")
    for ask in (commands.resume, lambda store, id_: commands.retry(store, id_, [Outcome.LAB_ERROR])):
        with pytest.raises(SpecError, match="have ended"):
            ask(store, campaign_id)
    assert store.run_counts(campaign_id) == {"lab-error": 1, "pending": 3}
    assert store.state(campaign_id) is CampaignState.STOPPED
    commands.cancel(store, campaign_id)


# Pausing and going on


def test_a_paused_campaign_lets_its_attempts_finish(store: Store) -> None:
    head = submitted(store)
    handle = in_progress(store, head.id)
    commands.pause(store, head.id, why="the lab is needed")
    assert store.heartbeat(handle, phase="transfer") == ""
    assert store.pending_runs(head.id, limit=1)
    assert store.start_attempts("lab", [_next(store, head.id)]) == (None,)
    assert judgement.accept(store, handle, a_result())
    assert store.head(head.id).why == "the lab is needed"


@pytest.mark.parametrize("asked", [commands.pause, commands.cancel])
def test_what_waits_for_a_worker_is_not_begun_after_a_pause_or_a_cancellation(
    store: Store, asked: Callable[..., object]
) -> None:
    """Nothing of the campaign is in progress then, although its message is still on its way."""
    head, outbox = submitted(store, repeats=2), Outbox()
    assert scheduler.advance(store, outbox).started == 1
    ended = asked(store, head.id)
    assert store.active_attempts(head.id) == ()
    assert store.claim(outbox.attempts[0], worker="w:1") is None
    assert store.leases() == ()
    if asked is commands.cancel:
        assert store.run_counts(head.id) == {"cancelled": ended} == {"cancelled": 4}
        return
    assert store.run_counts(head.id) == {"pending": 4}
    commands.resume(store, head.id)
    assert scheduler.advance(store, outbox).started == 1
    assert store.claim(outbox.attempts[1], worker="w:1") is not None


def test_paused_now_its_attempts_are_stopped_and_their_runs_go_back(store: Store) -> None:
    head = submitted(store)
    handle = in_progress(store, head.id)
    commands.pause(store, head.id, now=True)
    assert store.heartbeat(handle, phase="transfer") == "the campaign was interrupted"
    assert judgement.accept(store, handle, a_result(Outcome.CANCELLED, kind="cancelled"))
    assert store.run_counts(head.id) == {"pending": 4}


def test_a_paused_campaign_may_be_asked_to_stop_now(store: Store) -> None:
    head = submitted(store)
    handle = in_progress(store, head.id)
    commands.pause(store, head.id, why="first")
    commands.pause(store, head.id, now=True)
    assert store.heartbeat(handle, phase="transfer") != ""
    commands.pause(store, head.id)
    assert store.heartbeat(handle, phase="transfer") != "", "asking again takes nothing back"
    assert store.head(head.id).why == "first"


def test_going_on_forgets_why_it_was_paused(store: Store) -> None:
    head = submitted(store)
    commands.pause(store, head.id, now=True, why="x")
    commands.resume(store, head.id)
    found = store.head(head.id)
    assert (found.state, found.why, found.stop_attempts) == (CampaignState.ACTIVE, "", False)


def test_a_campaign_that_the_policy_stopped_goes_on_when_asked(store: Store) -> None:
    head = submitted(store)
    store.set_state(head.id, CampaignState.STOPPED, why="most cells fail alike")
    commands.resume(store, head.id)
    assert store.head(head.id).state is CampaignState.ACTIVE


def test_interrupting_brings_nothing_back_that_has_ended(store: Store) -> None:
    head = submitted(store)
    commands.cancel(store, head.id)
    commands.interrupt(store, head.id)
    assert store.state(head.id) is CampaignState.CANCELLED


# Cancelling


def test_a_cancelled_campaign_keeps_what_it_has_and_what_is_in_progress(store: Store) -> None:
    head = submitted(store)
    end(store, head.id, Outcome.OK)
    handle = in_progress(store, head.id)
    assert commands.cancel(store, head.id, why="wrong image") == 2
    assert store.heartbeat(handle, phase="transfer") == ""
    assert judgement.accept(store, handle, a_result())
    assert store.run_counts(head.id) == {"ok": 2, "cancelled": 2}
    reasons = [run.unrun for run in store.record(head.id).runs if run.result is None]
    assert reasons == [commands.CANCELLED] * 2
    assert store.head(head.id).why == "wrong image"


def test_cancelled_now_its_attempts_are_stopped_and_nothing_goes_back(store: Store) -> None:
    head = submitted(store)
    handle = in_progress(store, head.id)
    commands.cancel(store, head.id)
    assert commands.cancel(store, head.id, now=True) == 0
    assert store.heartbeat(handle, phase="transfer") != ""
    assert judgement.accept(store, handle, a_result(Outcome.CANCELLED, kind="cancelled"))
    assert store.run_counts(head.id) == {"cancelled": 4}


# Trying again


def test_only_runs_that_ended_so_are_tried_again(store: Store) -> None:
    head = submitted(store, lab_error_retries=0)
    for outcome in (Outcome.OK, Outcome.FAILED, Outcome.LAB_ERROR, Outcome.OK):
        end(store, head.id, outcome, "x")
    store.set_state(head.id, CampaignState.DONE)
    assert commands.retry(store, head.id, [Outcome.LAB_ERROR]) == commands.Retried(runs=1, state=CampaignState.ACTIVE)
    assert store.run_counts(head.id) == {"ok": 2, "failed": 1, "pending": 1}
    assert commands.retry(store, head.id, [Outcome.LAB_ERROR]).runs == 0, "asking twice is as good as asking once"
    assert commands.retry(store, head.id, [Outcome.FAILED]).runs == 1


def test_nothing_to_try_again_leaves_a_campaign_as_it_is(store: Store) -> None:
    head = submitted(store)
    for _ in range(4):
        end(store, head.id, Outcome.OK)
    store.set_state(head.id, CampaignState.DONE)
    assert commands.retry(store, head.id, [Outcome.LAB_ERROR, Outcome.FAILED], stopped=True) == commands.Retried(
        runs=0, state=CampaignState.DONE
    )


def test_runs_of_stopped_cells_are_tried_again_when_asked(store: Store) -> None:
    head = submitted(store)
    why = OutcomeDetail(outcome=Outcome.CANCELLED, kind=commands.CELL_STOPPED, what="It fails everywhere.")
    store.end_pending(head.id, why)
    store.set_state(head.id, CampaignState.STOPPED)
    assert commands.retry(store, head.id, [Outcome.LAB_ERROR]).runs == 0
    assert store.state(head.id) is CampaignState.STOPPED
    assert commands.retry(store, head.id, [], stopped=True) == commands.Retried(runs=4, state=CampaignState.ACTIVE)


def test_trying_again_leaves_a_paused_campaign_paused(store: Store) -> None:
    head = submitted(store, lab_error_retries=0)
    end(store, head.id, Outcome.LAB_ERROR, "x")
    commands.pause(store, head.id)
    assert commands.retry(store, head.id, [Outcome.LAB_ERROR]) == commands.Retried(runs=1, state=CampaignState.PAUSED)


def test_a_retry_that_was_killed_half_way_is_finished_by_the_next(store: Store) -> None:
    head = submitted(store)
    store.set_state(head.id, CampaignState.DONE)
    assert commands.retry(store, head.id, [Outcome.LAB_ERROR]) == commands.Retried(runs=0, state=CampaignState.ACTIVE)


# What makes no sense


REFUSED: dict[str, tuple[Callable[[Store, int], object], set[CampaignState]]] = {
    "paused": (commands.pause, {CampaignState.DONE, CampaignState.CANCELLED, CampaignState.STOPPED}),
    "resumed": (commands.resume, {CampaignState.DONE, CampaignState.CANCELLED}),
    "cancelled": (commands.cancel, {CampaignState.DONE}),
    "retried": (lambda store, id_: commands.retry(store, id_, [Outcome.LAB_ERROR]), {CampaignState.CANCELLED}),
    "given another priority": (
        lambda store, id_: commands.set_priority(store, id_, 3),
        {CampaignState.DONE, CampaignState.CANCELLED, CampaignState.STOPPED},
    ),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("done", REFUSED)
def test_what_makes_no_sense_is_refused_and_changes_nothing(store: Store, done: str, state: CampaignState) -> None:
    ask, refused = REFUSED[done]
    head = submitted(store)
    store.set_state(head.id, state, why="for a reason")
    if state in refused:
        with pytest.raises(SpecError, match=f"Campaign {head.id} can't be {done}: it is {state}") as refusal:
            ask(store, head.id)
        assert refusal.value.todo
        assert store.state(head.id) is state
        assert store.run_counts(head.id) == {"pending": 4}
    else:
        ask(store, head.id)
        ask(store, head.id)


@pytest.mark.parametrize("done", REFUSED)
def test_a_campaign_that_is_not_there_is_said(store: Store, done: str) -> None:
    with pytest.raises(SpecError, match="no campaign 7"):
        REFUSED[done][0](store, 7)


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_that_is_none_is_refused(store: Store, priority: int) -> None:
    with pytest.raises(SpecError, match=f"{priority} is no priority"):
        commands.set_priority(store, submitted(store).id, priority)


def test_a_priority_changes_the_rank(store: Store) -> None:
    first, second = submitted(store).id, submitted(store).id
    commands.set_priority(store, second, 5)
    assert [item.id for item in store.queue()] == [second, first]


ASKED = ("pause", "pause now", "resume", "cancel", "cancel now", "retry", "start", "end ok", "end lab-error")


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.sampled_from(ASKED), max_size=25))
def test_whatever_people_ask_in_whatever_order_no_run_is_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    store = open_store(tmp_path_factory.mktemp("store"))
    try:
        campaign_id = submitted(store, lab_error_retries=0).id
        going: list[AttemptHandle] = []
        for step in steps:
            _do(store, campaign_id, step, going)
            counts, state = store.run_counts(campaign_id), store.state(campaign_id)
            assert sum(counts.values()) == 4
            assert counts.get("active", 0) == len(going)
            if state is CampaignState.CANCELLED:
                assert not counts.get("pending"), "nothing of a cancelled campaign waits"
    finally:
        store.close()


def _do(store: Store, campaign_id: int, step: str, going: list[AttemptHandle]) -> None:
    word, _, how = step.partition(" ")
    with suppress(SpecError):
        if word == "pause":
            commands.pause(store, campaign_id, now=how == "now")
        elif word == "resume":
            commands.resume(store, campaign_id)
        elif word == "cancel":
            commands.cancel(store, campaign_id, now=how == "now")
        elif word == "retry":
            commands.retry(store, campaign_id, [Outcome.LAB_ERROR], stopped=True)
    if word == "start" and not going and store.state(campaign_id) is CampaignState.ACTIVE:
        if store.pending_runs(campaign_id, limit=1):
            going.append(in_progress(store, campaign_id))
    elif word == "end" and going:
        assert judgement.accept(store, going.pop(), a_result(Outcome(how), kind="x"))


def _next(store: Store, campaign_id: int) -> AttemptStart:
    run = store.pending_runs(campaign_id, limit=1)[0]
    return AttemptStart(run_id=run.id, order=an_order("b"), resources=frozenset({"host:b"}))
