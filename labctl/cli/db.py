"""`labctl db`: the store itself: what is in it and how large it is, forgetting old raw outputs, giving space back."""

from __future__ import annotations

import json
import shutil
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from labctl import clock
from labctl.cli.main import Context
from labctl.cli.options import json_option, opened_store
from labctl.cli.words import many, size
from labctl.errors import SpecError
from labctl.report.console import terminal_console
from labctl.spec.values import BadValue, parse_seconds
from labctl.store import Store
from labctl.store.schema import NEWEST

_CENTURY = 100 * 366 * 86_400.0


@click.group()
def db() -> None:
    """Look after the store: what is in it, forgetting old raw outputs, giving space back."""


@db.command()
@json_option
@click.pass_obj
def info(context: Context, as_json: bool) -> None:
    """Say what is in the store, how large it is, and from which machine it is worked on."""
    with opened_store(context) as store:
        facts = _facts(store)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if value is not None:
            words = size(value) if name.endswith("_bytes") else str(value)
            table.add_row(name.replace("_bytes", "_size").replace("_", " "), Text(words))
    terminal_console().print(table)


@db.command()
@click.option("--older-than", metavar="TIME", required=True, help="Such as 90d: of attempts that ended before.")
@click.pass_obj
def prune(context: Context, older_than: str) -> None:
    """Forget the raw outputs of old attempts; figures, names, sizes and hashes stay. `labctl db vacuum` gives the space
    back."""
    before = clock.now() - _age(older_than)
    with opened_store(context) as store:
        outputs = stored = 0
        while True:
            number, freed = store.prune_raw(older_than=before)
            if not number:
                break
            outputs, stored = outputs + number, stored + freed
    click.echo(f"{many(outputs, 'raw output')} of {size(stored)} forgotten.")


@db.command()
@click.option("--force", is_flag=True, help="Also while attempts are in progress; they wait until it is done.")
@click.pass_obj
def vacuum(context: Context, force: bool) -> None:
    """Give the space of what was forgotten back to the file system. Needs as much again while it works."""
    with opened_store(context) as store:
        attempts = store.active_attempts()
        if attempts and not force:
            raise SpecError(
                f"{many(len(attempts), 'attempt')} in progress would wait for the store.",
                todo="Pause the campaigns first (`labctl pause`), or vacuum with --force.",
            )
        _, before = store.reclaimable()
        store.vacuum()
        _, after = store.reclaimable()
    click.echo(f"{size(before - after)} given back; the store has {size(after)}.")


@db.command()
@click.pass_obj
def adopt(context: Context) -> None:
    """Say that this machine works on the store from now on, because it was moved here and no other works on it."""
    with opened_store(context) as store:
        store.adopt_machine()
        home = store.home()
    click.echo(f"The store is worked on from {home} now." if home else "A database server has no machine of its own.")


def _facts(store: Store) -> dict[str, Any]:
    """What `info` says. None: doesn't apply to a database server."""
    contents, (free, whole), file = store.contents(), store.reclaimable(), store.database
    return {
        "database": str(file) if file is not None else "a database server",
        "revision": NEWEST,
        "identity": store.identity,
        "machine": store.home() or None,
        "campaigns": contents.campaigns,
        "runs": contents.runs,
        "attempts": contents.attempts,
        "raw_outputs": contents.raw,
        "raw_outputs_forgotten": contents.forgotten,
        "raw_outputs_bytes": contents.raw_bytes,
        "database_bytes": whole if file is not None else None,
        "reclaimable_bytes": free if file is not None else None,
        "disk_free_bytes": shutil.disk_usage(file.parent).free if file is not None else None,
    }


def _age(text: str) -> float:
    allowed = "an age such as 90d, 12h or 30min"
    try:
        return parse_seconds(text, allowed=allowed, longest=_CENTURY, spoken="a century")
    except BadValue as error:
        raise SpecError(f"--older-than {text}: {error.message}.", todo=f"Give {error.allowed or allowed}.") from error
