"""Whether a cell is known well enough, and which ones never were."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.adaptive import half_width, settled, unsettled, wanted
from labctl.model.campaign import Adaptive, Campaign
from labctl.model.outcome import Outcome, OutcomeDetail, Purpose, RunState
from labctl.model.result import AttemptResult, CampaignRecord, CellRecord, RunRecord
from labctl.model.scenario import Scenario
from tests.report.records import reading, transfer

FIVE = Adaptive(maximum=6, within=0.05)


def test_against_values_worked_by_hand() -> None:
    # sd = sqrt(2.5), t(0.975, 4) = 2.776445: half the interval is 1.963243, of a mean of 10.
    figures = [8.0, 9.0, 10.0, 11.0, 12.0]
    assert half_width(figures) == pytest.approx(0.1963243, abs=1e-6)
    assert settled(figures, Adaptive(maximum=9, within=0.1964))
    assert not settled(figures, Adaptive(maximum=9, within=0.1963))


@pytest.mark.parametrize("figures", [[], [1e9], [0.0, 0.0]])
def test_without_an_interval_nothing_is_known_well_enough(figures: list[float]) -> None:
    assert half_width(figures) is None
    assert not settled(figures, FIVE)


@pytest.mark.parametrize(
    ("figures", "runs", "again"),
    [
        ([1e9, 2e9, 3e9], 3, True),
        ([1e9, 1e9, 1e9], 3, False),
        ([1e9, 2e9, 3e9], 6, False),
        ([1e9, 2e9, 3e9], 7, False),
        ([1e9], 3, True),
        ([], 3, False),
    ],
)
def test_another_run_is_wanted_as_long_as_it_may_help(figures: list[float], runs: int, again: bool) -> None:
    assert wanted(figures, FIVE, runs) is again


@given(st.lists(st.floats(1e6, 1e11), max_size=12), st.integers(2, 12), st.floats(0.001, 0.5))
def test_no_cell_is_repeated_beyond_its_most_runs_nor_when_it_is_settled(
    figures: list[float], most: int, within: float
) -> None:
    adaptive = Adaptive(maximum=most, within=within)
    if wanted(figures, adaptive, len(figures)):
        assert len(figures) < most
        assert not settled(figures, adaptive)


def a_run(number: int, cell: str, figure: float | None, **other: object) -> RunRecord:
    result = None
    if figure is not None:
        ok = OutcomeDetail(outcome=Outcome.OK)
        result = AttemptResult(detail=ok, transfers=(transfer(1, reading(figure)),))
    values: dict[str, object] = {"state": RunState.DONE, "sequence": number, "replicate": number, "result": result}
    return RunRecord(id=number, cell=cell, **(values | other))  # type: ignore[arg-type]


def a_record(runs: Sequence[RunRecord], *, ended: float | None = 2.0) -> CampaignRecord:
    names = dict.fromkeys(run.cell for run in runs)
    return CampaignRecord(
        id=1, name="x", state="done", lab="lab", submitted=1.0, started=1.0, ended=ended, campaign_text="", lab_text="",
        document={}, runs=tuple(runs),
        cells=tuple(
            CellRecord(id=name, levels={"scenario": "same-host"}, applicable=True, position=at)
            for at, name in enumerate(names)
        ),
    )  # fmt: skip


def a_campaign(adaptive: Adaptive | None) -> Campaign:
    return Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, repeats=3, adaptive=adaptive)


def runs_of(cell: str, *figures: float | None, **other: object) -> list[RunRecord]:
    return [a_run(number, cell, figure, **other) for number, figure in enumerate(figures, 1)]


def test_cells_that_never_got_there_say_why() -> None:
    budget = Adaptive(maximum=4, within=0.05, budget=60.0)
    stopped = OutcomeDetail(outcome=Outcome.CANCELLED, kind="cell-stopped")
    record = a_record(
        [
            *runs_of("settled", 1e9, 1e9, 1e9),
            *runs_of("widest", 1e9, 2e9, 3e9, 4e9),
            *runs_of("budget", 1e9, 2e9, 3e9),
            *runs_of("nothing", None, None, None),
            *runs_of("stopped", 1e9, 2e9),
            a_run(3, "stopped", None, unrun=stopped),
            *runs_of("open", 1e9, 2e9),
            a_run(3, "open", None, state=RunState.PENDING),
        ]
    )
    said = {cell.cell: (cell.n, cell.why) for cell in unsettled(a_campaign(budget), record)}
    assert said == {
        "widest": (4, "it has 4 runs, which is the most that was asked for"),
        "budget": (3, "the budget for further runs was used up"),
        "nothing": (0, "none of its runs gave a figure"),
        "stopped": (2, "runs of it were not run"),
        "open": (2, "not all of its runs are done"),
    }


def test_anchors_are_no_repeats_and_a_campaign_without_has_no_such_cells() -> None:
    runs = [*runs_of("x", 1e9, 1e9, 1e9), a_run(9, "x", 9e9, purpose=Purpose.ANCHOR)]
    assert unsettled(a_campaign(FIVE), a_record(runs)) == ()
    wide = a_record(runs_of("x", 1e9, 2e9, 3e9), ended=None)
    assert unsettled(a_campaign(None), wide) == ()
    assert unsettled(a_campaign(FIVE), wide)[0].why == "the campaign goes on"
