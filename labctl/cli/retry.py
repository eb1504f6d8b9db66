"""`labctl retry`: run again what ended without a figure."""

from __future__ import annotations

import click

from labctl.campaign import commands
from labctl.campaign.workers import unserved
from labctl.cli.main import Context
from labctl.cli.options import ids_argument, opened_store
from labctl.cli.words import listed, many
from labctl.model.outcome import CampaignState, Outcome
from labctl.store import Store

STOPPED = "stopped"
OUTCOMES = (Outcome.LAB_ERROR.value, Outcome.FAILED.value, STOPPED)


@click.command()
@ids_argument
@click.option(
    "--outcome",
    "outcomes",
    type=click.Choice(OUTCOMES),
    multiple=True,
    default=(Outcome.LAB_ERROR.value, STOPPED),
    show_default=True,
    help="Which runs, by how they ended; may be given several times. `stopped`: those of cells that were given up.",
)
@click.pass_obj
def retry(context: Context, campaign_ids: tuple[int, ...], outcomes: tuple[str, ...]) -> None:
    """Run again what ended without a figure. Earlier attempts stay in the report.

    A `failed` run is a result about the system under test, so it is only run again when it is named.
    """
    wanted = [Outcome(name) for name in outcomes if name != STOPPED]
    with opened_store(context) as store:
        for campaign_id in campaign_ids:
            retried = commands.retry(store, campaign_id, wanted, stopped=STOPPED in outcomes)
            click.echo(_said(store, campaign_id, retried, outcomes))


def _said(store: Store, campaign_id: int, retried: commands.Retried, outcomes: tuple[str, ...]) -> str:
    if not retried.runs:
        text = f"Campaign {campaign_id} has no runs that ended as {listed(outcomes, 'or')}; nothing was changed."
        failed = store.run_counts(campaign_id).get(Outcome.FAILED, 0)
        if failed and Outcome.FAILED not in outcomes:
            text += f" {many(failed, 'run')} failed, which is a result; --outcome failed runs them again."
        return text
    text = f"{many(retried.runs, 'run')} of campaign {campaign_id} will be run again."
    if retried.state is CampaignState.PAUSED:
        return f"{text} It is paused: `labctl resume {campaign_id}` lets it go on."
    return f"{text} {unserved(store, store.head(campaign_id).lab, campaign_id)}".rstrip()
