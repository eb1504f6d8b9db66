"""`labctl report`: what a campaign found, from the store alone; works while the campaign runs, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from labctl.cli.options import newest, opened_store
from labctl.errors import SpecError
from labctl.report.console import terminal_console
from labctl.spec.published import load_published

if TYPE_CHECKING:
    from labctl.cli.main import Context

FORMATS = ("terminal", "html", "md", "json", "csv", "parquet")
ROWS = ("runs", "cells")
_FILE_WIDTH = 160
"""Columns of a terminal report that goes to a file."""


@click.command()
@click.argument("campaign_id", metavar="[ID]", type=int, required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), help="How to show it. Default: by the name of PATH.")
@click.option("--rows", type=click.Choice(ROWS), help="What a row of csv or parquet is about. Default: runs.")
@click.option("--against", metavar="ID", help="Beside a published experiment (`labctl published list`).")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH", help="Where to write it."
)
@click.pass_obj
def report(
    context: Context,
    campaign_id: int | None,
    form: str | None,
    rows: str | None,
    against: str | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Report on the campaign with ID, or on the newest one."""
    # Charts need matplotlib, which other commands should not wait for.
    from labctl.report import print_terminal, to_csv, to_json, to_markdown, write_html, write_parquet

    if as_json and form not in (None, "json"):
        raise SpecError(f"--json and --format {form} can't both be.", todo="Leave one of them out.")
    form = "json" if as_json else form or _form_of(output)
    if rows is not None and form not in ("csv", "parquet"):
        raise SpecError(f"--rows says nothing about {form}.", todo="Take it with --format csv or parquet.")
    rows = rows or ROWS[0]
    if against is not None:
        _beside(context, campaign_id, against, form, output)
        return
    with opened_store(context) as store:
        record = store.record(newest(store, campaign_id))
    if form == "html":
        path = output or context.state / "reports" / f"campaign-{record.id}.html"
        with _Writing(path):
            write_html(record, path)
        click.echo(f"Report: {path.absolute()}")
    elif form == "parquet":
        path = output or context.state / "reports" / f"campaign-{record.id}-{rows}.parquet"
        with _Writing(path):
            write_parquet(record, path, rows=rows)
        click.echo(f"Table: {path.absolute()}")
    elif form == "json":
        _give(to_json(record), output)
    elif form == "csv":
        _give(to_csv(record, rows=rows).removesuffix("\r\n"), output)
    elif form == "md":
        _give(to_markdown(record).removesuffix("\n"), output)
    elif output is not None:
        with _Writing(output), output.open("w", encoding="utf-8") as file:
            print_terminal(record, Console(file=file, width=_FILE_WIDTH))
    else:
        console = terminal_console()
        print_terminal(record, console)
        console.print(
            f"\nWith charts: `labctl report {record.id} --format html`; for programs: --format json, csv or parquet.",
            highlight=False,
            soft_wrap=True,
        )


def _beside(context: Context, campaign_id: int | None, against: str, form: str, output: Path | None) -> None:
    from labctl.report import beside_to_json, print_beside

    if form not in ("terminal", "json"):
        raise SpecError(f"--against can't be shown as {form}.", todo="Take it with --format terminal or json.")
    published = load_published(against)
    with opened_store(context) as store:
        record = store.record(newest(store, campaign_id))
    if form == "json":
        _give(beside_to_json(record, published), output)
    elif output is not None:
        with _Writing(output), output.open("w", encoding="utf-8") as file:
            print_beside(record, published, Console(file=file, width=_FILE_WIDTH))
    else:
        print_beside(record, published, terminal_console())


def _form_of(output: Path | None) -> str:
    suffixes = {".html": "html", ".htm": "html", ".json": "json", ".csv": "csv", ".md": "md", ".parquet": "parquet"}
    return suffixes.get(output.suffix.lower(), "terminal") if output is not None else "terminal"


def _give(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text)
        return
    with _Writing(output):
        output.write_text(text + "\n", encoding="utf-8", newline="")


class _Writing:
    """Makes the folder of a file, and turns what the file system refuses into a message for the user."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> SpecError:
        return SpecError(
            f"The report can't be written to {self._path}.",
            why=error.strerror or str(error),
            todo="Name another file with -o.",
        )
