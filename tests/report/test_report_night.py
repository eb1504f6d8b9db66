"""What a report says of a night that did not go as planned: why it stopped, what was not run, what happened to hosts."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from lxml import html as lxml_html
from rich.console import Console

from labctl.analysis.figures import figure_of
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, RunState
from labctl.model.result import CampaignRecord, EventRecord
from labctl.report import print_terminal, to_json
from labctl.report.data import report_of
from labctl.report.html import render_html
from labctl.report.terminal import MOST_EVENTS
from tests.report.records import EPOCH, matrix_record

WHY = "6 of the 7 cells that were tried end as lab-error (prepare-failed), in all 12 attempts."


def unrun(cell: str) -> OutcomeDetail:
    return OutcomeDetail(
        outcome=Outcome.CANCELLED,
        kind="cell-stopped",
        what="The run was not run: its cell is stopped.",
        why=f"2 attempts at {cell} ended as failed (connection-lost), on a and b.",
        todo="`labctl retry 7` runs it.",
    )


@pytest.fixture
def record() -> CampaignRecord:
    """A campaign that was stopped early: the last runs of two cells were ended before."""
    record = matrix_record(share=0.5, troubles=False)
    pending = [run for run in record.runs if run.state == RunState.PENDING]
    cells = sorted({run.cell for run in pending})[:2]
    runs = [
        replace(run, state=RunState.DONE, unrun=unrun(run.cell))
        if run.state == RunState.PENDING and run.cell in cells
        else run
        for run in record.runs
    ]
    events = (
        EventRecord(at=EPOCH, kind="started", what="It has started."),
        EventRecord(at=EPOCH + 60, kind="quarantine", what="Host b of lab local is quarantined: <b>3</b> lab-errors."),
        EventRecord(at=EPOCH + 120, kind="host-back", what="Host b of lab local is given runs again."),
    )
    return replace(record, runs=tuple(runs), state=CampaignState.STOPPED, why=WHY, events=events)


def printed(record: CampaignRecord) -> str:
    console = Console(file=io.StringIO(), width=220, color_system=None)
    print_terminal(record, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def how_many_unrun(record: CampaignRecord) -> int:
    return sum(run.unrun is not None for run in record.runs)


def test_a_stopped_campaign_says_why_in_the_first_lines(record: CampaignRecord) -> None:
    assert f"Stopped early: {WHY}" in printed(record).splitlines()[:3]
    header = lxml_html.fromstring(render_html(report_of(record))).find(".//header")
    assert header is not None
    assert f"Stopped early: {WHY}" in header.text_content()
    assert json.loads(to_json(record))["notice"] == f"Stopped early: {WHY}"


@pytest.mark.parametrize(
    ("state", "why", "notice"),
    [
        (CampaignState.CANCELLED, "the lab is needed", "Cancelled: the lab is needed"),
        (CampaignState.PAUSED, "lunch", "Paused: lunch"),
        (CampaignState.PAUSED, "", ""),
        (CampaignState.DONE, "", ""),
        (CampaignState.ACTIVE, "it was stopped once", ""),
    ],
)
def test_only_what_is_not_as_planned_has_a_notice(
    record: CampaignRecord, state: CampaignState, why: str, notice: str
) -> None:
    assert report_of(replace(record, state=state, why=why)).notice == notice


def test_runs_that_were_not_run_are_told_with_the_reason_and_are_no_done_runs(record: CampaignRecord) -> None:
    report = report_of(record)
    groups = [group for group in report.failures if group.fault == "not run"]
    assert sum(group.attempts for group in groups) == how_many_unrun(record) == report.completeness.unrun > 2
    assert len(groups) == 2, "each cell has its own reason"
    assert report.completeness.done == sum(run.result is not None for run in record.runs)
    assert not report.completeness.complete
    left = report.completeness.planned - report.completeness.done - how_many_unrun(record)
    assert f"{how_many_unrun(record)} not run (see what failed)" in report.status
    assert f"{left} missing (the campaign was stopped early and can be resumed)" in report.status
    text = printed(record)
    assert f"not run: cell-stopped ({groups[0].attempts} runs)" in text
    assert f"why: {groups[0].why}" in text
    assert groups[0].why in render_html(report)


def test_a_run_that_was_not_run_has_no_figure_and_says_so(record: CampaignRecord) -> None:
    run = next(run for run in record.runs if run.unrun is not None)
    assert figure_of(run).why_none == "not run (cell-stopped)"


def test_what_happened_to_hosts_is_told_in_every_form_and_the_expected_is_not(record: CampaignRecord) -> None:
    text = printed(record)
    assert "What happened in the night" in text
    assert "2026-09-21 14:14:20 UTC  quarantine: Host b of lab local is quarantined" in text
    assert "It has started." not in text
    page = render_html(report_of(record))
    assert "&lt;b&gt;3&lt;/b&gt; lab-errors" in page
    assert 'href="#events"' in page
    assert [event["kind"] for event in json.loads(to_json(record))["events"]] == ["quarantine", "host-back"]


def test_a_quiet_night_has_no_section_of_its_own(record: CampaignRecord) -> None:
    quiet = replace(record, events=record.events[:1])
    assert "What happened in the night" not in printed(quiet)
    assert "What happened in the night" not in render_html(report_of(quiet))


def test_a_long_list_of_events_is_cut_in_the_terminal_only(record: CampaignRecord) -> None:
    many = replace(record, events=record.events[1:2] * (MOST_EVENTS + 5))
    assert "and 5 more events" in printed(many)
    assert len(json.loads(to_json(many))["events"]) == MOST_EVENTS + 5
