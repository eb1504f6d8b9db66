"""The report of a campaign, as data: gathered from what the store has, by pure functions."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from labctl.analysis.adaptive import unsettled
from labctl.analysis.claims import check_claims
from labctl.analysis.drift import drift_of
from labctl.analysis.matrix import Matrix, matrix_of
from labctl.analysis.migration import MigrationEffect, timelines
from labctl.analysis.ordinals import FirstAgainstLater, first_against_later
from labctl.model.campaign import Campaign
from labctl.model.outcome import Outcome, Purpose, RunState
from labctl.model.result import CampaignRecord, CellRecord
from labctl.model.settings import SCENARIO
from labctl.report import units
from labctl.report.answer import EXPECTED_EVENTS, headline_of, notes_of, notice_of, status_of
from labctl.report.facts import facts_of
from labctl.report.failures import failures_of
from labctl.report.method import method_of
from labctl.report.pretence import pretence_of
from labctl.report.rows import figures_of, findings_in, rows_of, setting_name, title_of
from labctl.report.values import (
    NIC_MODEL,
    NO_VM,
    Bar,
    BarGroup,
    Completeness,
    MigrationRow,
    MissingCell,
    NotApplicable,
    Report,
    Row,
)
from labctl.spec.documents import from_json


def report_of(record: CampaignRecord) -> Report:
    """The report of a submitted campaign in whatever state it is. Further runs of an anchor tell of drift and of what failed,
    and count nowhere else."""
    campaign, everything = campaign_of(record), record
    record = replace(record, runs=tuple(run for run in record.runs if run.purpose is not Purpose.ANCHOR))
    cells = sorted(record.cells, key=lambda cell: cell.position)
    matrix = matrix_of(campaign, cells)
    titles = {cell.id: title_of(matrix.levels[cell.id]) for cell in cells}
    rows = rows_of(campaign, record, cells, matrix, titles)
    bar_factor = _bar_factor(matrix)
    migrations = _migrations(record, matrix)
    completeness = _completeness(record, rows)
    pretence = pretence_of(everything)
    return Report(
        id=record.id,
        name=record.name,
        state=record.state,
        lab=record.lab,
        simulated=bool(pretence),
        pretence=pretence,
        question=campaign.question or f"How does throughput depend on the {setting_name(bar_factor)}?",
        notice=notice_of(record),
        headline=headline_of(rows, migrations, bar_factor, campaign),
        status=status_of(record, completeness, cells),
        submitted=record.submitted,
        started=record.started,
        ended=record.ended,
        completeness=completeness,
        factors=_shown_factors(matrix),
        bar_factor=bar_factor,
        baselines={name: level for name, level in matrix.baselines.items() if name in _shown_factors(matrix)},
        rows=rows,
        bars=_bars(rows, bar_factor),
        migrations=migrations,
        first_migrations=_first_migrations(migrations),
        claims=check_claims(campaign.published, matrix, {row.cell: figures_of(row) for row in rows}),
        published=campaign.published,
        not_applicable=_not_applicable(cells, titles),
        failures=failures_of(everything, titles),
        events=tuple(event for event in record.events if event.kind not in EXPECTED_EVENTS),
        facts=facts_of(everything),
        findings=findings_in(campaign, rows),
        drift=drift_of(campaign, everything),
        within=campaign.adaptive.within if campaign.adaptive is not None else None,
        unsettled=unsettled(campaign, record),
        notes=notes_of(campaign),
        method=method_of(campaign),
        order=campaign.order.value,
        seed=campaign.seed,
        repeats=campaign.repeats,
        labels=campaign.labels,
        versions=record.versions,
        campaign_text=record.campaign_text,
        lab_text=record.lab_text,
    )


def campaign_of(record: CampaignRecord) -> Campaign:
    """The checked campaign that the record holds as plain data."""
    return from_json(Campaign, json.dumps(record.document))


def _bar_factor(matrix: Matrix) -> str:
    varied = [name for name in matrix.factors if len({matrix.levels[cell].get(name) for cell in matrix.cells}) > 1]
    if NIC_MODEL in varied:
        return NIC_MODEL
    return next((name for name in varied if name != SCENARIO), NIC_MODEL if NIC_MODEL in matrix.factors else SCENARIO)


def _shown_factors(matrix: Matrix) -> tuple[str, ...]:
    """The scenario and the NIC model, and whatever else has more than one level in the matrix."""
    first = [name for name in (SCENARIO, NIC_MODEL) if any(name in matrix.levels[cell] for cell in matrix.cells)]
    others = [
        name
        for name in matrix.factors
        if name not in first and len({matrix.levels[cell].get(name) for cell in matrix.cells}) > 1
    ]
    return (*first, *others)


def _bars(rows: Sequence[Row], factor: str) -> tuple[BarGroup, ...]:
    groups: dict[str, list[Bar]] = defaultdict(list)
    for row in rows:
        others = {name: level for name, level in row.levels.items() if name != factor}
        label = units.level(factor, row.levels[factor]) if factor in row.levels else NO_VM
        groups[title_of(others) or "all"].append(Bar(label=label, row=row))
    return tuple(BarGroup(title=title, bars=tuple(bars)) for title, bars in groups.items())


def _migrations(record: CampaignRecord, matrix: Matrix) -> tuple[MigrationRow, ...]:
    position = {cell: index for index, cell in enumerate(matrix.cells)}
    found = []
    for run in sorted(record.runs, key=lambda run: (position[run.cell], run.replicate)):
        for timeline in timelines(run.result) if run.result is not None else ():
            spans = [(one.started, one.ended) for one in timeline.effects]
            for index, effect in enumerate(timeline.effects):
                found.append(
                    MigrationRow(
                        run=run.id,
                        cell=run.cell,
                        title=title_of(
                            {name: level for name, level in matrix.levels[run.cell].items() if name != SCENARIO}
                        ),
                        replicate=run.replicate,
                        nic_model=str(matrix.levels[run.cell].get(NIC_MODEL, NO_VM)),
                        transfer=timeline.transfer.index,
                        counted=timeline.transfer.counted,
                        effect=effect,
                        points=timeline.points,
                        others=tuple(
                            (start, end)
                            for other, (start, end) in enumerate(spans)
                            if other != index and start is not None and end is not None
                        ),
                    )
                )
    return tuple(found)


def _first_migrations(migrations: Sequence[MigrationRow]) -> tuple[FirstAgainstLater, ...]:
    by_vm: dict[str, list[MigrationEffect]] = defaultdict(list)
    for row in migrations:
        by_vm[row.effect.migration.domain].append(row.effect)
    return first_against_later(by_vm)


def _completeness(record: CampaignRecord, rows: Sequence[Row]) -> Completeness:
    unrun = sum(run.unrun is not None for run in record.runs)
    done = [run for run in record.runs if run.state == RunState.DONE and run.unrun is None]
    outcomes = Counter(run.result.detail.outcome.value for run in done if run.result is not None)
    done_by_cell = Counter(run.cell for run in done)
    return Completeness(
        planned=sum(row.planned for row in rows),
        done=len(done),
        figures=sum(row.summary.n for row in rows),
        outcomes={outcome.value: outcomes[outcome.value] for outcome in Outcome if outcomes[outcome.value]},
        active=sum(run.state == RunState.ACTIVE for run in record.runs),
        unrun=unrun,
        missing=tuple(
            MissingCell(title=row.title, done=done_by_cell[row.cell], planned=row.planned)
            for row in rows
            if done_by_cell[row.cell] < row.planned
        ),
    )


def _not_applicable(cells: Sequence[CellRecord], titles: Mapping[str, str]) -> tuple[NotApplicable, ...]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        if not cell.applicable:
            by_reason[cell.reason].append(titles[cell.id])
    return tuple(NotApplicable(reason=reason, cells=tuple(some)) for reason, some in by_reason.items())
