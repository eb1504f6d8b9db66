"""What commands share: options, and the store that they work on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from labctl.campaign.commands import HIGHEST_PRIORITY, LOWEST_PRIORITY
from labctl.cli.main import Context
from labctl.errors import SpecError
from labctl.store import Store, open_store
from labctl.store.database import sqlite_url

json_option = click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
id_argument = click.argument("campaign_id", metavar="[ID]", type=int, required=False)
ids_argument = click.argument("campaign_ids", metavar="ID...", type=int, nargs=-1, required=True)
priority_option = click.option(
    "--priority",
    type=click.IntRange(LOWEST_PRIORITY, HIGHEST_PRIORITY),
    metavar="N",
    help=f"From {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}: campaigns of a higher one get hosts first.",
)
why_option = click.option("--why", default="", metavar="TEXT", help="Said to all who ask for its state.")


@contextmanager
def opened_store(context: Context, *, anew: bool = False) -> Iterator[Store]:
    """The store of the command line, closed at the end.

    Raises `SpecError` when there is none yet: only with `anew` is one made.
    """
    if not anew and context.store is None and not Path(sqlite_url(context.state).removeprefix("sqlite:///")).exists():
        raise SpecError(
            f"There is no store in {context.state}.",
            why="No campaign has been submitted there.",
            todo="`labctl submit CAMPAIGN --lab LAB`, or name the state directory with --state.",
        )
    store = open_store(context.state, url=context.store)
    try:
        yield store
    finally:
        store.close()


def newest(store: Store, campaign_id: int | None) -> int:
    """The campaign that was named, or else the one that was submitted last. Raises `SpecError` when there is none."""
    found = campaign_id if campaign_id is not None else store.newest_campaign()
    if found is None:
        raise SpecError("No campaign has been submitted yet.", todo="`labctl submit CAMPAIGN --lab LAB`.")
    return found
