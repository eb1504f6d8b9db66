"""Adaptive repeats over a real store: runs are added as they are needed, once, within the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.analysis.adaptive import settled
from labctl.analysis.figures import throughput_of
from labctl.campaign import adaptive, commands, judgement, scheduler
from labctl.model.campaign import Adaptive, Anchor
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, Purpose, RunState
from labctl.model.result import AttemptResult
from labctl.store import After, CampaignHead, Store, open_store
from tests.campaign.byhand import lab_of
from tests.campaign.outbox import Outbox, carry_out, submitted
from tests.campaign.wall import Wall
from tests.report.records import reading, transfer
from tests.values import a_result

ONE_CELL: dict[str, object] = {"factors": {"nic_model": ("virtio",)}}
WIDE = Adaptive(maximum=6, within=0.05)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


@pytest.fixture
def store(tmp_path: Path, wall: Wall) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def a_figure(bits_per_second: float) -> AttemptResult:
    return replace(a_result(), transfers=(transfer(1, reading(bits_per_second)),))


def work_off(store: Store, wall: Wall, figure: Callable[[str, int], float], *, seconds: float = 10.0) -> None:
    """Carry everything out until no campaign is active; `figure` is of a NIC model and a replicate."""
    for _ in range(300):
        if not store.queue():
            return
        outbox = Outbox()
        scheduler.advance(store, outbox)
        wall.pass_by(seconds)
        for handle in outbox.attempts:
            standing = store.standing(handle.id)
            cells = {cell.id: cell for cell in store.record(standing.campaign_id).cells}
            model = str(cells[standing.cell].levels["nic_model"])
            assert carry_out(store, handle, a_figure(figure(model, standing.replicate)))
    raise AssertionError("the campaigns did not end")


def replicates(store: Store, head: CampaignHead, model: str) -> list[int]:
    record = store.record(head.id)
    cells = {cell.id for cell in record.cells if cell.levels["nic_model"] == model}
    return sorted(run.replicate for run in record.runs if run.cell in cells)


def noisy(model: str, replicate: int) -> float:
    return 1e9 if model == "virtio" else 1e9 * (1 + 0.5 * (-1) ** replicate)


def test_only_cells_that_need_it_are_repeated_and_only_as_often_as_was_asked_for(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), repeats=3, adaptive=WIDE)
    work_off(store, wall, noisy)
    assert replicates(store, head, "virtio") == [1, 2, 3]
    assert replicates(store, head, "e1000") == [1, 2, 3, 4, 5, 6]
    assert store.state(head.id) is CampaignState.DONE


def test_a_cell_is_repeated_until_it_is_known_well_enough(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=2, adaptive=replace(WIDE, maximum=50))
    work_off(store, wall, lambda _, replicate: 1e9 * (1 + 0.03 * (-1) ** replicate))
    cell = store.record(head.id).cells[0].id
    figures = [figure for result in store.results_of_cell(head.id, cell) if (figure := throughput_of(result))]
    assert 2 < len(figures) < 50
    assert settled(figures, WIDE)
    assert not settled(figures[:-1], WIDE)


def test_further_runs_take_no_more_than_the_budget_of_the_campaign(store: Store, wall: Wall) -> None:
    models = ("virtio", "e1000", "rtl8139")
    head = submitted(
        store,
        lab_of("a"),
        factors={"nic_model": models},
        repeats=2,
        adaptive=Adaptive(maximum=9, within=0.01, budget=55.0),
    )
    work_off(store, wall, lambda _, replicate: 1e9 * replicate, seconds=10.0)
    assert sum(len(replicates(store, head, model)) for model in models) == 3 * 2 + 5
    assert store.state(head.id) is CampaignState.DONE


def test_considering_a_cell_many_times_adds_one_run(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=1, adaptive=WIDE)
    outbox = Outbox()
    scheduler.advance(store, outbox)
    cell = store.record(head.id).cells[0].id
    assert adaptive.consider(store, head.id, cell) == 0, "its run is not done"
    carry_out(store, outbox.attempts[0], a_figure(1e9))
    assert store.run_counts(head.id) == {Outcome.OK: 1, RunState.PENDING: 1}, "it was considered with its result"
    assert [adaptive.consider(store, head.id, cell) for _ in range(3)] == [0, 0, 0]


def test_a_worker_that_died_before_it_considered_its_cell_ends_no_campaign_early(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=2, adaptive=WIDE)
    for figure in (1e9, 2e9):
        outbox = Outbox()
        scheduler.advance(store, outbox)
        assert store.claim(outbox.attempts[0], worker="w:1") is not None
        assert store.accept(outbox.attempts[0], a_figure(figure), After()) is not None
    assert not store.has_open_runs(head.id)
    assert scheduler.advance(store, Outbox()).ended == ()
    assert store.run_counts(head.id) == {Outcome.OK: 2, RunState.PENDING: 1}


def test_a_campaign_that_has_ended_gets_no_further_runs(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=1, adaptive=WIDE)
    outbox = Outbox()
    scheduler.advance(store, outbox)
    assert store.claim(outbox.attempts[0], worker="w:1") is not None
    commands.cancel(store, head.id)
    assert judgement.accept(store, outbox.attempts[0], a_figure(1e9))
    assert store.run_counts(head.id) == {Outcome.OK: 1}


def test_a_cell_without_any_figure_is_not_repeated(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=2, adaptive=WIDE)
    for _ in range(2):
        outbox = Outbox()
        scheduler.advance(store, outbox)
        carry_out(store, outbox.attempts[0], a_result(Outcome.FAILED, kind="connection-lost"))
    assert scheduler.advance(store, Outbox()).ended == (head.id,)
    assert store.run_counts(head.id) == {Outcome.FAILED: 2}


def test_a_cell_of_which_runs_were_ended_without_being_run_is_not_repeated(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=3, adaptive=WIDE)
    for figure in (1e9, 2e9):
        outbox = Outbox()
        scheduler.advance(store, outbox)
        carry_out(store, outbox.attempts[0], a_figure(figure))
    store.end_pending(head.id, OutcomeDetail(outcome=Outcome.CANCELLED, kind="cell-stopped"))
    assert scheduler.advance(store, Outbox()).ended == (head.id,)


def test_runs_of_an_anchor_are_no_repeats_of_its_cell(store: Store, wall: Wall) -> None:
    anchor = Anchor(levels={"scenario": "same-host", "nic_model": "virtio"}, every=2)
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=4, adaptive=WIDE, anchor=anchor)
    work_off(store, wall, lambda _, replicate: 1e9 if replicate < 100 else 5e9)
    purposes = [run.purpose for run in store.record(head.id).runs]
    assert purposes.count(Purpose.MEASURE) == 4
    assert purposes.count(Purpose.ANCHOR) == 2


def test_a_campaign_without_adaptive_repeats_costs_nothing_more(store: Store, wall: Wall) -> None:
    head = submitted(store, lab_of("a"), **ONE_CELL, repeats=2)
    work_off(store, wall, lambda _, replicate: 1e9 * replicate)
    assert replicates(store, head, "virtio") == [1, 2]
    assert adaptive.consider_all(store, head.id, {}) == 0
