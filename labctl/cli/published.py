"""`labctl published`: the published experiments that campaigns can be put beside."""

from __future__ import annotations

import json
from pathlib import Path

import click

from labctl.report.console import terminal_console
from labctl.spec.published import DIRECTORY, load_published, published_ids

_DIRECTORY = click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), default=DIRECTORY, help="Where they are."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")


@click.group()
def published() -> None:
    """The published experiments: figures, claims, and their arithmetic done again."""


@published.command("list")
@_DIRECTORY
@_JSON
def list_(directory: Path, as_json: bool) -> None:
    """List them."""
    found = [load_published(name, directory) for name in published_ids(directory)]
    if as_json:
        rows = [{"id": one.id, "title": one.title, "date": one.date, "hypervisor": one.hypervisor} for one in found]
        click.echo(json.dumps(rows, indent=1))
        return
    for one in found:
        click.echo(f"{one.id:30} {one.hypervisor:8} {one.title}")


@published.command()
@click.argument("name", metavar="ID")
@_DIRECTORY
@_JSON
def show(name: str, directory: Path, as_json: bool) -> None:
    """Show one of them."""
    from labctl.report import print_published, published_to_json

    found = load_published(name, directory)
    if as_json:
        click.echo(published_to_json(found))
    else:
        print_published(found, terminal_console())
