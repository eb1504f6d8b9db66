from __future__ import annotations

import io
import json
import random
from dataclasses import replace

from rich.console import Console

from labctl.analysis.comparison import Difference
from labctl.model.campaign import Order
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, RunState
from labctl.model.result import CampaignRecord, Fact, FactSet, RunRecord
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from labctl.report import print_terminal
from labctl.report.data import report_of
from labctl.report.facts import Spread, facts_of
from labctl.report.failures import Fault
from labctl.report.html import render_html
from labctl.report.json import render_json
from labctl.report.pretence import SIMULATED, SIMULATED_HYPERVISOR
from labctl.report.rows import figures_of
from labctl.report.values import Report
from tests.report.records import (
    campaign_record,
    cell_record,
    demo_campaign,
    lab_error,
    matrix_record,
    ok_result,
    published_campaign,
)


def _flags(report: Report) -> dict[str, set[str]]:
    return {row.title: {flag.kind for flag in row.flags} for row in report.rows if row.flags}


def test_a_finished_campaign_with_troubles() -> None:
    report = report_of(matrix_record())
    assert report.headline.startswith("Between two VMs on the same host, virtio moves the most: 3.94")
    assert "times as much as e1000" in report.headline
    assert "6 live migrations stopped traffic for 0.40 to 2.6" in report.headline
    assert "cut 1 connection" in report.headline
    assert report.status.startswith("51 of 54 planned runs gave a figure; 1 failed; 1 lost to lab errors; 1 ended ok")
    assert [group.title for group in report.bars] == [
        "same-host", "cross-host", "during-migration", "vm-to-host", "host-to-host",
    ]  # fmt: skip
    assert [bar.label for bar in report.bars[0].bars] == ["virtio", "vmxnet3", "e1000e", "e1000", "rtl8139"]
    assert [group.control for group in report.bars] == [False, False, False, False, True]
    assert {group.reason for group in report.not_applicable} == {
        "Host a has no device to pass through.",
        "A VM with vt-d can't migrate.",
    }
    assert all("vt-d" not in row.title for row in report.rows)
    assert len(report.migrations) == 6
    assert not report.completeness.missing


def test_runs_that_do_not_count_are_in_the_row_and_not_in_its_figure() -> None:
    report = report_of(matrix_record())
    row = next(row for row in report.rows if row.title == "vm-to-host · vmxnet3")
    assert (row.summary.n, row.planned, len(row.runs)) == (2, 3, 3)
    assert len(figures_of(row)) == 2
    (uncounted,) = [run for run in row.runs if run.bits_per_second is None]
    assert "covers less" in uncounted.why_none
    assert _flags(report)["vm-to-host · vmxnet3"] == {"not-counted"}
    assert _flags(report)["same-host · e1000e"] == {"stalled", "sides-apart"}
    assert "confounded" in _flags(report)["during-migration · virtio"]


def test_failures_are_grouped_by_whose_fault_they_were() -> None:
    groups = {group.fault: group for group in report_of(matrix_record()).failures}
    assert set(groups) == {Fault.SYSTEM_UNDER_TEST, Fault.LAB}
    lab = groups[Fault.LAB]
    assert (lab.kind, lab.host, lab.attempts, lab.recovered) == ("boot-timeout", "b", 4, 3)
    assert lab.what
    assert lab.why
    assert lab.todo
    assert groups[Fault.SYSTEM_UNDER_TEST].cells == ("during-migration · e1000",)


def test_bugs_and_cancelled_attempts_are_nobodys_lab() -> None:
    campaign = demo_campaign(scenarios=(Scenario.SAME_HOST,), repeats=2)
    cell = cell_record({"scenario": "same-host", "nic_model": "virtio"})
    bug = replace(lab_error(), detail=OutcomeDetail(outcome=Outcome.LAB_ERROR, kind="bug", what="KeyError"))
    cancelled = replace(lab_error(), detail=OutcomeDetail(outcome=Outcome.CANCELLED, what="Cancelled."))
    runs = [
        RunRecord(id=i, cell=cell.id, replicate=i, state=RunState.DONE, sequence=i, attempts=1, result=result)
        for i, result in enumerate((bug, cancelled), start=1)
    ]
    report = report_of(campaign_record(campaign, [cell], runs))
    assert [group.fault for group in report.failures] == [Fault.LABCTL, Fault.CANCELLED]
    assert "1 lost to lab errors" in report.status
    assert "1 cancelled" in report.status
    assert report.headline == "Nothing can be said yet: no run has given a figure."


def test_an_interrupted_campaign_says_what_is_missing() -> None:
    report = report_of(matrix_record(share=0.5, troubles=False))
    completeness = report.completeness
    assert completeness.planned == 54
    assert completeness.done == 27
    assert not completeness.complete
    assert sum(cell.planned - cell.done for cell in completeness.missing) == 27
    assert "27 missing (the campaign is paused and can be resumed)" in report.status
    running = replace(matrix_record(share=0.5, troubles=False), state=CampaignState.ACTIVE)
    assert "27 still to come" in report_of(running).status


def test_a_campaign_whose_runs_have_not_begun() -> None:
    record = matrix_record(share=0.0, troubles=False)
    report = report_of(replace(record, runs=(), started=None, ended=None))
    assert report.completeness.planned == 54
    assert len(report.completeness.missing) == len(report.rows) == 18
    assert report.headline.startswith("Nothing can be said yet")
    assert all(row.summary.n == 0 for row in report.rows)


def test_a_campaign_in_which_nothing_is_applicable() -> None:
    cell = cell_record({"scenario": "same-host", "nic_model": "vt-d"}, reason="No device.")
    report = report_of(campaign_record(demo_campaign(), [cell], []))
    assert report.rows == ()
    assert report.not_applicable[0].cells == ("same-host · vt-d",)


def test_one_run_a_cell_has_no_interval_and_calls_nothing_real() -> None:
    report = report_of(matrix_record(demo_campaign(repeats=1), troubles=False))
    assert "too few runs for an interval" in report.headline
    assert all(row.summary.low is None for row in report.rows)
    told = {comparison.ratio.difference for row in report.rows for comparison in row.comparisons}
    assert told == {Difference.NO_INTERVAL}
    assert any("no spread" in note for note in report.notes)


def _two_cells(first: list[float], second: list[float]) -> CampaignRecord:
    campaign = demo_campaign(scenarios=(Scenario.SAME_HOST,), factors={"nic_model": ("virtio", "igb")}, baseline={})
    cells = [cell_record({"scenario": "same-host", "nic_model": model}, i) for i, model in enumerate(("virtio", "igb"))]
    runs: list[RunRecord] = []
    for cell, rates in zip(cells, (first, second), strict=True):
        for replicate, rate in enumerate(rates, start=1):
            result = ok_result(random.Random(1), dict(cell.levels))
            transfers = tuple(
                replace(one, reading=replace(one.reading, bits_per_second=rate)) for one in result.transfers
            )
            runs.append(
                RunRecord(
                    id=len(runs) + 1, cell=cell.id, replicate=replicate, state=RunState.DONE, sequence=len(runs),
                    result=replace(result, transfers=transfers),
                )
            )  # fmt: skip
    return campaign_record(campaign, cells, runs)


def test_the_headline_calls_no_difference_real_when_the_interval_spans_zero() -> None:
    report = report_of(_two_cells([1.0e9, 1.1e9, 0.9e9], [1.05e9, 1.15e9, 0.95e9]))
    assert "igb moves the most" in report.headline
    assert (
        "but against virtio no difference can be told with n = 3; one of this size would need about 64 runs of each"
        in report.headline
    )
    report = report_of(_two_cells([1.05e9, 1.15e9, 0.95e9], [1.0e9, 1.1e9, 0.9e9]))
    assert "virtio moves the most" in report.headline
    assert "from which igb can't be told apart" in report.headline


def test_reuse_and_order_change_what_the_report_says_of_itself() -> None:
    report = report_of(matrix_record(demo_campaign(reuse=True, order=Order.SEQUENTIAL), troubles=False))
    assert any("reused VMs" in note for note in report.notes)
    assert any("drift" in note for note in report.notes)
    assert any("VMs were reused" in text for _, text in report.method)


def test_claims_are_checked_where_the_campaign_repeats_a_published_one() -> None:
    report = report_of(matrix_record(published_campaign(), troubles=False))
    assert [claim.verdict.value for claim in report.claims] == ["holds", "does not hold", "can't be told"]
    assert report_of(matrix_record(troubles=False)).claims == ()


def test_warnings_of_attempts_become_flags() -> None:
    record = _two_cells([1e9], [2e9])
    result = record.runs[0].result
    assert result is not None
    warned = replace(record.runs[0], result=replace(result, warnings=("The host was busy.",)))
    report = report_of(replace(record, runs=(warned, *record.runs[1:])))
    (flag,) = [flag for flag in report.rows[0].flags if flag.kind == "warning"]
    assert (flag.kind, flag.what, flag.runs) == ("warning", "The host was busy.", (1,))


def _record_with_facts(*facts: tuple[str, str, Fact], name: str = "kernel") -> CampaignRecord:
    """Runs, each of a cell (virtio or igb) with one fact of host a before and after."""
    record = _two_cells([], [])
    ids = {str(cell.levels["nic_model"]): cell.id for cell in record.cells}
    runs = []
    for i, (model, when, value) in enumerate(facts):
        levels: dict[str, Level] = {"scenario": "same-host", "nic_model": model}
        found = (FactSet(subject="host:a", when=when, facts={name: value}),)
        result = replace(ok_result(random.Random(1), levels), facts=found)
        runs.append(RunRecord(id=i, cell=ids[model], replicate=i, state=RunState.DONE, sequence=i, result=result))
    return replace(record, runs=tuple(runs))


def test_facts_that_differ_between_runs_of_one_cell_stand_out() -> None:
    def spread(*values: tuple[str, Fact]) -> Spread:
        (row,) = facts_of(_record_with_facts(*((model, "before", value) for model, value in values)))
        return row.spread

    assert spread(("virtio", "6.1"), ("virtio", "6.1"), ("igb", "6.1"), ("igb", "6.1")) is Spread.SAME
    assert spread(("virtio", "6.1"), ("virtio", "6.1"), ("igb", "6.5"), ("igb", "6.5")) is Spread.BY_CELL
    assert spread(("virtio", "6.1"), ("virtio", "6.5"), ("igb", "6.1"), ("igb", "6.1")) is Spread.DIFFERS
    assert spread(("virtio", 0.31), ("virtio", 0.52), ("igb", 0.44), ("igb", 0.47)) is Spread.MEASURED


def test_hosts_that_a_cell_is_spread_over_on_purpose_are_no_fact_that_differs() -> None:
    placed = [("virtio", "before", host) for host in ("h1", "h2", "h1", "h2")]
    (row,) = facts_of(_record_with_facts(*placed, name="placement.host"))
    assert row.spread is Spread.PLACED
    assert [(value.value, value.runs) for value in row.values] == [("h1", 2), ("h2", 2)]


def test_facts_equal_before_and_after_are_one_row() -> None:
    rows = facts_of(_record_with_facts(("virtio", "before", "6.1"), ("virtio", "after", "6.1")))
    assert [(row.when, row.values[0].value) for row in rows] == [("before, after", "6.1")]


def test_a_report_of_a_simulated_lab_says_so() -> None:
    assert not report_of(matrix_record()).simulated
    record = replace(matrix_record(), lab_document={"simulated": {"directory": "/nowhere", "seed": 1}})
    assert report_of(record).simulated
    assert not report_of(replace(record, lab_document={"simulated": None})).simulated
    console = Console(file=io.StringIO(), width=100)
    print_terminal(record, console)
    assert isinstance(console.file, io.StringIO)
    assert SIMULATED in console.file.getvalue().splitlines()[0]
    page = render_html(report_of(record))
    assert page.index(SIMULATED) < page.index("<h1>")
    assert SIMULATED not in render_html(report_of(matrix_record()))


def test_a_report_of_a_simulated_hypervisor_says_so_in_every_format() -> None:
    record = _record_with_facts(("virtio", "before", True), name="simulated")
    console = Console(file=io.StringIO(), width=200)
    print_terminal(record, console)
    assert isinstance(console.file, io.StringIO)
    assert SIMULATED_HYPERVISOR in console.file.getvalue().splitlines()[0]
    page = render_html(report_of(record))
    assert page.index(SIMULATED_HYPERVISOR) < page.index("<h1>")
    assert json.loads(render_json(report_of(record)))["pretence"] == SIMULATED_HYPERVISOR
    for value in (False, None, "no"):
        assert not report_of(_record_with_facts(("virtio", "before", value), name="simulated")).simulated
