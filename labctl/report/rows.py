"""The rows of a report: every cell with its figures, its comparisons and the doubts about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from labctl.analysis.comparison import Comparison, compare
from labctl.analysis.costs import cost_of
from labctl.analysis.design import Observation
from labctl.analysis.figures import RunFigure, figure_of
from labctl.analysis.findings import Finding, findings_of
from labctl.analysis.matrix import Matrix
from labctl.analysis.plausibility import first_transfer_flag, flags_of
from labctl.analysis.summary import outliers, summarise
from labctl.analysis.verdicts import verdict_of
from labctl.model.campaign import Campaign, Order
from labctl.model.result import AttemptResult, CampaignRecord, CellRecord, RunRecord
from labctl.model.scenario import OTHER_HOST, Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.report import units
from labctl.report.values import NIC_MODEL, Row, RowFlag


def figures_of(row: Row) -> tuple[float, ...]:
    """The figures of a row that count, in bit/s."""
    return tuple(run.bits_per_second for run in row.runs if run.bits_per_second is not None)


def title_of(levels: Mapping[str, Level]) -> str:
    """A cell in words: `same-host · virtio · streams 4`."""
    words = [str(levels[name]) for name in (SCENARIO, NIC_MODEL) if name in levels]
    words += [
        f"{setting_name(name)} {units.level(name, level)}" for name, level in levels.items() if name not in _UNNAMED
    ]
    return " · ".join(words)


_UNNAMED = (SCENARIO, NIC_MODEL)


def setting_name(setting: str) -> str:
    """A setting as people call it."""
    return "NIC model" if setting == NIC_MODEL else setting.replace("_", " ")


def rows_of(
    campaign: Campaign,
    record: CampaignRecord,
    cells: Sequence[CellRecord],
    matrix: Matrix,
    titles: Mapping[str, str],
) -> tuple[Row, ...]:
    """A row for every applicable cell, in the order of the matrix. `titles` are the cells in words."""
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
            cost=cost_of(_that_count(by_cell[cell.id], runs.get(cell.id, ()))),
            verdict=verdict_of(
                summarise(values.get(cell.id, ())), matrix.levels[cell.id], campaign.expectations, speed=speed
            ),
        )
        for cell in cells
        if cell.applicable
    )


def _that_count(records: Sequence[RunRecord], figures: Sequence[RunFigure]) -> list[AttemptResult]:
    counted = {one.run for one in figures if one.bits_per_second is not None}
    return [run.result for run in records if run.id in counted and run.result is not None]


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


def findings_in(campaign: Campaign, rows: Sequence[Row]) -> tuple[Finding, ...]:
    """What all figures together show beside the factors."""
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
            also = " and ".join(setting_name(name) for name in comparison.also_differs)
            what = f"compared by {setting_name(comparison.factor)}, the cells differ in {also} too"
            flags.append(RowFlag(kind="confounded", what=what))
    return tuple(flags)


def _outlier_flags(figures: Sequence[RunFigure]) -> list[RowFlag]:
    counted = [one for one in figures if one.bits_per_second is not None]
    far = tuple(counted[at].run for at in outliers([one.bits_per_second or 0.0 for one in counted]))
    if not far:
        return []
    what = f"far from the other {len(counted) - len(far)} runs of its cell; it counts all the same"
    return [RowFlag(kind="outlier", what=what, runs=far)]
