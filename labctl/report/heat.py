"""The matrix as a heat map: one row for each combination of the other factors, one column for each level of the bars' factor.

It is a table whose cells are shaded, so that it reads the same without colours, on paper and aloud.
"""

from __future__ import annotations

from dataclasses import dataclass

from labctl.report.values import NO_VM, Report, Row

STRONGEST = 45
"""Percent of the colour in the cell that moves the most; text on more of it would be hard to read."""


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """A cell of the map. `row` is None where the matrix has no such cell; `shade` is in percent of the colour."""

    row: Row | None
    shade: int = 0


@dataclass(frozen=True, kw_only=True)
class HeatRow:
    """One combination of the other factors."""

    title: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """The whole map. Shades go from nothing at zero to the strongest at the highest mean of all cells with VMs."""

    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]


def heat_map(report: Report) -> HeatMap | None:
    """The map of a report; None where the matrix has fewer than two rows or columns. Controls without VMs are left out."""
    groups = [group for group in report.bars if not group.control]
    columns = tuple(dict.fromkeys(bar.label for group in groups for bar in group.bars if bar.label != NO_VM))
    if len(groups) < 2 or len(columns) < 2:
        return None
    means = [bar.row.summary.mean or 0.0 for group in groups for bar in group.bars]
    top = max(means)
    rows = []
    for group in groups:
        by_label = {bar.label: bar.row for bar in group.bars}
        cells = tuple(_cell(by_label.get(label), top) for label in columns)
        rows.append(HeatRow(title=group.title, cells=cells))
    return HeatMap(columns=columns, rows=tuple(rows))


def _cell(row: Row | None, top: float) -> HeatCell:
    if row is None or row.summary.mean is None or top <= 0:
        return HeatCell(row=row)
    return HeatCell(row=row, shade=round(STRONGEST * row.summary.mean / top))
