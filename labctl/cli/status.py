"""`labctl status`: campaigns and where they stand, from the store alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click
from rich.table import Table

from labctl.cli.main import Context
from labctl.report.console import terminal_console
from labctl.store import open_store


@click.command()
@click.argument("campaign_id", metavar="[ID]", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.pass_obj
def status(context: Context, campaign_id: int | None, as_json: bool) -> None:
    """List campaigns, newest first, with how many runs stand where; or only the one with ID."""
    store = open_store(context.state)
    try:
        lines = [line for line in store.campaigns() if campaign_id in (None, line.id)]
        if campaign_id is not None and not lines:
            store.head(campaign_id)
    finally:
        store.close()
    if as_json:
        rows = [
            {
                "id": line.id,
                "name": line.name,
                "lab": line.lab,
                "state": line.state.value,
                "submitted": datetime.fromtimestamp(line.submitted, UTC).isoformat(),
                "runs": dict(line.runs),
            }
            for line in lines
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(title="Campaigns")
    for heading in ("ID", "campaign", "lab", "state", "submitted", "runs"):
        table.add_column(heading)
    for line in lines:
        when = datetime.fromtimestamp(line.submitted).astimezone().strftime("%Y-%m-%d %H:%M %Z")
        runs = ", ".join(f"{count} {name}" for name, count in sorted(line.runs.items()))
        table.add_row(str(line.id), line.name, line.lab, line.state.value, when, runs)
    terminal_console().print(table)
