"""What transfers cost, from counters of both ends to every format."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import pytest
from rich.console import Console

from labctl.analysis.costs import cost_of
from labctl.model.reading import Latency
from labctl.model.result import AttemptResult, CampaignRecord, EndpointCost
from labctl.model.scenario import Side
from labctl.report import print_terminal, to_csv, to_markdown
from labctl.report.data import report_of
from labctl.report.html import render_html
from tests.report.records import matrix_record, ok_result


def costly(result: AttemptResult, *, busy: float = 5.0, median: float | None = 2.0, lost: int = 1) -> AttemptResult:
    """A result whose sender was busy for so many seconds of ten."""
    costs = (
        EndpointCost(side=Side.SENDER, seconds=10.0, cpu_seconds=busy, bits_per_cpu_second=1e10 / busy),
        EndpointCost(side=Side.RECEIVER, seconds=10.0),
    )
    latency = Latency(rate=10, sent=100, lost=lost, median_ms=median, p99_ms=median and 4 * median)
    return replace(result, transfers=tuple(replace(one, costs=costs, latency=latency) for one in result.transfers))


@pytest.fixture(scope="module")
def record() -> CampaignRecord:
    plain = matrix_record()
    runs = [replace(run, result=costly(run.result)) if run.result is not None else run for run in plain.runs]
    return replace(plain, runs=tuple(runs))


def test_busy_cores_are_seconds_of_work_over_seconds() -> None:
    results = [costly(ok_result(random.Random(1), {"scenario": "same-host"}), busy=busy) for busy in (4.0, 6.0)]
    cost = cost_of(results)
    assert cost is not None
    sender = cost.sides[Side.SENDER]
    assert (sender.busy_cores.n, sender.busy_cores.mean) == (2, pytest.approx(0.5))
    assert sender.per_core.mean == pytest.approx((2.5e9 + 1e10 / 6) / 2)
    assert Side.RECEIVER not in cost.sides, "nobody could read its counters"
    assert cost.waits is not None
    assert (cost.waits.median.mean, cost.waits.p99.mean, cost.waits.lost) == (2.0, 8.0, 0.01)


def test_probes_that_all_were_lost_have_no_time() -> None:
    cost = cost_of([costly(ok_result(random.Random(1), {"scenario": "same-host"}), median=None, lost=100)])
    assert cost is not None
    assert cost.waits is not None
    assert (cost.waits.median.n, cost.waits.lost) == (0, 1.0)


def test_nothing_known_is_no_cost() -> None:
    assert cost_of([ok_result(random.Random(1), {"scenario": "same-host"})]) is None
    assert cost_of([]) is None


def test_every_format_tells_of_it(record: CampaignRecord) -> None:
    out = io.StringIO()
    print_terminal(record, Console(file=out, width=250))
    for text in (out.getvalue(), to_markdown(record), render_html(report_of(record))):
        assert "What it cost" in text
        assert "busy cores" in text
    assert "round_trip_p99_ms" in to_csv(record, rows="cells").splitlines()[0]


def test_a_report_without_counters_has_no_such_table() -> None:
    assert "What it cost" not in render_html(report_of(matrix_record()))
