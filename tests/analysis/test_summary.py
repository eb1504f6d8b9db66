from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labctl.analysis.summary import Summary, median_interval, outliers, summarise


def test_against_values_worked_by_hand() -> None:
    # Mean 10, deviations -2 -1 0 1 2: sd = sqrt(10 / 4); t(0.975, 4) = 2.776445 (any table).
    summary = summarise([8.0, 9.0, 10.0, 11.0, 12.0])
    assert summary.n == 5
    assert summary.mean == summary.median == 10.0
    assert summary.sd == pytest.approx(1.5811388)
    assert summary.cv == pytest.approx(0.15811388)
    assert (summary.low, summary.high) == pytest.approx((10 - 1.963243, 10 + 1.963243), abs=1e-6)
    assert (summary.minimum, summary.maximum) == (8.0, 12.0)


def test_nothing_is_known_of_no_runs_and_no_spread_of_one() -> None:
    assert summarise([]) == Summary(n=0)
    assert summarise([5e9]) == Summary(n=1, mean=5e9, median=5e9, minimum=5e9, maximum=5e9)


def test_two_runs_have_an_interval_as_wide_as_it_must_be() -> None:
    summary = summarise([1e9, 2e9])
    assert summary.low is not None
    assert summary.high is not None
    assert (summary.high - summary.low) / 2 == pytest.approx(12.7062 * 0.5e9, rel=1e-5)


def test_equal_figures_have_an_interval_without_width() -> None:
    assert summarise([3.0, 3.0, 3.0]) == Summary(
        n=3, mean=3.0, median=3.0, sd=0.0, cv=0.0, low=3.0, high=3.0, minimum=3.0, maximum=3.0
    )


def test_one_huge_outlier_moves_the_mean_and_not_the_median() -> None:
    summary = summarise([1.0, 1.1, 0.9, 1.05, 100.0])
    assert summary.median == 1.05
    assert summary.mean == pytest.approx(20.81)


@given(st.lists(st.floats(1e3, 1e11), min_size=2, max_size=30))
def test_interval_is_that_of_scipy(values: list[float]) -> None:
    summary = summarise(values)
    scale = stats.sem(values)
    if not scale > 0:
        return
    low, high = stats.t.interval(0.95, len(values) - 1, loc=math.fsum(values) / len(values), scale=scale)
    assert (summary.low, summary.high) == pytest.approx((low, high), rel=1e-6, abs=1e-3 * max(values))


def test_interval_of_the_median_covers_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(400):
        low, high = median_interval(rng.normal(100.0, 5.0, 15))
        assert low is not None
        assert high is not None
        hits += low <= 100.0 <= high
    assert 0.9 < hits / 400 < 0.99


def test_interval_of_the_median_against_scipys_bootstrap() -> None:
    values = np.random.default_rng(1).normal(1e9, 5e7, 20)
    expected = stats.bootstrap((values,), np.median, n_resamples=9999, method="percentile", rng=2).confidence_interval
    assert median_interval(values) == pytest.approx((expected.low, expected.high), rel=0.01)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_few_figures_have_no_interval_of_the_median(n: int) -> None:
    assert median_interval([1.0 + at for at in range(n)]) == (None, None)


@pytest.mark.parametrize(
    ("values", "marked"),
    [
        pytest.param([10.0, 10.1, 9.9, 10.05, 30.0], (4,), id="one huge"),
        pytest.param([10.0, 10.0, 10.0, 10.0, 10.2], (4,), id="more than half equal"),
        pytest.param([10.0] * 5, (), id="all equal"),
        pytest.param([9.0, 9.5, 10.0, 10.5, 11.0], (), id="none"),
        pytest.param([1.0, 1.0, 9.0], (), id="too few to tell"),
        pytest.param([], (), id="no figure"),
    ],
)
def test_outliers_are_marked(values: list[float], marked: tuple[int, ...]) -> None:
    assert outliers(values) == marked
