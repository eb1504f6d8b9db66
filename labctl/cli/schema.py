"""`labctl schema`: the JSON Schema of lab and campaign files, for editors."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("kind", type=click.Choice(["campaign", "lab"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of campaign or lab files, for your editor."""
    from labctl.spec.schema import schema as schema_of

    click.echo(json.dumps(schema_of(kind), indent=2))
