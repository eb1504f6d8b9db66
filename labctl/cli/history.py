"""`labctl history`: the cells of campaigns that are repeated, and when their figures changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from labctl.cli.options import opened_store
from labctl.errors import SpecError
from labctl.model.outcome import Purpose
from labctl.report.console import terminal_console
from labctl.store import Store

if TYPE_CHECKING:
    from labctl.cli.main import Context


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--lab", help="Only campaigns in the lab of this name. Needed when there are several.")
@click.option("--last", type=click.IntRange(min=1), default=100, help="How many campaigns to look at. Default: 100.")
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.pass_obj
def history(context: Context, name: str, lab: str | None, last: int, as_json: bool) -> None:
    """Show how the cells of all campaigns with NAME went from one to the next, and when their figures changed."""
    from labctl.report import history_to_json, print_history

    with opened_store(context) as store:
        ids = _campaigns(store, name, lab)[-last:]
        records = (store.record(campaign_id) for campaign_id in ids)
        if as_json:
            click.echo(history_to_json(records))
        else:
            print_history(records, terminal_console())


def _campaigns(store: Store, name: str, lab: str | None) -> list[int]:
    """The campaigns of a name in a lab, oldest first."""
    lines = [one for one in store.campaigns() if one.purpose is not Purpose.HEALTH]
    named = [one for one in lines if one.name == name and lab in (None, one.lab)]
    if not named:
        known = ", ".join(dict.fromkeys(one.name for one in lines))
        raise SpecError(
            f"There is no campaign named {name}{f' in lab {lab}' if lab else ''} in this store.",
            why=f"There are: {known}." if known else "It holds no campaign.",
        )
    labs = sorted({one.lab for one in named})
    if len(labs) > 1:
        raise SpecError(
            f"Campaigns named {name} ran in several labs, whose figures are no history.",
            why=f"They are: {', '.join(labs)}.",
            todo="Name one with --lab.",
        )
    return sorted(one.id for one in named)
