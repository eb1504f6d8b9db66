"""`labctl schema`: the JSON Schema of lab and campaign files, for editors, and of reports, for programs."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.argument("kind", type=click.Choice(["campaign", "lab", "report"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of campaign or lab files, for your editor, or of the report's JSON, for your programs."""
    click.echo(json.dumps(_schema(kind), indent=2))


def _schema(kind: str) -> dict[str, Any]:
    if kind == "report":
        from labctl.report.schema import report_schema

        return report_schema()
    from labctl.spec.schema import schema as schema_of

    return schema_of(kind)
