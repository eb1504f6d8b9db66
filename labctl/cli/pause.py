"""`labctl pause`: start no more runs of campaigns."""

from __future__ import annotations

import click

from labctl.campaign import commands
from labctl.cli.main import Context
from labctl.cli.options import ids_argument, opened_store, why_option
from labctl.cli.standing import in_progress


@click.command()
@ids_argument
@click.option("--now", is_flag=True, help="Stop what is in progress, too; it is run again later.")
@why_option
@click.pass_obj
def pause(context: Context, campaign_ids: tuple[int, ...], now: bool, why: str) -> None:
    """Start no more runs of the campaigns; what is in progress finishes. `labctl resume` lets them go on."""
    with opened_store(context) as store:
        for campaign_id in campaign_ids:
            commands.pause(store, campaign_id, now=now, why=why)
            click.echo(f"Campaign {campaign_id} is paused: {in_progress(store, campaign_id, stopped=now)}.")
