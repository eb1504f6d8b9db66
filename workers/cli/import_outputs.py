"""`labctl import`: outputs made by hand, as a campaign in the store."""

from __future__ import annotations

import json
from pathlib import Path

import click

from labctl.cli.main import Context
from labctl.cli.options import json_option, opened_store
from labctl.model.outcome import Outcome
from workers.import_map import load_map
from workers.importing import gather


@click.command("import")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--map",
    "map_path",
    type=click.Path(path_type=Path),
    required=True,
    help="YAML that says which cell each output belongs to.",
)
@click.option("--again", is_flag=True, help="Also when the same outputs were imported before.")
@json_option
@click.pass_obj
def import_outputs(context: Context, folder: Path, map_path: Path, again: bool, as_json: bool) -> None:
    """Take transfer outputs made by hand in FOLDER into the store, as a campaign that is done."""
    spec, text = load_map(map_path)
    found = gather(folder, spec)
    good = sum(run.result.detail.outcome is Outcome.OK for run in found.runs)
    cells = len({run.cell.id for run in found.runs})
    with opened_store(context, anew=True) as store:
        campaign_id = store.import_campaign(
            found.campaign,
            found.lab,
            found.runs,
            text=text,
            versions={"imported": "outputs made by hand"},
            digest=found.digest,
            what=f"imported: {len(found.runs)} outputs made by hand, from {folder}; nothing of it was run by labctl",
            again=again,
        )
    if as_json:
        facts = {
            "campaign": campaign_id,
            "runs": len(found.runs),
            "cells": cells,
            "without_figure": len(found.runs) - good,
        }
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(f"Campaign {campaign_id}: {len(found.runs)} outputs of {cells} cells imported as {spec.name}.")
    if good < len(found.runs):
        click.echo(f"{len(found.runs) - good} of them hold no whole figure; the report says why.")
    click.echo(f"Next: labctl report {campaign_id}")
