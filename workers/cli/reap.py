"""`labctl reap`: what labctl made and lost in a lab, listed and removed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table
from rich.text import Text

from labctl.cli.main import Context
from labctl.cli.options import json_option, opened_store
from labctl.errors import SpecError
from labctl.model.lab import Lab
from labctl.report.console import terminal_console
from labctl.spec.lab import load_lab
from labctl.store import Store, VmRecord
from workers.leftovers import Found
from workers.reaping import Reaped, Sight, find, lab_of
from workers.reaping import reap as reap_lab


@click.command()
@click.option("--lab", metavar="LAB", help="A lab file, or the name of a lab that campaigns were submitted for.")
@click.option("--all", "every", is_flag=True, help="All labs that campaigns were submitted for.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@json_option
@click.pass_context
def reap(ctx: click.Context, lab: str | None, every: bool, dry_run: bool, as_json: bool) -> None:
    """Remove the VMs that labctl made and lost, and free hosts that are kept for them.

    A VM is removed when it carries our mark, this store has its record, and no attempt in progress uses it. Exit code 3
    when something could not be removed or looked at.
    """
    if (lab is None) != every:
        raise SpecError("`labctl reap` needs a lab.", todo="Give --lab LAB, or --all.")
    context: Context = ctx.obj
    told: list[dict[str, Any]] = []
    whole = True
    with opened_store(context) as store:
        for one in _labs(store, lab):
            sight = find(one, store)
            reaped = None if dry_run else reap_lab(one, store)
            whole &= not (sight.unreachable if reaped is None else reaped.failed)
            told.append(_facts(sight, reaped))
            if not as_json:
                _print(sight, reaped)
    if as_json:
        click.echo(json.dumps(told, indent=2))
    if not whole:
        ctx.exit(3)


def _labs(store: Store, named: str | None) -> Iterable[Lab]:
    if named is None:
        return [lab_of(store, name) for name in store.labs()]
    path = Path(named)
    return [load_lab(path) if path.exists() else lab_of(store, named)]


def _print(sight: Sight, reaped: Reaped | None) -> None:
    console = terminal_console()
    if sight.vms or sight.gone:
        table = Table(title=f"Lab {sight.lab}", title_justify="left", box=box.SIMPLE_HEAD)
        for heading in ("VM", "host", "of", "what it is", "what becomes of it"):
            table.add_column(heading)
        for found in sight.vms:
            mark = found.vm.mark
            of = f"campaign {mark.campaign}, run {mark.run}, attempt {mark.attempt}"
            table.add_row(Text(found.vm.name), found.vm.host, of, found.whose, _fate(found, sight, reaped))
        for record in sight.gone:
            of = f"campaign {record.campaign_id}, run {record.run_id}, attempt {record.attempt_id}"
            table.add_row(Text(record.name), record.host, of, "on no host", "its record is closed")
        console.print(table)
    for line in _lines(sight, reaped):
        console.print(line, highlight=False, soft_wrap=True)


def _fate(found: Found, sight: Sight, reaped: Reaped | None) -> str:
    if found not in sight.left:
        return "is left alone"
    if reaped is None:
        return "would be removed"
    return "removed" if found.vm.name in reaped.removed else "could not be removed"


def _lines(sight: Sight, reaped: Reaped | None) -> Iterable[str]:
    if sight.clean:
        yield f"Lab {sight.lab}: nothing is left behind."
    if sight.lost:
        kept = ", ".join(str(attempt) for attempt in sight.lost)
        yield f"Lab {sight.lab}: hosts are kept for what attempt {kept} left."
    yield from (f"Host {item.host}: {item.sentence}" for item in sight.changed if reaped is None)
    if reaped is None:
        yield from (f"Host {host} could not be looked at: {why}" for host, why in sight.unreachable.items())
    else:
        yield from (f"Not done: {what}" for what in reaped.failed)
        yield from (f"Restored to what it was: {what}" for what in reaped.restored)
        if reaped.removed or reaped.gone or reaped.freed:
            yield (
                f"Lab {sight.lab}: {len(reaped.removed)} VMs removed, {len(reaped.gone)} records closed, "
                f"hosts of {len(reaped.freed)} attempts freed."
            )


def _facts(sight: Sight, reaped: Reaped | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "lab": sight.lab,
        "vms": [_vm(found) for found in sight.vms],
        "left": [_vm(found) for found in sight.left],
        "reported": [_vm(found) for found in sight.reported],
        "gone": [_record(record) for record in sight.gone],
        "lost_attempts": list(sight.lost),
        "changed": [{"host": item.host, "setting": item.sentence} for item in sight.changed],
        "unreachable": dict(sight.unreachable),
    }
    if reaped is not None:
        facts |= {
            "removed": list(reaped.removed),
            "restored": list(reaped.restored),
            "closed": list(reaped.gone),
            "freed_attempts": list(reaped.freed),
            "failed": list(reaped.failed),
        }
    return facts


def _vm(found: Found) -> dict[str, Any]:
    vm, mark = found.vm, found.vm.mark
    of = {"campaign": mark.campaign, "run": mark.run, "attempt": mark.attempt, "store": mark.store}
    return {"name": vm.name, "uuid": vm.uuid, "host": vm.host, "active": vm.active, "whose": found.whose.value} | of


def _record(record: VmRecord) -> dict[str, Any]:
    of = {"campaign": record.campaign_id, "run": record.run_id, "attempt": record.attempt_id}
    return {"name": record.name, "uuid": record.uuid, "host": record.host} | of
