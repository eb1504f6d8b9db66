"""The trend of an anchor's figures, against other ways to reckon it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from labctl.analysis.drift import Point, Trend, drift_of, trend_of
from labctl.model.campaign import Anchor, Campaign
from labctl.model.outcome import Outcome, OutcomeDetail, Purpose, RunState
from labctl.model.result import AttemptResult, RunRecord
from labctl.model.scenario import Scenario
from tests.analysis.test_adaptive import a_record
from tests.report.records import EPOCH, reading, transfer

LEVELS = {"scenario": "same-host", "nic_model": "virtio"}


def a_point(hour: float, figure: float, *hosts: str) -> Point:
    return Point(run=1, at=EPOCH + 3600 * hour, bits_per_second=figure, hosts=hosts, anchor=True)


figures = st.lists(st.tuples(st.floats(0, 12), st.floats(1e8, 1e10)), min_size=3, max_size=20)


@given(figures)
def test_on_one_host_it_is_the_line_of_least_squares(some: list[tuple[float, float]]) -> None:
    hours = [hour for hour, _ in some]
    assume(max(hours) - min(hours) > 0.01)
    assume(len({figure for _, figure in some}) > 1)
    trend = trend_of(sorted((a_point(hour, figure, "a") for hour, figure in some), key=lambda point: point.at))
    line = stats.linregress(hours, [figure for _, figure in some])
    share = 100 / np.mean([figure for _, figure in some])
    half = stats.t.ppf(0.975, len(some) - 2) * line.stderr
    assert trend.percent_per_hour == pytest.approx(line.slope * share, rel=1e-5, abs=1e-6)
    assert trend.low == pytest.approx((line.slope - half) * share, rel=1e-4, abs=1e-5)
    assert trend.high == pytest.approx((line.slope + half) * share, rel=1e-4, abs=1e-5)


@given(st.lists(st.tuples(st.floats(0, 12), st.floats(1e8, 1e10), st.sampled_from("abc")), min_size=6, max_size=20))
def test_with_several_hosts_it_is_the_regression_with_a_level_for_each(some: list[tuple[float, float, str]]) -> None:
    hosts = sorted({host for *_, host in some})
    design = np.array([[hour, *(1.0 if host == each else 0.0 for each in hosts)] for hour, _, host in some])
    assume(np.linalg.matrix_rank(design, tol=1e-3) == design.shape[1])
    y = np.array([figure for _, figure, _ in some])
    solution, *_ = np.linalg.lstsq(design, y, rcond=None)
    freedom = len(some) - design.shape[1]
    trend = trend_of(sorted((a_point(*item) for item in some), key=lambda point: point.at))
    assert trend.percent_per_hour == pytest.approx(100 * solution[0] / y.mean(), rel=1e-4, abs=1e-4)
    if freedom < 1:
        assert trend.low is trend.high is None
        return
    residual = y - design @ solution
    error = np.sqrt(residual @ residual / freedom * np.linalg.inv(design.T @ design)[0, 0])
    half = 100 * stats.t.ppf(0.975, freedom) * error / y.mean()
    assert trend.low is not None
    assert trend.high is not None
    assert (trend.high - trend.low) / 2 == pytest.approx(half, rel=1e-3, abs=1e-4)


def test_hosts_that_differ_are_no_drift_and_hide_none() -> None:
    slow, fast = 1e9, 3e9
    steady = [a_point(hour, slow if hour % 2 else fast, "a" if hour % 2 else "b") for hour in range(8)]
    assert trend_of(steady).percent_per_hour == pytest.approx(0.0, abs=1e-9)
    drifting = [replace(point, bits_per_second=point.bits_per_second - 4e7 * hour) for hour, point in enumerate(steady)]
    assert trend_of(drifting).percent_per_hour == pytest.approx(-100 * 4e7 / (2e9 - 1.4e8))
    assert trend_of(drifting).told
    assert not trend_of(steady).told


@pytest.mark.parametrize(
    ("points", "trend"),
    [
        ([], Trend(n=0, hours=0.0)),
        ([a_point(1, 1e9, "a")], Trend(n=1, hours=0.0)),
        ([a_point(1, 1e9, "a"), a_point(1, 2e9, "a")], Trend(n=2, hours=0.0)),
        ([a_point(1, 1e9, "a"), a_point(5, 2e9, "b")], Trend(n=2, hours=4.0)),
        ([a_point(0, 0.0, "a"), a_point(1, 0.0, "a")], Trend(n=2, hours=1.0)),
    ],
)
def test_what_can_not_be_told_is_not_said(points: list[Point], trend: Trend) -> None:
    assert trend_of(points) == trend


def test_two_points_have_a_slope_and_no_interval() -> None:
    trend = trend_of([a_point(0, 1e9, "a"), a_point(2, 3e9, "a")])
    assert trend == Trend(n=2, hours=2.0, percent_per_hour=pytest.approx(50.0))
    assert not trend.told


def test_all_runs_of_the_anchors_cell_that_have_a_figure_are_points() -> None:
    campaign = Campaign(
        name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, anchor=Anchor(levels=LEVELS, every=2)
    )
    known = drift_of(campaign, a_record([]))
    assert known is not None
    ok, failed = OutcomeDetail(outcome=Outcome.OK), OutcomeDetail(outcome=Outcome.FAILED)

    def a_run(number: int, cell: str, detail: OutcomeDetail, purpose: Purpose) -> RunRecord:
        moved = transfer(1, reading(1e9), started=EPOCH + 3600 * (9 - number))
        return RunRecord(
            id=number, cell=cell, replicate=number, state=RunState.DONE, sequence=number, purpose=purpose,
            hosts=("a",), result=AttemptResult(detail=detail, transfers=(moved,)),
        )  # fmt: skip

    record = a_record(
        [
            a_run(1, known.cell, ok, Purpose.MEASURE),
            a_run(2, known.cell, ok, Purpose.ANCHOR),
            a_run(3, known.cell, failed, Purpose.ANCHOR),
            a_run(4, "other", ok, Purpose.MEASURE),
        ]
    )
    drift = drift_of(campaign, record)
    assert drift is not None
    assert [(point.run, point.anchor) for point in drift.points] == [(2, True), (1, False)]
    assert drift.trend.n == 2
    assert drift_of(replace(campaign, anchor=None), record) is None
