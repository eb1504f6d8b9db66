"""`labctl resume`: let campaigns go on that are paused or were stopped."""

from __future__ import annotations

import click

from labctl.campaign import commands
from labctl.campaign.workers import unserved
from labctl.cli.main import Context
from labctl.cli.options import ids_argument, opened_store, priority_option


@click.command()
@ids_argument
@priority_option
@click.pass_obj
def resume(context: Context, campaign_ids: tuple[int, ...], priority: int | None) -> None:
    """Let campaigns go on that are paused, or that were stopped because most of them failed alike."""
    with opened_store(context) as store:
        for campaign_id in campaign_ids:
            commands.resume(store, campaign_id)
            if priority is not None:
                commands.set_priority(store, campaign_id, priority)
            rank = "" if priority is None else f", with priority {priority}"
            click.echo(
                f"Campaign {campaign_id} goes on{rank}. {unserved(store, store.head(campaign_id).lab, campaign_id)}".rstrip()
            )
