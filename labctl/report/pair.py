"""What a comparison of two campaigns shows, as data: figures beside each other, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.analysis.campaigns import CellAgainst, SettingChange, against, setting_changes
from labctl.model.result import CampaignRecord, Fact
from labctl.report.data import campaign_of, report_of
from labctl.report.facts import FactRow, Spread
from labctl.report.rows import figures_of
from labctl.report.values import Report


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two campaigns."""

    id: int
    name: str
    lab: str
    started: float | None
    pretence: str


@dataclass(frozen=True, kw_only=True)
class PairRow:
    """A cell of both, in words, with the kinds of its flags in either."""

    title: str
    against: CellAgainst
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """A fact that was the same in all runs of each campaign, and not the same in both. `host:a` `nic.driver.version`."""

    subject: str
    name: str
    first: Fact
    second: Fact


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two campaigns beside each other. Throughput in bit/s."""

    first: Side
    second: Side
    rows: tuple[PairRow, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    settings: tuple[SettingChange, ...]
    facts: tuple[FactChange, ...]
    """What is known to have changed; what one campaign doesn't tell of is no change."""
    unsteady: tuple[str, ...]
    """Facts that differ between the campaigns and also within one of them, as `SUBJECT NAME`."""


def pair_of(first: CampaignRecord, second: CampaignRecord) -> Pair:
    """Two campaigns beside each other; the first is the baseline."""
    one, other = report_of(first), report_of(second)
    titles = {row.cell: row.title for report in (other, one) for row in report.rows}
    rows, only_first, only_second = against(
        {row.cell: figures_of(row) for row in one.rows}, {row.cell: figures_of(row) for row in other.rows}
    )
    facts = tuple(fact_changes(one, other))
    return Pair(
        first=_side(one),
        second=_side(other),
        rows=tuple(PairRow(title=titles[row.cell], against=row, flags=_flags(row.cell, one, other)) for row in rows),
        only_first=tuple(titles[cell] for cell in only_first),
        only_second=tuple(titles[cell] for cell in only_second),
        settings=setting_changes(campaign_of(first), campaign_of(second)),
        facts=facts,
        unsteady=tuple(_unsteady(one, other)),
    )


def _side(report: Report) -> Side:
    return Side(id=report.id, name=report.name, lab=report.lab, started=report.started, pretence=report.pretence)


def _flags(cell: str, *reports: Report) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flag.kind for report in reports for flag in report.row(cell).flags))


def fact_changes(first: Report, second: Report) -> Iterator[FactChange]:
    """The facts that were the same in all runs of each of two campaigns, and not the same in both."""
    theirs = _steady(second)
    for (subject, name), value in _steady(first).items():
        if (subject, name) in theirs and theirs[subject, name] != value:
            yield FactChange(subject=subject, name=name, first=value, second=theirs[subject, name])


def _steady(report: Report) -> dict[tuple[str, str], Fact]:
    """Facts with one value in all runs and at all moments."""
    found: dict[tuple[str, str], Fact] = {}
    torn: set[tuple[str, str]] = set()
    for row in report.facts:
        key = row.subject, row.name
        if row.spread is not Spread.SAME or (key in found and found[key] != row.values[0].value):
            torn.add(key)
        found.setdefault(key, row.values[0].value)
    return {key: value for key, value in found.items() if key not in torn}


def _unsteady(first: Report, second: Report) -> Iterator[str]:
    """Facts whose sets of values differ, with several values on a side, but for those that are measured anew each time."""
    mine, theirs = _several(first), _several(second)
    for key in mine.keys() | theirs.keys():
        one, other = mine.get(key), theirs.get(key)
        if one is not None and other is not None and one != other and max(len(one), len(other)) > 1:
            yield " ".join(key)


def _several(report: Report) -> dict[tuple[str, str], frozenset[Fact]]:
    kept = (Spread.SAME, Spread.DIFFERS, Spread.BY_CELL)
    rows: dict[tuple[str, str], list[FactRow]] = {}
    for row in report.facts:
        rows.setdefault((row.subject, row.name), []).append(row)
    return {
        key: frozenset(value.value for row in some for value in row.values)
        for key, some in rows.items()
        if all(row.spread in kept for row in some)
    }
