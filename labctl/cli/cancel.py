"""`labctl cancel`: end campaigns for good."""

from __future__ import annotations

import click

from labctl.campaign import commands
from labctl.cli.main import Context
from labctl.cli.options import ids_argument, opened_store, why_option
from labctl.cli.standing import in_progress
from labctl.cli.words import many


@click.command()
@ids_argument
@click.option("--now", is_flag=True, help="Stop what is in progress, too.")
@why_option
@click.pass_obj
def cancel(context: Context, campaign_ids: tuple[int, ...], now: bool, why: str) -> None:
    """End campaigns for good; what they have measured is kept, and what is in progress finishes."""
    with opened_store(context) as store:
        for campaign_id in campaign_ids:
            unrun = commands.cancel(store, campaign_id, now=now, why=why)
            click.echo(
                f"Campaign {campaign_id} is cancelled: {many(unrun, 'run')} will not be run; "
                f"{in_progress(store, campaign_id, stopped=now)}."
            )
