"""`labctl compare`: two campaigns beside each other, and which facts changed between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from labctl.cli.options import opened_store
from labctl.errors import SpecError
from labctl.report.console import terminal_console

if TYPE_CHECKING:
    from labctl.cli.main import Context


@click.command()
@click.argument("first", metavar="A", type=int)
@click.argument("second", metavar="B", type=int)
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.pass_obj
def compare(context: Context, first: int, second: int, as_json: bool) -> None:
    """Compare campaign B with campaign A: figures beside each other, and what changed between them."""
    from labctl.report import pair_to_json, print_pair

    if first == second:
        raise SpecError(
            f"Campaign {first} can't be compared with itself.", todo="`labctl status` lists the campaigns; name two."
        )
    with opened_store(context) as store:
        records = store.record(first), store.record(second)
    if as_json:
        click.echo(pair_to_json(*records))
    else:
        print_pair(*records, terminal_console())
