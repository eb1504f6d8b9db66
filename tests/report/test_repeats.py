"""Cells that were run again and again: anchors that show drift and count nowhere, and repeats until a mean is known."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from labctl.model.campaign import Adaptive, Anchor, Cell
from labctl.model.outcome import Purpose, RunState
from labctl.model.result import AttemptResult, CampaignRecord, RunRecord
from labctl.model.scenario import Scenario
from labctl.report.data import report_of
from labctl.report.html import render_html
from labctl.report.json import render_json
from labctl.report.terminal import print_report
from labctl.report.units import SPACE
from tests.report.records import EPOCH, campaign_record, cell_record, demo_campaign, lab_error, reading, transfer
from tests.values import a_result

LEVELS = ({"scenario": "same-host", "nic_model": "virtio"}, {"scenario": "same-host", "nic_model": "e1000"})
VIRTIO, E1000 = (Cell(levels=levels).id for levels in LEVELS)


def a_run(number: int, cell: str, figure: float | AttemptResult, *, hours: float, anchor: bool = False) -> RunRecord:
    result = figure
    if not isinstance(result, AttemptResult):
        result = replace(a_result(), raw=(), transfers=(transfer(1, reading(figure), started=EPOCH + 3600 * hours),))
    return RunRecord(
        id=number, cell=cell, replicate=number + (10**6 if anchor else 0), sequence=number, state=RunState.DONE,
        attempts=1, result=result, hosts=("a", "b"), purpose=Purpose.ANCHOR if anchor else Purpose.MEASURE,
    )  # fmt: skip


def a_record(*runs: RunRecord) -> CampaignRecord:
    campaign = demo_campaign(
        scenarios=(Scenario.SAME_HOST,),
        factors={"nic_model": ("virtio", "e1000")},
        overrides=(),
        repeats=2,
        anchor=Anchor(levels=LEVELS[0], every=2),
        adaptive=Adaptive(maximum=3, within=0.05),
    )
    return campaign_record(campaign, [cell_record(levels, at) for at, levels in enumerate(LEVELS)], runs)


@pytest.fixture
def record() -> CampaignRecord:
    return a_record(
        a_run(1, VIRTIO, 1.00e9, hours=0),
        a_run(2, E1000, 0.50e9, hours=0.5),
        a_run(3, VIRTIO, 0.90e9, hours=2, anchor=True),
        a_run(4, VIRTIO, 1.00e9, hours=2.5),
        a_run(5, E1000, 0.90e9, hours=3),
        a_run(6, VIRTIO, 0.80e9, hours=4, anchor=True),
        a_run(7, E1000, 0.70e9, hours=5),
        a_run(8, VIRTIO, lab_error(), hours=6, anchor=True),
    )


def printed(record: CampaignRecord) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_report(report_of(record), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().replace(SPACE, " ").replace("\N{MINUS SIGN}", "-")


def test_runs_of_an_anchor_count_in_no_summary(record: CampaignRecord) -> None:
    report = report_of(record)
    virtio = report.row(VIRTIO)
    assert (virtio.summary.n, virtio.summary.mean, virtio.planned) == (2, 1.00e9, 2)
    assert [run.run for run in virtio.runs] == [1, 4]
    assert (report.completeness.planned, report.completeness.done, report.completeness.figures) == (5, 5, 5)
    assert report.completeness.outcomes == {"ok": 5}
    assert report.completeness.missing == ()


def test_what_went_wrong_with_an_anchor_is_told_all_the_same(record: CampaignRecord) -> None:
    assert [(group.kind, group.runs) for group in report_of(record).failures] == [("boot-timeout", (8,))]


def test_drift_is_shown_with_its_interval_wherever_reports_are(record: CampaignRecord) -> None:
    report = report_of(record)
    assert report.drift is not None
    assert [(point.run, point.anchor) for point in report.drift.points] == [
        (1, False),
        (3, True),
        (4, False),
        (6, True),
    ]
    text = printed(record)
    assert "4 runs of same-host · virtio over 4 h: -4.8 % an hour (95 % interval -17.1 to +7.5 %). No drift" in text
    assert "900 Mbit/s on a, b (anchor)" in text
    page = render_html(report).replace(SPACE, " ").replace("\N{MINUS SIGN}", "-")
    assert '<section id="drift"' in page
    assert "-4.8 % an hour (95 % interval -17.1 to +7.5 %)" in page
    told = json.loads(render_json(report))["drift"]
    assert told["trend"]["percent_per_hour"] == pytest.approx(-4.786, abs=0.001)
    assert [point["hosts"] for point in told["points"]] == [["a", "b"]] * 4


def test_cells_that_never_got_within_what_was_asked_for_are_listed_with_why(record: CampaignRecord) -> None:
    report = report_of(record)
    assert [cell.cell for cell in report.unsettled] == [E1000]
    text = printed(record)
    assert "Cells that never got within 5 %" in text
    assert "same-host · e1000: ±71.0 % (n = 3); it has 3 runs, which is the most that was asked for" in text
    page = render_html(report).replace(SPACE, " ")
    assert '<h2 id="unsettled-heading">Cells that never got within 5 %</h2>' in page
    assert "±71.0 %" in page
    told = json.loads(render_json(report))
    assert told["within"] == 0.05
    assert told["unsettled"][0]["share"] == pytest.approx(0.7097, abs=1e-4)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((), "No run of the anchor, same-host · virtio, has given a figure."),
        (((0.0, 1e9),), "1 run of same-host · virtio tell"),
        (((0.0, 1e9), (2.0, 3e9)), "2 runs of same-host · virtio over 2 h: +50.0 % an hour (too few for an interval)."),
        (((0.0, 1e9), (1.0, 2e9), (2.0, 3e9)), "95 % interval +50.0 to +50.0 %). Figures drifted."),
    ],
)
def test_the_trend_says_no_more_than_its_runs_tell(runs: tuple[tuple[float, float], ...], words: str) -> None:
    record = a_record(*(a_run(at, VIRTIO, figure, hours=hours) for at, (hours, figure) in enumerate(runs, 1)))
    assert words in printed(record)


def test_without_anchors_and_adaptive_repeats_nothing_is_said_of_them() -> None:
    campaign = demo_campaign(scenarios=(Scenario.SAME_HOST,), factors={"nic_model": ("virtio", "e1000")}, overrides=())
    cells = [cell_record(levels, at) for at, levels in enumerate(LEVELS)]
    report = report_of(campaign_record(campaign, cells, [a_run(1, VIRTIO, 1e9, hours=0)]))
    assert (report.drift, report.within, report.unsettled) == (None, None, ())
    assert 'id="drift"' not in render_html(report)
    assert 'id="unsettled"' not in render_html(report)
