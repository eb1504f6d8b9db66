"""`labctl policy`: what follows from how an attempt ended, as a table."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich import box
from rich.table import Table
from rich.text import Text

from labctl.campaign.policy import LIMITS, POLICY, Action, Blame, Rule
from labctl.model.patience import patience
from labctl.report.console import terminal_console


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
def policy(as_json: bool) -> None:
    """Show what follows from how an attempt ended: for its run, its hosts, its cell, its campaign."""
    if as_json:
        click.echo(json.dumps(_as_data(), indent=2))
        return
    console = terminal_console()
    table = Table(
        title="What follows from how an attempt ended", title_justify="left", box=box.SIMPLE_HEAD, expand=True
    )
    table.add_column("how it ended", ratio=5)
    for heading in ("the run", "the hosts", "the cell", "the campaign"):
        table.add_column(heading, ratio=2)
    table.add_column("why", ratio=4)
    for rule in POLICY:
        table.add_row(_ended(rule), _run(rule), _hosts(rule), _cell(rule), _campaign(rule), rule.why)
    console.print(table)
    console.print("\n".join(_details()), highlight=False)


def _ended(rule: Rule) -> Text:
    kinds = f"\n{', '.join(sorted(rule.kinds))}" if rule.kinds else ""
    return Text.assemble((rule.outcome, "bold"), f": {rule.name}", (kinds, "dim"))


def _run(rule: Rule) -> str:
    return {
        Action.RECORD: "recorded",
        Action.RETRY: "tried again, later; in the end recorded",
        Action.RETURN: "goes back, costs no try",
    }[rule.action]


def _hosts(rule: Rule) -> str:
    if rule.clears:
        return "strikes are forgotten"
    return "" if rule.blame is Blame.NOBODY else f"a strike: {rule.blame}"


def _cell(rule: Rule) -> str:
    return "stopped after two hosts" if rule.stops_cell else ""


def _campaign(rule: Rule) -> str:
    return "stopped when most cells end so" if rule.stops_campaign else ""


def _details() -> tuple[str, ...]:
    asked = patience()
    return (
        "Tries: a campaign says how often a run is tried again (lab_error_retries) and how long it waits (back_off), "
        f"doubled with every try, {LIMITS.longest_back_off / 60:g} min at the most.",
        f"Quarantine: {LIMITS.strikes} strikes in a row. A health check, a small run of labctl's own, is due after "
        f"{asked.check_first:g} s, twice as long after each that fails, {asked.check_longest:g} s at the most; one that "
        f"passes lets the host in, {asked.checks} that fail in a row put it out until a person lets it in.",
        "A stopped cell: a run of it ended so for good, no one host had a part in all that ended so, and no run of it gave "
        "a figure. Its other runs end as cancelled (cell-stopped).",
        f"A stopped campaign: at least {LIMITS.cells} cells ended so and in no other way, in at least {LIMITS.attempts} "
        f"attempts, and they are more than {LIMITS.share:.0%} of those that were tried. `labctl resume` goes on with it.",
    )


def _as_data() -> dict[str, object]:
    return {
        "rules": [{**asdict(rule), "kinds": sorted(rule.kinds)} for rule in POLICY],
        "limits": asdict(LIMITS),
        "patience": asdict(patience()),
    }
