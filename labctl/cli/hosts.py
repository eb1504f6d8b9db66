"""`labctl hosts`: what the hosts of labs do and how they have behaved; taking one out, letting one back in."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from labctl import clock
from labctl.campaign.hosts import HostLine, host_lines, release_host, take_host_out
from labctl.cli.main import Context
from labctl.cli.options import json_option, opened_store
from labctl.cli.standing import doing
from labctl.cli.words import duration, moment, stamp
from labctl.model.outcome import HostState
from labctl.report.console import terminal_console

STYLES = {HostState.GOOD: "green", HostState.QUARANTINED: "yellow", HostState.OUT: "red"}

_lab_option = click.option("--lab", metavar="NAME", required=True, help="The lab of the host, as its file names it.")


@click.group(invoke_without_command=True)
@click.option("--lab", metavar="NAME", help="Only the hosts of this lab.")
@json_option
@click.pass_context
def hosts(ctx: click.Context, lab: str | None, as_json: bool) -> None:
    """List the hosts of all labs: state, lab-errors in a row, what they do and for whom."""
    if ctx.invoked_subcommand is not None:
        if lab is not None or as_json:
            raise click.UsageError(f"--lab and --json of the list come without `{ctx.invoked_subcommand}`.", ctx)
        return
    with opened_store(ctx.obj) as store:
        lines = host_lines(store, lab)
    if as_json:
        click.echo(json.dumps([host_facts(line) for line in lines], indent=2))
    else:
        terminal_console().print(_table(lines))


@hosts.command()
@click.argument("host")
@_lab_option
@click.pass_obj
def release(context: Context, host: str, lab: str) -> None:
    """Give HOST runs again; its lab-errors and failed checks are forgotten, and settings that could not be restored."""
    with opened_store(context) as store:
        release_host(store, lab, host)
    click.echo(f"Host {host} of lab {lab} is good again.")


@hosts.command()
@click.argument("host")
@_lab_option
@click.option("--why", required=True, metavar="TEXT", help="Said to all who ask for its state.")
@click.pass_obj
def out(context: Context, host: str, lab: str, why: str) -> None:
    """Give HOST no more runs; what is in progress on it finishes. `labctl hosts release` lets it back in."""
    with opened_store(context) as store:
        take_host_out(store, lab, host, why=why)
    click.echo(f"Host {host} of lab {lab} is out. `labctl hosts release {host} --lab {lab}` lets it back in.")


def host_facts(line: HostLine) -> dict[str, Any]:
    """A host as plain data. Instants are ISO 8601 in UTC."""
    record, lease, attempt = line.record, line.lease, line.attempt
    return {
        "lab": record.lab,
        "host": record.host,
        "state": record.state.value,
        "strikes": record.strikes,
        "failed_checks": record.checks,
        "why": record.why,
        "since": stamp(record.since) if record.since else None,
        "next_check": stamp(record.next_check) if _is_checked(line) else None,
        "not_restored": [item.sentence for item in line.changed if item.why],
        "leased_by": None
        if lease is None
        else {
            "campaign": lease.campaign_id,
            "name": lease.campaign,
            "attempt": lease.attempt_id,
            "since": stamp(lease.taken),
            "expected": stamp(lease.expected),
        },
        "doing": None
        if attempt is None
        else {
            "cell": attempt.cell.key,
            "replicate": attempt.replicate,
            "attempt": attempt.number,
            "phase": attempt.phase or attempt.state.value,
            "seconds": round(clock.now() - (attempt.claimed or attempt.created), 1),
        },
    }


def _is_checked(line: HostLine) -> bool:
    return line.record.state is HostState.QUARANTINED


def _table(lines: tuple[HostLine, ...]) -> Table:
    several = len({line.record.lab for line in lines}) > 1
    table = Table(title="Hosts", title_justify="left")
    for heading in (*(["lab"] if several else []), "host", "state", "for", "doing", "lab-errors in a row", "why"):
        table.add_column(heading, justify="right" if heading.startswith("lab-errors") else "left")
    for line in lines:
        record = line.record
        table.add_row(
            *([Text(record.lab)] if several else []),
            Text(record.host),
            Text(record.state.value, style=STYLES[record.state]),
            Text(f"campaign {line.lease.campaign_id}" if line.lease is not None else ""),
            Text(_doing(line)),
            str(record.strikes or ""),
            Text(_why(line)),
        )
    return table


def _doing(line: HostLine) -> str:
    if line.lease is None:
        return ""
    attempt = line.attempt
    if attempt is None:
        return f"being cleaned after attempt {line.lease.attempt_id}"
    seconds = clock.now() - (attempt.claimed or attempt.created)
    return f"{attempt.cell.key}, {doing(attempt)}, {duration(seconds)}"


def _why(line: HostLine) -> str:
    record = line.record
    said = [f"{item.sentence}." for item in line.changed if item.why]
    if record.state is HostState.GOOD:
        return " ".join(said)
    check = f"; next health check {moment(record.next_check)}" if _is_checked(line) else ""
    return " ".join([f"{record.why} (since {moment(record.since)}{check})", *said])
