"""The history of campaigns of one name: every cell's figures from campaign to campaign, when they changed, and what else
changed then. As data, and for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.analysis.history import LEAST_SIDE, Change, PastFigure, changes_of
from labctl.model.result import CampaignRecord
from labctl.report import units
from labctl.report.data import report_of
from labctl.report.pair import FactChange, fact_changes
from labctl.report.values import Report

_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class ToldChange:
    """A change of a cell's level, with the facts that changed from the campaign before to the first one after it."""

    change: Change
    facts: tuple[FactChange, ...]


@dataclass(frozen=True, kw_only=True)
class CellHistory:
    """A cell through all campaigns that have figures of it, oldest first."""

    cell: str
    title: str
    figures: tuple[PastFigure, ...]
    changes: tuple[ToldChange, ...]


@dataclass(frozen=True, kw_only=True)
class History:
    """Campaigns of one name in one lab, oldest first."""

    name: str
    lab: str
    campaigns: tuple[int, ...]
    cells: tuple[CellHistory, ...]


def history_of(records: Iterable[CampaignRecord]) -> History:
    """The history of campaigns, which are of one name and one lab, oldest first; at least one."""
    reports = [report_of(record) for record in records]
    by_id = {report.id: report for report in reports}
    titles = {row.cell: row.title for report in reports for row in report.rows}
    return History(
        name=reports[-1].name,
        lab=reports[-1].lab,
        campaigns=tuple(by_id),
        cells=tuple(_cell(cell, title, by_id) for cell, title in titles.items()),
    )


def _cell(cell: str, title: str, reports: Mapping[int, Report]) -> CellHistory:
    figures = tuple(
        PastFigure(
            campaign=report.id,
            began=report.started or report.submitted,
            bits_per_second=row.summary.mean,
            n=row.summary.n,
        )
        for report in reports.values()
        for row in report.rows
        if row.cell == cell and row.summary.mean is not None
    )
    order = [one.campaign for one in figures]
    changes = [
        ToldChange(
            change=change,
            facts=tuple(fact_changes(reports[order[order.index(change.campaign) - 1]], reports[change.campaign])),
        )
        for change in changes_of(figures)
    ]
    return CellHistory(cell=cell, title=title, figures=figures, changes=tuple(changes))


def print_history(history: History, console: Console) -> None:
    """Print a line for each cell, and every change with what else changed then."""
    many = len(history.campaigns)
    console.print(Text(f"{history.name} in lab {history.lab}: {many} campaign{'s' if many != 1 else ''}", style="bold"))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("cell")
    for name in ("campaigns", "first", "last"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("course", no_wrap=True)
    table.add_column("changes", justify="right")
    for cell in history.cells:
        values = [one.bits_per_second for one in cell.figures]
        ends = [units.rate(values[at]) if values else units.NOTHING for at in (0, -1)]
        table.add_row(Text(cell.title), str(len(values)), *ends, _course(values), str(len(cell.changes)))
    console.print(table)
    for cell in history.cells:
        for told in cell.changes:
            words = f"{cell.title}: {units.change(told.change.ratio)} from campaign {told.change.campaign} on"
            console.print(Text(f"{words} ({units.moment(told.change.began)})", style="yellow"))
            for fact in told.facts:
                console.print(Text(f"    {fact.subject} {fact.name}: {fact.first} to {fact.second}"))
    if many < 2 * LEAST_SIDE:
        console.print(Text(f"Changes are looked for among {2 * LEAST_SIDE} campaigns or more.", style="dim"))


def _course(values: list[float]) -> str:
    """The last figures as a row of bars, from zero up."""
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(value / top * len(_SPARKS)))] for value in values[-40:])
