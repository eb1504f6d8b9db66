"""What was true of hosts and guests, and where it was not the same in all runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from labctl.model.result import CampaignRecord, Fact

LONGEST = 200
"""Facts with longer values (whole documents) stay with the raw output and are not shown."""
PLACEMENT = "placement.host"
"""The fact that says on which host a VM was."""
FEW = 6
"""So many different values of a fact are listed one by one."""


class Spread(StrEnum):
    """How a fact's values lie over the runs."""

    SAME = "the same in all runs"
    BY_CELL = "follows the cell"
    """Every cell has one value in all its runs: the factors explain the difference."""
    PLACED = "where the VMs were; a cell's runs are spread over hosts on purpose"
    MEASURED = "measured anew each time"
    """Numbers such as load, or names that every run has of its own."""
    DIFFERS = "differs between runs of one cell"
    """Nothing in the matrix explains it: a reason to distrust comparisons."""


@dataclass(frozen=True, kw_only=True)
class FactValue:
    """One value of a fact and in how many runs it was seen. `cells` counts the cells that had it."""

    value: Fact
    runs: int
    cells: int


@dataclass(frozen=True, kw_only=True)
class FactRow:
    """One fact of one host, VM or machine. `when` lists the moments it was recorded at with the same values."""

    subject: str
    name: str
    when: str
    spread: Spread
    values: tuple[FactValue, ...]
    """The most frequent first; at most a few, the number of all being `distinct`."""
    distinct: int
    lowest: float | None = None
    highest: float | None = None


def facts_of(record: CampaignRecord) -> tuple[FactRow, ...]:
    """The facts of all accepted results, by subject and name."""
    seen: dict[tuple[str, str, str], dict[int, tuple[str, Fact]]] = defaultdict(dict)
    for run in record.runs:
        if run.result is None:
            continue
        for facts in run.result.facts:
            for name, value in facts.facts.items():
                if value is not None and len(str(value)) <= LONGEST:
                    seen[facts.subject, name, facts.when][run.id] = (run.cell, value)
    merged: dict[tuple[str, str], list[tuple[str, FactRow]]] = defaultdict(list)
    for (subject, name, when), by_run in seen.items():
        merged[subject, name].append((when, _row(subject, name, when, by_run)))
    rows = []
    for (_, _), some in sorted(merged.items()):
        rows += _join_equal([row for _, row in some])
    return tuple(rows)


def _row(subject: str, name: str, when: str, by_run: dict[int, tuple[str, Fact]]) -> FactRow:
    runs: dict[Fact, list[str]] = defaultdict(list)
    for cell, value in by_run.values():
        runs[value].append(cell)
    values = tuple(
        FactValue(value=value, runs=len(cells), cells=len(set(cells)))
        for value, cells in sorted(runs.items(), key=lambda item: (-len(item[1]), str(item[0])))
    )
    numbers = [value for value in runs if isinstance(value, int | float) and not isinstance(value, bool)]
    return FactRow(
        subject=subject,
        name=name,
        when=when,
        spread=_spread(name, by_run, len(runs)),
        values=values[:FEW],
        distinct=len(runs),
        lowest=min(numbers) if numbers else None,
        highest=max(numbers) if numbers else None,
    )


def _spread(name: str, by_run: dict[int, tuple[str, Fact]], distinct: int) -> Spread:
    if distinct == 1:
        return Spread.SAME
    by_cell: dict[str, set[Fact]] = defaultdict(set)
    for cell, value in by_run.values():
        by_cell[cell].add(value)
    repeated = len(by_run) > len(by_cell)
    if repeated and all(len(values) == 1 for values in by_cell.values()):
        return Spread.BY_CELL
    if name == PLACEMENT:
        return Spread.PLACED
    values = [value for _, value in by_run.values()]
    if all(isinstance(value, float) for value in values) or (distinct > 0.5 * len(values) and distinct > 2):
        return Spread.MEASURED
    return Spread.DIFFERS if repeated else Spread.BY_CELL


def _join_equal(rows: list[FactRow]) -> list[FactRow]:
    """Rows of the same fact with equal values become one that lists its moments."""
    joined: dict[tuple[object, ...], list[FactRow]] = defaultdict(list)
    for row in rows:
        joined[row.spread, row.values, row.distinct, row.lowest, row.highest].append(row)
    return [
        FactRow(
            subject=some[0].subject,
            name=some[0].name,
            when=", ".join(row.when for row in some),
            spread=some[0].spread,
            values=some[0].values,
            distinct=some[0].distinct,
            lowest=some[0].lowest,
            highest=some[0].highest,
        )
        for some in joined.values()
    ]
