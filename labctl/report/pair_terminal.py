"""Two campaigns beside each other, for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.analysis.comparison import Difference
from labctl.model.settings import Level
from labctl.report import units
from labctl.report.pair import Pair, Side

_STYLE = {Difference.FASTER: "green", Difference.SLOWER: "red"}


def print_pair(pair: Pair, console: Console) -> None:
    """Print the two campaigns: what changed between them first, then their figures."""
    for side in (pair.first, pair.second):
        console.print(Text(f"{_name(side)}, begun {units.moment(side.started)}"))
        if side.pretence:
            console.print(Text(f"  {side.pretence}", style="bold reverse"))
    _print_changes(pair, console)
    _print_rows(pair, console)
    for which, titles in ((pair.first, pair.only_first), (pair.second, pair.only_second)):
        if titles:
            console.print(Text(f"Only in campaign {which.id}: {'; '.join(titles)}", style="dim"))


def _print_changes(pair: Pair, console: Console) -> None:
    console.print(Text("What changed", style="bold"))
    for change in pair.settings:
        words = f"  setting {change.name}: {_level(change.name, change.first)} to {_level(change.name, change.second)}"
        console.print(Text(words, style="yellow"))
    for fact in pair.facts:
        console.print(Text(f"  {fact.subject} {fact.name}: {units.fact(fact.first)} to {units.fact(fact.second)}"))
    for name in pair.unsteady:
        console.print(Text(f"  {name}: not the same, and not even within one of the campaigns", style="yellow"))
    if not (pair.settings or pair.facts or pair.unsteady):
        console.print(Text("  nothing that both campaigns have a record of"))


def _print_rows(pair: Pair, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="Throughput of each cell", title_justify="left", title_style="bold")
    table.add_column("cell")
    table.add_column(f"campaign {pair.first.id}", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column(f"campaign {pair.second.id}", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("change", justify="right")
    table.add_column("flags")
    for row in pair.rows:
        one = row.against
        table.add_row(
            Text(row.title),
            units.rate(one.first),
            str(one.ratio.baseline_n),
            units.rate(one.second),
            str(one.ratio.n),
            Text(units.change(one.ratio), style=_STYLE.get(one.ratio.difference, "dim")),
            Text(", ".join(row.flags), style="yellow"),
        )
    console.print(table)
    untold = [row for row in pair.rows if units.untold(row.against.ratio)]
    for row in untold:
        console.print(Text(f"  {row.title}: {units.untold(row.against.ratio)}.", style="dim"))


def _name(side: Side) -> str:
    return f"Campaign {side.id}, {side.name}, in lab {side.lab}"


def _level(name: str, level: Level | None) -> str:
    return "left to the tool or the system" if level is None else units.level(name, level)
