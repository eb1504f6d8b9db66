from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.comparison import (
    MOST_NEEDED,
    Comparison,
    Difference,
    Ratio,
    compare,
    corrected,
    hedges_g,
    ratio_of_means,
    runs_needed,
)
from labctl.analysis.design import Observation
from labctl.analysis.matrix import matrix_of
from labctl.model.campaign import Campaign, Override, Selection
from labctl.model.result import CellRecord
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from tests.report.records import cell_record, demo_campaign


def test_against_the_formula_worked_by_hand() -> None:
    # Means 20 and 10, variances 4 and 1, n 3 each: cv^2/n = 4/400/3 and 1/100/3, both 1/300;
    # variance 2/300, Welch-Satterthwaite: (2/300)^2 / (2 (1/300)^2 / 2) = 4 degrees of freedom.
    ratio = ratio_of_means([18.0, 20.0, 22.0], [9.0, 10.0, 11.0])
    half = 2.776445 * (2 / 300) ** 0.5
    assert ratio.ratio == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == pytest.approx((2 * np.exp(-half), 2 * np.exp(half)), rel=1e-6)
    assert ratio.percent == pytest.approx(100.0)
    assert ratio.difference is Difference.FASTER


@pytest.mark.parametrize(
    ("values", "baseline", "difference"),
    [
        ([5.0, 5.1, 4.9], [10.0, 10.1, 9.9], Difference.SLOWER),
        ([10.2, 9.7, 10.4], [10.0, 10.1, 9.6], Difference.NOT_TOLD),
        ([20.0], [10.0, 10.1], Difference.NO_INTERVAL),
        ([20.0, 20.1], [10.0], Difference.NO_INTERVAL),
        ([], [10.0, 10.1], Difference.NO_FIGURE),
        ([10.0, 10.1], [], Difference.NO_FIGURE),
        ([10.0, 10.1], [0.0, 0.0], Difference.NO_FIGURE),
        ([0.0, 0.0], [10.0, 10.1], Difference.NO_INTERVAL),
    ],
)
def test_what_can_be_told(values: list[float], baseline: list[float], difference: Difference) -> None:
    assert ratio_of_means(values, baseline).difference is difference


def test_figures_without_any_spread_leave_no_doubt() -> None:
    ratio = ratio_of_means([4.0, 4.0], [2.0, 2.0])
    assert (ratio.ratio, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("n", "baseline_n", "cv"), [(3, 3, 0.08), (5, 3, 0.11), (10, 10, 0.1)])
def test_interval_covers_the_true_ratio_as_often_as_it_says(n: int, baseline_n: int, cv: float) -> None:
    rng = np.random.default_rng(20260914)
    rounds, hits, alarms = 2000, 0, 0
    for _ in range(rounds):
        values = rng.normal(3e9, cv * 3e9, n)
        baseline = rng.normal(1e9, cv * 1e9, baseline_n)
        ratio = ratio_of_means(values.tolist(), baseline.tolist())
        assert ratio.low is not None
        assert ratio.high is not None
        hits += ratio.low <= 3 <= ratio.high
        same = ratio_of_means((values / 3).tolist(), baseline.tolist())
        alarms += same.difference is not Difference.NOT_TOLD
    # 0.95 within what 2000 rounds can tell (five standard errors), with the conservative side of Welch at tiny n.
    assert 0.925 < hits / rounds < 0.985
    assert 0.015 < alarms / rounds < 0.075


def test_agrees_with_welchs_test_on_logarithms_when_the_spread_is_small() -> None:
    rng = np.random.default_rng(1)
    values, baseline = rng.normal(2e9, 2e7, 6), rng.normal(1e9, 1.5e7, 4)
    ratio = ratio_of_means(values.tolist(), baseline.tolist())
    welch = stats.ttest_ind(np.log(values), np.log(baseline), equal_var=False).confidence_interval(0.95)
    assert (ratio.low, ratio.high) == pytest.approx((np.exp(welch.low), np.exp(welch.high)), rel=1e-3)


def _cells(*levels: Mapping[str, Level]) -> tuple[CellRecord, ...]:
    return tuple(cell_record(one, position) for position, one in enumerate(levels))


def _compared(campaign: Campaign, cells: tuple[CellRecord, ...]) -> dict[str, tuple[Comparison, ...]]:
    figures = {
        cell.id: [Observation(bits_per_second=value, block=block) for block, value in enumerate((1.0 + at, 1.1 + at))]
        for at, cell in enumerate(cells)
    }
    return compare(matrix_of(campaign, cells), figures, blocked=False)


def test_every_factor_is_compared_with_everything_else_equal() -> None:
    campaign = demo_campaign(factors={"nic_model": ("virtio", "e1000"), "streams": (1, 4)}, overrides=())
    cells = _cells(
        *(
            {"scenario": scenario, "nic_model": model, "streams": streams}
            for scenario in ("same-host", "cross-host")
            for model in ("virtio", "e1000")
            for streams in (1, 4)
        )
    )
    compared = _compared(campaign, cells)
    by_factor = {one.factor: one.baseline_cell for one in compared[cells[5].id]}  # cross-host virtio 4
    assert by_factor == {
        "scenario": cells[1].id,  # same-host virtio 4
        "nic_model": cells[7].id,  # cross-host e1000 4: the campaign names e1000 as the baseline
        "streams": cells[4].id,  # cross-host virtio 1: the first level
    }
    assert compared[cells[2].id] == ()  # same-host e1000 1 is at every baseline


def test_a_cell_without_its_counterpart_is_not_compared() -> None:
    campaign = demo_campaign()
    cells = _cells(
        {"scenario": "same-host", "nic_model": "virtio"},
        {"scenario": "cross-host", "nic_model": "vmxnet3"},
        {"scenario": "host-to-host"},
    )
    assert all(not comparisons for comparisons in _compared(campaign, cells).values())


def test_settings_of_another_scenario_only_do_not_hinder_a_comparison_by_scenario() -> None:
    campaign = demo_campaign(factors={"nic_model": ("virtio",), "peer": ("own-host",)}, baseline={})
    cells = _cells(
        {"scenario": "same-host", "nic_model": "virtio"},
        {"scenario": "vm-to-host", "nic_model": "virtio", "peer": "own-host"},
    )
    assert [one.baseline_cell for one in _compared(campaign, cells)[cells[1].id]] == [cells[0].id]


def test_an_included_cell_is_compared_with_the_setting_that_the_others_have() -> None:
    campaign = demo_campaign(scenarios=(Scenario.SAME_HOST,), settings={"mtu": 1500}, overrides=())
    cells = _cells(
        {"scenario": "same-host", "nic_model": "virtio"}, {"scenario": "same-host", "nic_model": "virtio", "mtu": 9000}
    )
    (comparison,) = _compared(campaign, cells)[cells[1].id]
    assert (comparison.factor, comparison.level, comparison.baseline) == ("mtu", 9000, 1500)


def test_overrides_that_confound_a_comparison_are_named_and_mere_reporting_is_not() -> None:
    override = Override(
        when=Selection(levels={"scenario": ("cross-host",)}), settings={"seconds": 30.0, "interval": 0.1}
    )
    campaign = replace(demo_campaign(), overrides=(override,))
    cells = _cells({"scenario": "same-host", "nic_model": "virtio"}, {"scenario": "cross-host", "nic_model": "virtio"})
    (comparison,) = _compared(campaign, cells)[cells[1].id]
    assert comparison.also_differs == ("seconds",)


def test_effect_size_against_the_formula_worked_by_hand() -> None:
    # Means 20 and 10, pooled variance (4 + 1) / 2: d = 10 / 1.5811 = 6.3246; J = 1 - 3 / 15 = 0.8.
    assert hedges_g([18.0, 20.0, 22.0], [9.0, 10.0, 11.0]) == pytest.approx(5.05964, rel=1e-5)
    assert hedges_g([1.0], [2.0, 3.0]) is None
    assert hedges_g([1.0, 1.0], [2.0, 2.0]) is None


def test_p_values_are_those_of_welchs_test() -> None:
    rng = np.random.default_rng(7)
    values, baseline = rng.normal(1.01e9, 1e7, 5), rng.normal(1e9, 2e7, 4)
    expected = stats.ttest_ind(values, baseline, equal_var=False).pvalue
    assert ratio_of_means(values.tolist(), baseline.tolist()).p == pytest.approx(expected, rel=0.05)


def test_holms_correction_worked_by_hand() -> None:
    ratios = [Ratio(n=3, baseline_n=3, ratio=1.1, p=p) for p in (0.01, 0.04, 0.03, 0.005)]
    ratios.insert(2, Ratio(n=1, baseline_n=1, ratio=2.0))
    found = [ratio.p_among_all for ratio in corrected(ratios)]
    assert found == [pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02)]


def test_one_comparison_alone_needs_no_correction() -> None:
    (alone,) = corrected([Ratio(n=3, baseline_n=3, ratio=1.1, p=0.01)])
    assert alone.p_among_all is None


def test_what_excludes_zero_by_chance_among_many_is_not_called_real() -> None:
    plain = {"n": 3, "baseline_n": 3, "ratio": 1.1, "low": 1.01, "high": 1.2}
    assert Ratio(**plain, p=0.03, p_among_all=0.3).difference is Difference.MAY_BE_CHANCE  # type: ignore[arg-type]
    assert Ratio(**plain, p=0.003, p_among_all=0.03).difference is Difference.FASTER  # type: ignore[arg-type]


def test_so_many_runs_as_are_said_to_be_needed_tell_the_difference() -> None:
    needed = runs_needed(np.log(1.05), 0.04**2)
    assert needed is not None
    rng = np.random.default_rng(3)
    told = [
        ratio_of_means(
            rng.normal(1.05e9, 0.042e9, needed).tolist(), rng.normal(1e9, 0.04e9, needed).tolist()
        ).difference
        for _ in range(1000)
    ]
    assert 0.76 < told.count(Difference.FASTER) / 1000 < 0.86
    assert runs_needed(1e-6, 0.01) == MOST_NEEDED
    assert runs_needed(0.0, 0.01) is None
