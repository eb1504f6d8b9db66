"""A campaign beside a published experiment, as data; then as JSON and for the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.analysis.claims import CheckedClaim, check_claims
from labctl.analysis.matrix import matrix_of
from labctl.analysis.published import Beside, ChangeBeside, PublishedChange, beside, changes_beside, published_changes
from labctl.model.published import Published, PublishedCell
from labctl.model.result import CampaignRecord
from labctl.report import units
from labctl.report.data import campaign_of, report_of
from labctl.report.rows import figures_of
from labctl.report.values import Report


@dataclass(frozen=True, kw_only=True)
class BesideRow:
    """A published figure and ours, in bit/s, with the doubts about ours."""

    beside: Beside
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BesidePublished:
    """What was published beside what the campaign found."""

    published: Published
    campaign: int
    pretence: str
    rows: tuple[BesideRow, ...]
    changes: tuple[ChangeBeside, ...]
    claims: tuple[CheckedClaim, ...]


def beside_of(record: CampaignRecord, published: Published) -> BesidePublished:
    """The campaign beside the published experiment, whether it was made to repeat it or not."""
    report = report_of(record)
    matrix = matrix_of(campaign_of(record), [cell for cell in record.cells if cell.applicable])
    figures = {row.cell: figures_of(row) for row in report.rows}
    pairs = beside(published, matrix, figures)
    return BesidePublished(
        published=published,
        campaign=record.id,
        pretence=report.pretence,
        rows=tuple(BesideRow(beside=pair, flags=_flags(report, pair.cell)) for pair in pairs),
        changes=changes_beside(published, pairs),
        claims=check_claims(published.id, matrix, figures),
    )


def print_beside(found: BesidePublished, console: Console) -> None:
    """Print our figures beside theirs, and the changes with their arithmetic done again."""
    console.print(Text(f"{found.published.title} ({found.published.date})", style="bold"))
    if found.pretence:
        console.print(Text(found.pretence, style="bold reverse"))
    if found.rows:
        console.print(_figures(found))
        console.print(_changes(found.changes, ours=True))
    for claim in found.claims:
        console.print(Text.assemble("  ", (claim.verdict.value, "bold"), f": {claim.text} (checked as: {claim.rule})"))
    _print_notes(found.published, console)


def print_published(published: Published, console: Console) -> None:
    """Print a published experiment: its figures, and its changes with their arithmetic done again."""
    who = ", ".join(part for part in (published.author, published.date, published.hypervisor) if part)
    console.print(Text(published.title, style="bold"))
    console.print(Text(who, style="dim"))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("cell")
    for name in ("published", "in bit/s", "n"):
        table.add_column(name, justify="right")
    for cell in published.cells:
        table.add_row(Text(_title(cell)), cell.printed, units.rate(cell.bits_per_second), _n(cell.n))
    if published.cells:
        console.print(table)
        console.print(
            _changes([ChangeBeside(theirs=one, ours=None) for one in published_changes(published)], ours=False)
        )
    for claim in published.claims:
        console.print(Text(f"  claims: {claim}"))
    _print_notes(published, console)


def _flags(report: Report, cell: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flag.kind for flag in report.row(cell).flags)) if cell else ()


def _figures(found: BesidePublished) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("cell")
    ours_in = f"campaign {found.campaign}"
    for name in ("published", "n", ours_in, "95 % interval", "n", "ours to theirs"):
        table.add_column(name, justify="right")
    table.add_column("flags")
    for row in found.rows:
        theirs, ours = row.beside.theirs, row.beside.ours
        table.add_row(
            Text(_title(theirs)),
            units.rate(theirs.bits_per_second),
            _n(theirs.n),
            units.rate(ours.mean) if row.beside.cell else "no such cell",
            units.rate_interval(ours.low, ours.high),
            str(ours.n),
            units.times(ours.mean / theirs.bits_per_second if ours.mean is not None else None),
            Text(", ".join(row.flags), style="yellow"),
        )
    return table


def _changes(changes: tuple[ChangeBeside, ...] | list[ChangeBeside], *, ours: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Changes, computed from the figures", title_justify="left")
    for name in ("from", "to", "published", *(("ours",) if ours else ()), "the source claims", ""):
        table.add_column(name, justify="right" if name in ("published", "ours") else "left")
    for change in changes:
        theirs = change.theirs
        table.add_row(
            Text(_title(theirs.baseline)),
            Text(_title(theirs.cell)),
            units.percent(theirs.percent),
            *((units.percent(change.ours),) if ours else ()),
            Text(theirs.claimed),
            Text(confounded_words(theirs), style="yellow"),
        )
    return table


def confounded_words(change: PublishedChange) -> str:
    """That more than one thing changed at once, in words; empty when only one did."""
    if not change.confounded:
        return ""
    return f"confounded: changes {' and '.join(name.replace('_', ' ') for name in change.factors)} at once"


def _title(cell: PublishedCell) -> str:
    return " · ".join(cell.levels.values())


def _n(count: int | None) -> str:
    return "not said" if count is None else str(count)


def _print_notes(published: Published, console: Console) -> None:
    for note in published.notes:
        console.print(Text(f"  Note: {note}", style="dim"))
