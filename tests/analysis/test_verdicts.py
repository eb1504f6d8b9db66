"""Verdicts against what the user expects."""

from __future__ import annotations

import pytest

from labctl.analysis.summary import Summary, summarise
from labctl.analysis.verdicts import Grade, verdict_of
from labctl.model.campaign import Expectation

SAME_HOST = {"scenario": "same-host"}


@pytest.mark.parametrize(
    ("mean", "grade"),
    [(9.5e9, Grade.EXCELLENT), (9e9, Grade.EXCELLENT), (7.1e9, Grade.GOOD), (4e9, Grade.POOR), (3.9e9, Grade.AWFUL)],
)
def test_the_grade_is_that_of_the_share(mean: float, grade: Grade) -> None:
    verdict = verdict_of(Summary(n=1, mean=mean), SAME_HOST, [Expectation(of=10_000_000_000)], speed=None)
    assert verdict is not None
    assert (verdict.grade, verdict.least, verdict.most) == (grade, grade, grade)
    assert verdict.share == pytest.approx(mean / 1e10)
    assert verdict.rule == "excellent from 90 %, good from 70 %, poor from 40 %, awful below"


def test_an_interval_over_a_limit_is_not_sure() -> None:
    verdict = verdict_of(summarise([6.8e9, 7.2e9, 7.4e9]), SAME_HOST, [Expectation(of=10_000_000_000)], speed=None)
    assert verdict is not None
    assert (verdict.grade, verdict.least, verdict.most, verdict.sure) == (Grade.GOOD, Grade.POOR, Grade.GOOD, False)


def test_the_first_expectation_that_selects_the_cell_is_its_own() -> None:
    expectations = [
        Expectation(of=1_000_000_000, levels={"scenario": ("cross-host",)}),
        Expectation(of=2_000_000_000),
    ]
    across = verdict_of(Summary(n=1, mean=1e9), {"scenario": "cross-host"}, expectations, speed=None)
    same = verdict_of(Summary(n=1, mean=1e9), SAME_HOST, expectations, speed=None)
    assert across is not None
    assert same is not None
    assert (across.of, same.of) == (1e9, 2e9)


def test_the_speed_of_the_network_is_all_of_it() -> None:
    verdict = verdict_of(Summary(n=1, mean=5e9), SAME_HOST, [Expectation()], speed=1e10)
    assert verdict is not None
    assert verdict.grade is Grade.POOR


@pytest.mark.parametrize(
    ("summary", "expectations"),
    [
        pytest.param(Summary(n=0), [Expectation(of=1)], id="no figure"),
        pytest.param(Summary(n=1, mean=1.0), [], id="nothing expected"),
        pytest.param(Summary(n=1, mean=1.0), [Expectation()], id="speed not known"),
        pytest.param(Summary(n=1, mean=1.0), [Expectation(of=1, levels={"scenario": ("cross-host",)})], id="others"),
    ],
)
def test_there_is_no_verdict(summary: Summary, expectations: list[Expectation]) -> None:
    assert verdict_of(summary, SAME_HOST, expectations, speed=None) is None
