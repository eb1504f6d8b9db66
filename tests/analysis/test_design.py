"""Comparisons in a block design: known campaigns, with effects planted and without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from labctl.analysis.comparison import Difference, compare
from labctl.analysis.design import Design, Observation
from labctl.analysis.matrix import matrix_of
from tests.report.records import cell_record, demo_campaign

CAMPAIGNS = 1000
MODELS = ("e1000", "e1000e", "rtl8139", "virtio", "vmxnet3", "igb")


def observations(figures: Mapping[str, Sequence[float]], *, hosts: Sequence[str] = ()) -> dict[str, list[Observation]]:
    return {
        cell: [
            Observation(bits_per_second=value, block=block, hosts=tuple(hosts[block : block + 1]))
            for block, value in enumerate(values)
        ]
        for cell, values in figures.items()
    }


def drawn(rng: np.random.Generator, *, cells: int, blocks: int, effect: float = 0.0) -> dict[str, list[Observation]]:
    """A campaign in a night that drifts by 3 % from block to block, on two pairs of hosts that differ by 10 %. The last cell
    is faster than the others by `effect`."""
    night, machines = rng.normal(0, 0.03, blocks), (0.0, 0.1)
    return {
        str(cell): [
            Observation(
                bits_per_second=1e9
                * (1 + night[block] + machines[pair] + rng.normal(0, 0.02) + (effect if cell == cells - 1 else 0.0)),
                block=block,
                hosts=(f"pair-{pair}",),
            )
            for block in range(blocks)
            for pair in [int(rng.integers(2))]
        ]
        for cell in range(cells)
    }


def told(design: Design, cell: str, baseline: str) -> bool:
    contrast = design.contrast(cell, baseline)
    assert contrast is not None
    half = stats.t.ppf(0.975, contrast.freedom) * math.sqrt(contrast.variance)
    assert half == pytest.approx(contrast.half)
    return bool(abs(contrast.value) > half)


def test_with_few_cells_it_is_welchs_test_on_the_plain_figures() -> None:
    design = Design(observations({"a": [18.0, 20.0, 22.0], "b": [9.0, 10.0, 11.0]}), blocked=True)
    contrast = design.contrast("a", "b")
    assert contrast is not None
    assert (contrast.value, contrast.variance, contrast.freedom) == pytest.approx((math.log(2), 2 / 300, 4.0))


def test_a_whole_design_agrees_with_the_analysis_of_variance_worked_by_hand() -> None:
    """Four cells in two blocks, with a shift between the blocks that is the same for all: nothing is left of it."""
    figures = {name: [level * 0.98, level * 1.02] for name, level in {"a": 1e9, "b": 2e9, "c": 3e9, "d": 4e9}.items()}
    contrast = Design(observations(figures), blocked=True).contrast("b", "a")
    assert contrast is not None
    assert contrast.value == pytest.approx(math.log(2))
    assert contrast.variance == pytest.approx(0.0, abs=1e-20)
    sequential = Design(observations(figures), blocked=False).contrast("b", "a")
    assert sequential is not None
    assert sequential.variance == pytest.approx(2 * 0.0008 / 2)


def test_false_alarms_come_at_the_nominal_rate_with_no_effect_planted() -> None:
    rng = np.random.default_rng(20261130)
    alarms = sum(told(Design(drawn(rng, cells=6, blocks=5), blocked=True), "5", "0") for _ in range(CAMPAIGNS))
    assert 0.02 <= alarms / CAMPAIGNS <= 0.065


def test_a_planted_effect_is_found_though_the_night_drifts_and_hosts_differ() -> None:
    rng = np.random.default_rng(4)
    campaigns = [drawn(rng, cells=6, blocks=5, effect=0.06) for _ in range(300)]
    found = sum(told(Design(figures, blocked=True), "5", "0") for figures in campaigns)
    plain = sum(told(Design(figures, blocked=False), "5", "0") for figures in campaigns)
    assert found / 300 > 0.75
    assert plain / 300 < 0.5, "without blocks and hosts the same effect drowns"


def test_a_campaign_of_many_comparisons_raises_a_false_alarm_as_rarely_as_one() -> None:
    rng = np.random.default_rng(5)
    campaign = demo_campaign(factors={"nic_model": MODELS}, baseline={"nic_model": "e1000"}, overrides=())
    cells = [cell_record({"scenario": "same-host", "nic_model": model}, at) for at, model in enumerate(MODELS)]
    matrix, alarmed = matrix_of(campaign, cells), 0
    for _ in range(CAMPAIGNS // 2):
        figures = drawn(rng, cells=len(cells), blocks=4)
        named = {cell.id: figures[str(at)] for at, cell in enumerate(cells)}
        found = compare(matrix, named, blocked=True)
        told_apart = {one.ratio.difference for some in found.values() for one in some}
        alarmed += bool(told_apart & {Difference.FASTER, Difference.SLOWER})
    assert alarmed / (CAMPAIGNS // 2) < 0.07


def test_cells_on_different_hosts_whose_difference_nobody_tells_are_confounded() -> None:
    figures = {
        name: [Observation(bits_per_second=1e9 + at * 1e6, block=at, hosts=(host,)) for at in range(3)]
        for name, host in (("a", "left"), ("b", "left"), ("c", "right"), ("d", "right"))
    }
    design = Design(figures, blocked=True)
    across, within = design.contrast("c", "a"), design.contrast("b", "a")
    assert across is not None
    assert within is not None
    assert across.confounded
    assert not within.confounded


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param({"a": [], "b": [1.0, 2.0]}, id="none"),
        pytest.param({"a": [1.0], "b": [1.0, 2.0]}, id="one"),
        pytest.param({"a": [0.0, 0.0], "b": [1.0, 2.0]}, id="zeros"),
        pytest.param({"b": [1.0, 2.0]}, id="a missing cell"),
    ],
)
def test_a_cell_without_a_spread_has_no_contrast(figures: dict[str, list[float]]) -> None:
    others = {name: [1.0, 1.1, 1.2] for name in ("c", "d", "e", "f")}
    assert Design(observations(figures | others), blocked=True).contrast("a", "b") is None


def test_equal_figures_leave_no_doubt_and_one_huge_outlier_leaves_much() -> None:
    others = {name: [1.0, 1.1, 1.2] for name in ("c", "d", "e")}
    same = Design(observations({"a": [4.0] * 3, "b": [2.0] * 3}), blocked=True).contrast("a", "b")
    assert same is not None
    assert same.variance == 0
    assert told(Design(observations({"a": [4.0, 4.1, 4.2], "b": [2.0, 2.1, 2.2]} | others), blocked=True), "a", "b")
    outlier = {"a": [4.0, 4.1, 400.0], "b": [2.0, 2.1, 2.2]}
    assert Design(observations(outlier | others), blocked=True).contrast("a", "b") is None
