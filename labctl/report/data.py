"""What a report shows, as data. Every rendering shows these facts and adds none of its own.

Throughput is in bit/s, sizes in bytes, durations in seconds, moments in seconds since the Unix epoch.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.adaptive import Unsettled, unsettled
from labctl.analysis.claims import CheckedClaim, check_claims
from labctl.analysis.comparison import Comparison, Difference, Ratio, compare
from labctl.analysis.design import Observation
from labctl.analysis.drift import Drift, drift_of
from labctl.analysis.figures import RunFigure, figure_of
from labctl.analysis.findings import Finding, findings_of
from labctl.analysis.matrix import Matrix, matrix_of
from labctl.analysis.migration import MigrationEffect, TimelinePoint, timelines
from labctl.analysis.ordinals import FirstAgainstLater, first_against_later
from labctl.analysis.plausibility import first_transfer_flag, flags_of
from labctl.analysis.summary import Summary, outliers, summarise
from labctl.analysis.verdicts import Verdict, verdict_of
from labctl.model.campaign import Campaign, Order
from labctl.model.outcome import CampaignState, Outcome, Purpose, RunState
from labctl.model.result import CampaignRecord, CellRecord, EventRecord, RunRecord
from labctl.model.scenario import OTHER_HOST, Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.report import units
from labctl.report.facts import FactRow, facts_of
from labctl.report.failures import FailureGroup, failures_of
from labctl.report.method import method_of
from labctl.report.pretence import pretence_of
from labctl.spec.documents import from_json

NIC_MODEL = "nic_model"
NO_VM = "host itself"
"""Stands where a cell has no level of the factor that bars are drawn by."""


@dataclass(frozen=True, kw_only=True)
class RowFlag:
    """A doubt about figures of a cell, with the runs it concerns. No runs: it concerns the cell as a whole."""

    kind: str
    what: str
    runs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell of the matrix with its figures. `planned` counts runs, `summary.n` those with a figure."""

    cell: str
    title: str
    levels: Mapping[str, Level]
    summary: Summary
    planned: int
    runs: tuple[RunFigure, ...]
    comparisons: tuple[Comparison, ...]
    flags: tuple[RowFlag, ...]
    verdict: Verdict | None = None
    """Against what the campaign expects of the cell; None where it expects nothing."""

    def comparison(self, factor: str) -> Comparison | None:
        """The comparison against the baseline level of this factor."""
        return next((one for one in self.comparisons if one.factor == factor), None)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: the level that it stands for and the cell with its figures."""

    label: str
    row: Row


@dataclass(frozen=True, kw_only=True)
class BarGroup:
    """Bars that differ only in the factor that bars are drawn by."""

    title: str
    bars: tuple[Bar, ...]

    @property
    def control(self) -> bool:
        """Whether none of its cells has a level of the factor: a control beside the matrix."""
        return all(bar.label == NO_VM for bar in self.bars)


@dataclass(frozen=True, kw_only=True)
class MigrationRow:
    """One migration of one run, with the timeline of the transfer that it happened in."""

    run: int
    cell: str
    title: str
    replicate: int
    nic_model: str
    transfer: int
    counted: bool
    effect: MigrationEffect
    points: tuple[TimelinePoint, ...]
    others: tuple[tuple[float, float], ...] = ()
    """Start and end of the transfer's other migrations."""


@dataclass(frozen=True, kw_only=True)
class NotApplicable:
    """Cells that can't exist in this lab, with the reason."""

    reason: str
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MissingCell:
    """A cell that has fewer finished runs than planned."""

    title: str
    done: int
    planned: int


@dataclass(frozen=True, kw_only=True)
class Completeness:
    """How much of the campaign is there. Counts of runs: `done` have a result, `figures` are those that count, `unrun`
    were ended without having been run."""

    planned: int
    done: int
    figures: int
    outcomes: Mapping[str, int]
    active: int
    unrun: int
    missing: tuple[MissingCell, ...]

    @property
    def complete(self) -> bool:
        """Whether every planned run is done."""
        return self.done >= self.planned


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a report shows."""

    id: int
    name: str
    state: str
    lab: str
    simulated: bool
    """The lab, or its hypervisor, only pretends: its figures are none of real VMs."""
    pretence: str
    """What it is that pretends, in a sentence; empty when everything was real."""
    question: str
    notice: str
    """Why the campaign was stopped, cancelled or paused, in a sentence; empty when it wasn't, or nobody said why."""
    headline: str
    """The answer in one sentence."""
    status: str
    """How complete the answer is, in one sentence."""
    submitted: float
    started: float | None
    ended: float | None
    completeness: Completeness
    factors: tuple[str, ...]
    """Settings that the matrix shows, in order."""
    bar_factor: str
    """The factor that bars are drawn by; the NIC model where that is varied."""
    baselines: Mapping[str, Level]
    rows: tuple[Row, ...]
    bars: tuple[BarGroup, ...]
    migrations: tuple[MigrationRow, ...]
    first_migrations: tuple[FirstAgainstLater, ...]
    """First migrations of VMs against later ones of the same VMs; empty where hardly any VM was migrated twice."""
    claims: tuple[CheckedClaim, ...]
    published: str
    not_applicable: tuple[NotApplicable, ...]
    failures: tuple[FailureGroup, ...]
    events: tuple[EventRecord, ...]
    """What happened meanwhile, oldest first: to hosts, to cells, to the campaign itself."""
    facts: tuple[FactRow, ...]
    findings: tuple[Finding, ...]
    """What all figures together show beside the factors, told or not: a first repetition, a drift, hosts that differ."""
    drift: Drift | None
    """How the anchor's cell changed over time; None without an anchor."""
    within: float | None
    """How well every cell was to be known: half the interval of its mean as a share of the mean. None: not asked for."""
    unsettled: tuple[Unsettled, ...]
    """The cells that are not known as well."""
    notes: tuple[str, ...]
    method: tuple[tuple[str, str], ...]
    order: str
    seed: int
    repeats: int
    labels: Mapping[str, str]
    versions: Mapping[str, str]
    campaign_text: str
    lab_text: str

    def row(self, cell: str) -> Row:
        """The row of a cell."""
        return next(row for row in self.rows if row.cell == cell)


def report_of(record: CampaignRecord) -> Report:
    """The report of a submitted campaign in whatever state it is. Further runs of an anchor tell of drift and of what failed,
    and count nowhere else."""
    campaign, everything = campaign_of(record), record
    record = replace(record, runs=tuple(run for run in record.runs if run.purpose is not Purpose.ANCHOR))
    cells = sorted(record.cells, key=lambda cell: cell.position)
    matrix = matrix_of(campaign, cells)
    titles = {cell.id: title_of(matrix.levels[cell.id]) for cell in cells}
    rows = _rows(campaign, record, cells, matrix, titles)
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
        question=campaign.question or f"How does throughput depend on the {_name(bar_factor)}?",
        notice=_notice(record),
        headline=_headline(rows, migrations, bar_factor, campaign),
        status=_status(record, completeness, cells),
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
        events=tuple(event for event in record.events if event.kind not in _EXPECTED),
        facts=facts_of(everything),
        findings=_findings(campaign, rows),
        drift=drift_of(campaign, everything),
        within=campaign.adaptive.within if campaign.adaptive is not None else None,
        unsettled=unsettled(campaign, record),
        notes=_notes(campaign),
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


def figures_of(row: Row) -> tuple[float, ...]:
    """The figures of a row that count, in bit/s."""
    return tuple(run.bits_per_second for run in row.runs if run.bits_per_second is not None)


def title_of(levels: Mapping[str, Level]) -> str:
    """A cell in words: `same-host · virtio · streams 4`."""
    words = [str(levels[name]) for name in (SCENARIO, NIC_MODEL) if name in levels]
    words += [f"{_name(name)} {units.level(name, level)}" for name, level in levels.items() if name not in _UNNAMED]
    return " · ".join(words)


_UNNAMED = (SCENARIO, NIC_MODEL)


def _name(setting: str) -> str:
    return "NIC model" if setting == NIC_MODEL else setting.replace("_", " ")


def _rows(
    campaign: Campaign,
    record: CampaignRecord,
    cells: Sequence[CellRecord],
    matrix: Matrix,
    titles: Mapping[str, str],
) -> tuple[Row, ...]:
    by_cell: dict[str, list[RunRecord]] = defaultdict(list)
    for run in record.runs:
        by_cell[run.cell].append(run)
    runs = {cell: tuple(figure_of(run) for run in _in_order(some)) for cell, some in by_cell.items()}
    values = {
        cell: [one.bits_per_second for one in some if one.bits_per_second is not None] for cell, some in runs.items()
    }
    observed = {cell: _observations(some) for cell, some in runs.items()}
    speed = _path_speed(record)
    comparisons = compare(matrix, observed, blocked=campaign.order is Order.BLOCKS)
    return tuple(
        Row(
            cell=cell.id,
            title=titles[cell.id],
            levels=matrix.levels[cell.id],
            summary=summarise(values.get(cell.id, ())),
            planned=max(campaign.repeats, len(by_cell[cell.id])),
            runs=runs.get(cell.id, ()),
            comparisons=comparisons[cell.id],
            flags=(
                *_row_flags(by_cell[cell.id], runs.get(cell.id, ()), matrix.levels[cell.id], comparisons[cell.id]),
                *_beyond_the_path(runs.get(cell.id, ()), cell, speed),
            ),
            verdict=verdict_of(
                summarise(values.get(cell.id, ())), matrix.levels[cell.id], campaign.expectations, speed=speed
            ),
        )
        for cell in cells
        if cell.applicable
    )


def _path_speed(record: CampaignRecord) -> float | None:
    """What the path between two hosts carries, in bit/s, as the lab file says; None where it doesn't."""
    networks = record.lab_document.get("networks")
    name = record.lab_document.get("test_network")
    network = networks.get(name) if isinstance(networks, Mapping) else None
    speed = network.get("speed") if isinstance(network, Mapping) else None
    return float(speed) if isinstance(speed, int | float) else None


def _beyond_the_path(figures: Sequence[RunFigure], cell: CellRecord, speed: float | None) -> tuple[RowFlag, ...]:
    """Figures above what the physical path carries: a fault of the measurement, and no record. The nominal speed of a virtual
    adapter is no such limit, and two VMs on one host have no such path."""
    between_hosts = cell.levels[SCENARIO] in (Scenario.CROSS_HOST, Scenario.HOST_TO_HOST)
    if speed is None or not (between_hosts or cell.levels.get("peer") == OTHER_HOST):
        return ()
    beyond = tuple(one.run for one in figures if one.bits_per_second is not None and one.bits_per_second > speed)
    if not beyond:
        return ()
    what = f"above the {units.rate(speed)} that the path between two hosts carries: the measurement is wrong"
    return (RowFlag(kind="beyond-path", what=what, runs=beyond),)


def _observations(figures: Sequence[RunFigure]) -> list[Observation]:
    return [
        Observation(bits_per_second=one.bits_per_second, block=one.replicate, hosts=one.hosts, at=one.began)
        for one in figures
        if one.bits_per_second is not None
    ]


def _findings(campaign: Campaign, rows: Sequence[Row]) -> tuple[Finding, ...]:
    observed = {row.cell: _observations(row.runs) for row in rows}
    return findings_of(observed, blocked=campaign.order is Order.BLOCKS)


def _in_order(runs: Sequence[RunRecord]) -> list[RunRecord]:
    return sorted(runs, key=lambda run: (run.replicate, run.sequence))


def _row_flags(
    records: Sequence[RunRecord],
    figures: Sequence[RunFigure],
    levels: Mapping[str, Level],
    comparisons: Sequence[Comparison],
) -> tuple[RowFlag, ...]:
    by_flag: dict[str, dict[int, str]] = defaultdict(dict)
    for run in _in_order(records):
        if run.result is None:
            continue
        for flag in flags_of(run.result, levels):
            by_flag[flag.kind].setdefault(run.id, flag.what)
        for warning in run.result.warnings:
            by_flag[f"warning: {warning}"].setdefault(run.id, warning)
    flags = [
        RowFlag(kind=kind.partition(":")[0], what=next(iter(runs.values())), runs=tuple(runs))
        for kind, runs in by_flag.items()
    ]
    flags += _outlier_flags(figures)
    first = first_transfer_flag(figures)
    if first is not None:
        flags.append(RowFlag(kind=first.kind, what=first.what))
    for comparison in comparisons:
        if comparison.also_differs:
            also = " and ".join(_name(name) for name in comparison.also_differs)
            what = f"compared by {_name(comparison.factor)}, the cells differ in {also} too"
            flags.append(RowFlag(kind="confounded", what=what))
    return tuple(flags)


def _outlier_flags(figures: Sequence[RunFigure]) -> list[RowFlag]:
    counted = [one for one in figures if one.bits_per_second is not None]
    far = tuple(counted[at].run for at in outliers([one.bits_per_second or 0.0 for one in counted]))
    if not far:
        return []
    what = f"far from the other {len(counted) - len(far)} runs of its cell; it counts all the same"
    return [RowFlag(kind="outlier", what=what, runs=far)]


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


def _notes(campaign: Campaign) -> tuple[str, ...]:
    notes = []
    if campaign.order is Order.SEQUENTIAL:
        notes.append(
            "The runs were worked off in the order of the file, not in random blocks: drift over the campaign can look "
            "like an effect of a factor."
        )
    if campaign.reuse:
        notes.append(
            "Runs reused VMs: the intervals cover the spread between repeats in the same VMs, not between boots, and "
            "are likely too narrow for other VMs."
        )
    if campaign.repeats < 2:
        notes.append("One run a cell: there is no spread to tell, so no figure has an interval.")
    return tuple(notes)


def _notice(record: CampaignRecord) -> str:
    word = _NOTICE.get(record.state)
    return f"{word}: {record.why}" if word and record.why else ""


_NOTICE: dict[str, str] = {
    CampaignState.STOPPED: "Stopped early",
    CampaignState.CANCELLED: "Cancelled",
    CampaignState.PAUSED: "Paused",
}
_EXPECTED = ("submitted", "started", "finished")
"""Kinds of events that happen to every campaign: when they did stands elsewhere."""


def _status(record: CampaignRecord, completeness: Completeness, cells: Sequence[CellRecord]) -> str:
    parts = [f"{completeness.figures} of {completeness.planned} planned runs gave a figure"]
    for outcome, words in (
        (Outcome.FAILED, "failed"),
        (Outcome.LAB_ERROR, "lost to lab errors"),
        (Outcome.CANCELLED, "cancelled"),
    ):
        if completeness.outcomes.get(outcome.value):
            parts.append(f"{completeness.outcomes[outcome.value]} {words}")
    uncounted = completeness.outcomes.get(Outcome.OK.value, 0) - completeness.figures
    if uncounted > 0:
        parts.append(f"{uncounted} ended ok without a figure that counts")
    if completeness.unrun:
        parts.append(f"{completeness.unrun} not run (see what failed)")
    missing = completeness.planned - completeness.done - completeness.unrun
    if missing > 0:
        parts.append(f"{missing} {_MISSING.get(record.state, 'missing')}")
    skipped = sum(not cell.applicable for cell in cells)
    if skipped:
        parts.append(f"{skipped} {'cell is' if skipped == 1 else 'cells are'} not applicable")
    return "; ".join(parts) + "."


_MISSING: dict[str, str] = {
    CampaignState.ACTIVE: "still to come (the campaign is running)",
    CampaignState.PAUSED: "missing (the campaign is paused and can be resumed)",
    CampaignState.CANCELLED: "missing (the campaign was cancelled)",
    CampaignState.STOPPED: "missing (the campaign was stopped early and can be resumed)",
}


def _headline(rows: Sequence[Row], migrations: Sequence[MigrationRow], factor: str, campaign: Campaign) -> str:
    scenario = _telling_scenario(rows, factor, campaign)
    group = [row for row in rows if row.summary.mean is not None and row.levels.get(SCENARIO) == scenario]
    if not group:
        return "Nothing can be said yet: no run has given a figure."
    best = max(group, key=lambda row: row.summary.mean or 0.0)
    what = units.level(factor, best.levels[factor]) if factor in best.levels else NO_VM
    sentence = (
        f"{_where(best, factor)}, {what} moves {'the most: ' if len(group) > 1 else ''}{units.rate(best.summary.mean)}"
        f" ({'one run' if best.summary.n == 1 else f'mean of {best.summary.n} runs'})"
    )
    return sentence + _against(best, group, factor) + _while_migrating(migrations) + "."


def _telling_scenario(rows: Sequence[Row], factor: str, campaign: Campaign) -> str | None:
    """The first scenario with two levels of the factor to compare, or else the first with a figure."""
    levels: dict[str, set[Level]] = {scenario.value: set() for scenario in campaign.scenarios}
    for row in rows:
        if row.summary.n:
            levels.setdefault(str(row.levels[SCENARIO]), set()).add(row.levels.get(factor, NO_VM))
    some = [name for name, found in levels.items() if found]
    return next((name for name in some if len(levels[name]) > 1), some[0] if some else None)


def _where(row: Row, factor: str) -> str:
    words = {
        Scenario.SAME_HOST: "Between two VMs on the same host",
        Scenario.CROSS_HOST: "Between two VMs on different hosts",
        Scenario.DURING_MIGRATION: "While one VM migrates",
        Scenario.VM_TO_HOST: "From a VM to a host",
        Scenario.HOST_TO_VM: "From a host to a VM",
        Scenario.HOST_TO_HOST: "From host to host",
    }[Scenario(str(row.levels[SCENARIO]))]
    others = [
        f"{_name(name)} {units.level(name, level)}"
        for name, level in row.levels.items()
        if name not in (SCENARIO, factor, NIC_MODEL)
    ]
    return words + (f" ({', '.join(others)})" if others else "")


def _against(best: Row, group: Sequence[Row], factor: str) -> str:
    comparison = best.comparison(factor)
    if comparison is not None and comparison.ratio.ratio is not None:
        return _against_baseline(units.level(factor, comparison.baseline), comparison.ratio, comparison.ratio.ratio)
    against_best = [one for row in group if (one := row.comparison(factor)) and one.baseline_cell == best.cell]
    ratios = [one for one in against_best if one.ratio.ratio is not None]
    if not ratios:
        return ""
    nearest = max(ratios, key=lambda one: one.ratio.ratio or 0.0)
    least = min(ratios, key=lambda one: one.ratio.ratio or 0.0)
    name = units.level(factor, nearest.level)
    if nearest.ratio.difference in (Difference.NOT_TOLD, Difference.MAY_BE_CHANCE):
        text = f", from which {name} can't be told apart"
    else:
        text = f", the next, {name}, {units.change(nearest.ratio)}"
    if least is not nearest:
        text += f", and the last, {units.level(factor, least.level)}, {units.percent(least.ratio.percent)}"
    return text


def _against_baseline(baseline: str, ratio: Ratio, value: float) -> str:
    times = f", {units.significant(value)} times as much as {baseline}"
    if ratio.low is None or ratio.high is None:
        return f"{times} (too few runs for an interval)"
    if ratio.difference in (Difference.NOT_TOLD, Difference.MAY_BE_CHANCE):
        return f", but against {baseline} {units.untold(ratio)}"
    return f"{times} (95{units.SPACE}% interval {units.significant(ratio.low)} to {units.significant(ratio.high)})"


def _while_migrating(migrations: Sequence[MigrationRow]) -> str:
    told = [row.effect for row in migrations if row.effect.dip is not None]
    if not told:
        return ""
    stalls = [effect.stall.seconds if effect.stall else 0.0 for effect in told]
    lost = sum(effect.session_survived is False for effect in told)
    count = f"{len(told)} live {'migration' if len(told) == 1 else 'migrations'}"
    if max(stalls) == 0:
        text = f"; {count} stopped traffic for no whole interval"
    elif min(stalls) == max(stalls):
        text = f"; {count} stopped traffic for {units.seconds(max(stalls))}"
    else:
        text = f"; {count} stopped traffic for {units.seconds_range(min(stalls), max(stalls))}"
    return text + (f" and cut {lost} {'connection' if lost == 1 else 'connections'}" if lost else "")
