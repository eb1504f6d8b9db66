"""The report for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.analysis.comparison import Comparison, Difference
from labctl.report import units
from labctl.report.cost_words import COLUMNS, cost_row
from labctl.report.facts import Spread
from labctl.report.finding_words import findings_words
from labctl.report.migration_words import first_words, words_of
from labctl.report.repeat_words import drift_words, width_words, within_words
from labctl.report.values import Report, Row
from labctl.report.verdict_words import verdict_words

_STYLE = {Difference.FASTER: "green", Difference.SLOWER: "red"}
MOST_MISSING = 10
MOST_POINTS = 20
MOST_EVENTS = 30


def print_report(report: Report, console: Console) -> None:
    """Print the answer, the matrix, and what a reader must know to judge them."""
    if report.pretence:
        console.print(Text(report.pretence, style="bold reverse"))
    console.print(Text(report.question, style="bold"))
    if report.notice:
        console.print(Text(report.notice, style="bold yellow"))
    console.print(Text(report.headline))
    console.print(Text(report.status, style="dim"))
    _print_matrix(report, console)
    _print_flags(report, console)
    _print_costs(report, console)
    _print_migrations(report, console)
    _print_claims(report, console)
    _print_findings(report, console)
    _print_drift(report, console)
    _print_unsettled(report, console)
    _print_not_applicable(report, console)
    _print_failures(report, console)
    _print_events(report, console)
    _print_missing(report, console)
    _print_differing_facts(report, console)
    for note in report.notes:
        console.print(Text(f"Note: {note}", style="yellow"))


def _print_matrix(report: Report, console: Console) -> None:
    comparing = [name for name in report.factors if any(row.comparison(name) for row in report.rows)]
    table = Table(box=box.SIMPLE_HEAD, title="Throughput of each cell", title_justify="left", title_style="bold")
    for name in report.factors:
        table.add_column(_name(name), no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right")
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for name in comparing:
        table.add_column(f"against {units.level(name, report.baselines[name])}", justify="right")
    judged = any(row.verdict is not None for row in report.rows)
    if judged:
        table.add_column("verdict")
    table.add_column("flags")
    for row in report.rows:
        summary = row.summary
        table.add_row(
            *(Text(units.level(name, row.levels[name]) if name in row.levels else "") for name in report.factors),
            units.rate(summary.mean),
            units.rate_interval(summary.low, summary.high),
            units.rate(summary.median),
            _count(row),
            *(_change(row.comparison(name)) for name in comparing),
            *((verdict_words(row.verdict),) if judged else ()),
            Text(", ".join(dict.fromkeys(flag.kind for flag in row.flags)), style="yellow"),
        )
    console.print(table)


def _print_flags(report: Report, console: Console) -> None:
    flags = [(row, flag) for row in report.rows for flag in row.flags]
    for row, flag in flags:
        runs = f" (run {', '.join(map(str, flag.runs))})" if flag.runs else ""
        console.print(Text.assemble((f"  {flag.kind}: ", "yellow"), f"{row.title}: {flag.what}{runs}"))


def _print_costs(report: Report, console: Console) -> None:
    rows = [(row.title, cost_row(row.cost)) for row in report.rows if row.cost is not None]
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, title="What it cost", title_justify="left", title_style="bold")
    table.add_column("cell")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for title, words in rows:
        table.add_row(Text(title), *words)
    console.print(table)


def _print_migrations(report: Report, console: Console) -> None:
    if not report.migrations:
        return
    table = Table(box=box.SIMPLE_HEAD, title="Migrations", title_justify="left", title_style="bold")
    for name in ("run", "cell", "before", "during", "after", "longest stall", "dip", "back", "session"):
        table.add_column(name, justify="left" if name in ("cell", "back") else "right")
    table.add_column("hypervisor: downtime", justify="right")
    table.add_column("total", justify="right")
    for row in report.migrations:
        words = words_of(row.effect)
        survived = {"yes": "survived", "no": "lost"}.get(words.survived, words.survived)
        cells = [str(row.run), row.title, words.before, words.during, words.after, words.stall, words.dip]
        cells += [words.recovery, survived, words.hypervisor_downtime, words.hypervisor_total]
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    console.print(
        Text("  The hypervisor's downtime is its own word and no measure of the gap that traffic saw.", style="dim")
    )
    for one in report.first_migrations:
        console.print(Text(f"  {first_words(one)}"))


def _print_claims(report: Report, console: Console) -> None:
    if not report.claims:
        return
    console.print(Text(f"Claims of {report.published}", style="bold"))
    for claim in report.claims:
        console.print(Text.assemble("  ", (claim.verdict.value, "bold"), f": {claim.text}"))
        console.print(Text(f"    checked as: {claim.rule}", style="dim"))
        for pair in claim.pairs:
            against = report.row(pair.against).title
            console.print(
                Text(f"    {pair.verdict.value}: {report.row(pair.measured).title} against {against}: ")
                + Text(units.times(pair.ratio.ratio) + f" ({units.change(pair.ratio)})")
            )
        if claim.missing:
            console.print(Text(f"    not measured: {'; '.join(claim.missing)}", style="dim"))


def _print_findings(report: Report, console: Console) -> None:
    if not report.findings:
        return
    console.print(Text("Beside the factors", style="bold"))
    for words in findings_words(report.findings):
        console.print(Text(f"  {words}"))


def _print_drift(report: Report, console: Console) -> None:
    if report.drift is None:
        return
    points = report.drift.points
    console.print(Text("Drift", style="bold"))
    console.print(Text(f"  {drift_words(report.drift, report.row(report.drift.cell).title)}"))
    for point in points[:MOST_POINTS]:
        kind = "anchor" if point.anchor else "replicate"
        figure = units.rate(point.bits_per_second)
        console.print(Text(f"    {units.moment(point.at)}: {figure} on {', '.join(point.hosts)} ({kind})", style="dim"))
    if len(points) > MOST_POINTS:
        console.print(Text(f"    and {len(points) - MOST_POINTS} more runs", style="dim"))


def _print_unsettled(report: Report, console: Console) -> None:
    if report.within is None or not report.unsettled:
        return
    console.print(Text(f"Cells that never got within {within_words(report.within)}", style="bold"))
    for cell in report.unsettled[:MOST_MISSING]:
        console.print(Text(f"  {report.row(cell.cell).title}: {width_words(cell)} (n = {cell.n}); {cell.why}"))
    if len(report.unsettled) > MOST_MISSING:
        console.print(Text(f"  and {len(report.unsettled) - MOST_MISSING} more cells"))


def _print_not_applicable(report: Report, console: Console) -> None:
    if report.not_applicable:
        console.print(Text("Not applicable", style="bold"))
    for group in report.not_applicable:
        console.print(Text(f"  {group.reason} ({'; '.join(group.cells)})"))


def _print_failures(report: Report, console: Console) -> None:
    if report.failures:
        console.print(Text("What failed, and whose fault it was", style="bold"))
    for group in report.failures:
        attempts = group.counted
        cured = f", {group.recovered} cured by a later attempt" if group.recovered else ""
        where = f" on host {group.host}" if group.host else ""
        console.print(Text.assemble("  ", (group.fault.value, "bold"), f": {group.kind}{where} ({attempts}{cured})"))
        for heading, text in (("what", group.what), ("why", group.why), ("to do", group.todo)):
            if text:
                console.print(Text(f"    {heading}: {text}"))
        console.print(Text(f"    cells: {'; '.join(group.cells)}", style="dim"))


def _print_events(report: Report, console: Console) -> None:
    if report.events:
        console.print(Text("What happened in the night", style="bold"))
    for event in report.events[:MOST_EVENTS]:
        console.print(Text.assemble(f"  {units.moment(event.at)}  ", (event.kind, "bold"), f": {event.what}"))
    if len(report.events) > MOST_EVENTS:
        console.print(Text(f"  and {len(report.events) - MOST_EVENTS} more events"))


def _print_missing(report: Report, console: Console) -> None:
    missing = report.completeness.missing
    if missing:
        console.print(Text("Missing", style="bold"))
    for cell in missing[:MOST_MISSING]:
        console.print(Text(f"  {cell.title}: {cell.done} of {cell.planned} runs done"))
    if len(missing) > MOST_MISSING:
        console.print(Text(f"  and {len(missing) - MOST_MISSING} more cells"))


def _print_differing_facts(report: Report, console: Console) -> None:
    differing = [row for row in report.facts if row.spread is Spread.DIFFERS]
    if differing:
        console.print(Text("Facts that differ between runs of one cell", style="bold yellow"))
    for row in differing:
        values = ", ".join(f"{units.fact(value.value)} (n = {value.runs} runs)" for value in row.values)
        console.print(Text(f"  {row.subject} {row.name}: {values}"))


def _count(row: Row) -> str:
    return str(row.summary.n) if row.summary.n == row.planned else f"{row.summary.n} of {row.planned}"


def _change(comparison: Comparison | None) -> Text:
    if comparison is None:
        return Text(units.NOTHING, style="dim")
    ratio = comparison.ratio
    return Text(units.change(ratio), style=_STYLE.get(ratio.difference, "dim"))


def _name(setting: str) -> str:
    return "NIC model" if setting == "nic_model" else setting.replace("_", " ")
