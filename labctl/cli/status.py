"""`labctl status`: campaigns and where they stand, from the store alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.campaign.edited import Difference, differences
from labctl.campaign.progress import Progress, progress
from labctl.campaign.workers import WorkerLine, unserved, worker_lines
from labctl.cli.main import Context
from labctl.cli.options import id_argument, json_option, opened_store
from labctl.cli.standing import activity, bad_host, beside, line_facts, progress_facts, rate, times_left, work_facts
from labctl.cli.words import between, counts, many, moment, stamp
from labctl.errors import SpecError
from labctl.model.outcome import CampaignState, Purpose
from labctl.report.console import terminal_console
from labctl.spec.lab import load_lab
from labctl.store import CampaignLine, Event, Store

_EVENTS_SHOWN = 5
_DIFFERENCES_SHOWN = 20


@click.command()
@id_argument
@click.option(
    "--lab", "lab_file", type=click.Path(path_type=Path), help="Say how this file differs from the lab of ID."
)
@click.option("--all", "also_checks", is_flag=True, help="List health checks of hosts, too.")
@json_option
@click.pass_obj
def status(context: Context, campaign_id: int | None, lab_file: Path | None, also_checks: bool, as_json: bool) -> None:
    """List campaigns, newest first, with how many runs stand where; or say all of the one with ID."""
    if campaign_id is None and lab_file is not None:
        raise SpecError(
            "--lab needs the ID of a campaign.", todo="`labctl status ID --lab LAB`; `labctl status` lists them."
        )
    with opened_store(context) as store:
        if campaign_id is None:
            lines = [line for line in store.campaigns() if also_checks or line.purpose is not Purpose.HEALTH]
            _list(store, lines, as_json=as_json)
        else:
            head = store.head(campaign_id)
            edited = _edited(store, campaign_id, lab_file) if lab_file is not None else None
            now = progress(store, head)
            if as_json:
                click.echo(json.dumps(_all_facts(store, now, edited), indent=2))
            else:
                _show(store, now, edited, lab_file, terminal_console())


def _edited(store: Store, campaign_id: int, lab_file: Path) -> tuple[Difference, ...]:
    """How a lab file differs from the lab that the campaign keeps. Raises `SpecError` when it is of another lab."""
    kept, now = store.head(campaign_id).lab, load_lab(lab_file)
    if kept.name != now.name:
        raise SpecError(
            f"{lab_file} describes the lab {now.name}; campaign {campaign_id} is of the lab {kept.name}.",
            todo="Name the file of the campaign's own lab.",
        )
    return differences(kept, now)


def _list(store: Store, lines: list[CampaignLine], *, as_json: bool) -> None:
    going = {
        line.id: progress(store, store.head(line.id))
        for line in lines
        if line.state in (CampaignState.ACTIVE, CampaignState.PAUSED)
    }
    idle = {
        now.head.id: unserved(store, now.head.lab, now.head.id)
        for now in going.values()
        if now.state is CampaignState.ACTIVE
    }
    if as_json:
        rows = [
            line_facts(line)
            | (work_facts(going[line.id]) if line.id in going else {})
            | {"unserved": idle.get(line.id, "")}
            for line in lines
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    console = terminal_console()
    console.print(_table(lines, going))
    for line in lines:
        if sentence := _standing(line, unserved=bool(idle.get(line.id))):
            console.print(Text(sentence, style="yellow"), soft_wrap=True)
    for sentence in dict.fromkeys(idle.values()):
        if sentence:
            console.print(Text(sentence, style="yellow"), soft_wrap=True)


def _table(lines: list[CampaignLine], going: dict[int, Progress]) -> Table:
    ranked = any(line.priority for line in lines)
    table = Table(title="Campaigns", title_justify="left")
    for heading in (
        "ID",
        "campaign",
        "lab",
        "state",
        *(["priority"] if ranked else []),
        "submitted",
        "runs",
        "rate",
        "done",
    ):
        table.add_column(heading, justify="right" if heading in ("ID", "priority", "rate") else "left")
    for line in lines:
        now = going.get(line.id)
        table.add_row(
            str(line.id),
            Text(line.name),
            Text(line.lab),
            line.state.value,
            *([str(line.priority)] if ranked else []),
            moment(line.submitted),
            counts(line.runs),
            rate(now) if now is not None else "",
            _done(now),
        )
    return table


def _done(now: Progress | None) -> str:
    """When an active campaign will be done."""
    if now is None or now.state is not CampaignState.ACTIVE or now.done == now.total:
        return ""
    early, late = now.left.done
    if early is None:
        return "not in its windows"
    return between(early, late) if late is not None else f"{moment(early)} or later"


def _standing(line: CampaignLine, *, unserved: bool) -> str:
    """Why a campaign doesn't go on, in a sentence. While nobody serves it, what it waits for may be old."""
    if line.state is CampaignState.ACTIVE:
        return f"Campaign {line.id} {_waits(unserved)}: {line.hold}" if line.hold else ""
    return f"Campaign {line.id} is {line.state}: {line.why}" if line.why else ""


def _waits(unserved: bool) -> str:
    return "waited when it was last served" if unserved else "waits"


def _show(
    store: Store, now: Progress, edited: tuple[Difference, ...] | None, lab_file: Path | None, console: Console
) -> None:
    """All of one campaign."""
    for text, style in _sentences(store, now):
        console.print(Text(text, style=style), soft_wrap=True)
    if now.active:
        console.print(_activity(now))
    if workers := worker_lines(store):
        console.print(_workers(workers))
    for event in store.events(now.head.id)[-_EVENTS_SHOWN:]:
        console.print(Text(f"{moment(event.at)}: {event.what}", style="dim"), soft_wrap=True)
    if edited is not None:
        for text in _edits(now, edited, lab_file):
            console.print(Text(text), soft_wrap=True)


def _sentences(store: Store, now: Progress) -> Iterator[tuple[str, str]]:
    """What is said of a campaign, line by line, each with its style."""
    head = now.head
    rank = f", priority {head.priority}" if head.priority else ""
    yield f"Campaign {head.id} ({head.name}) in lab {head.lab.name}: {head.state}{rank}", "bold"
    yield f"Submitted {moment(head.submitted)}", ""
    yield f"{now.done:,} of {many(now.total, 'run')} done: {counts(now.counts)}", ""
    if speed := rate(now):
        yield f"{speed} lately", ""
    if left := times_left(now):
        yield left[0].upper() + left[1:], ""
    if now.state is not CampaignState.ACTIVE and head.why:
        yield f"It is {head.state}: {head.why}", "yellow"
    if now.state is CampaignState.ACTIVE:
        idle = unserved(store, head.lab, head.id)
        if head.hold:
            yield f"It {_waits(bool(idle))}: {head.hold}", "yellow"
        if idle:
            yield idle, "yellow"
        if others := beside(now):
            yield others[0].upper() + others[1:], ""
    for record in now.bad_hosts:
        text = bad_host(record)
        yield text[0].upper() + text[1:], "yellow"


def _activity(now: Progress) -> Table:
    table = Table(title="In progress", title_justify="left")
    for heading in ("hosts", "cell", "run", "phase", "for"):
        table.add_column(heading)
    for item in now.active:
        table.add_row(*(Text(cell) for cell in activity(item, now.at)))
    return table


def _workers(lines: tuple[WorkerLine, ...]) -> Table:
    table = Table(title="Workers", title_justify="left")
    for heading in ("process", "queues", "slots", "doing"):
        table.add_column(heading)
    for line in lines:
        record = line.record
        silent = "has died" if line.has_died else f"silent for {line.silent:.0f} s"
        doing = record.doing if line.lives else silent
        slots = str(record.slots) if record.slots else ""
        table.add_row(Text(record.name), Text(", ".join(record.queues)), slots, Text(doing))
    return table


def _edits(now: Progress, edited: tuple[Difference, ...], lab_file: Path | None) -> Iterator[str]:
    if not edited:
        yield f"{lab_file} says what campaign {now.head.id} was submitted with."
        return
    yield f"Campaign {now.head.id} keeps the lab that it was submitted with; {lab_file} says otherwise by now:"
    for difference in edited[:_DIFFERENCES_SHOWN]:
        yield f"  {difference}"
    if len(edited) > _DIFFERENCES_SHOWN:
        yield f"  and {len(edited) - _DIFFERENCES_SHOWN} more"


def _all_facts(store: Store, now: Progress, edited: tuple[Difference, ...] | None) -> dict[str, Any]:
    facts = progress_facts(now) | {
        "unserved": unserved(store, now.head.lab, now.head.id) if now.state is CampaignState.ACTIVE else "",
        "workers": [_worker_facts(line) for line in worker_lines(store)],
        "events": [_event_facts(event) for event in store.events(now.head.id)],
    }
    if edited is not None:
        facts["lab_edits"] = [{"key": item.key, "kept": item.kept, "now": item.now} for item in edited]
    return facts


def _worker_facts(line: WorkerLine) -> dict[str, Any]:
    record = line.record
    return {
        "name": record.name,
        "role": record.role,
        "machine": record.machine,
        "queues": list(record.queues),
        "slots": record.slots,
        "version": record.version,
        "doing": record.doing,
        "silent_seconds": round(line.silent, 1),
    }


def _event_facts(event: Event) -> dict[str, Any]:
    return {"at": stamp(event.at), "kind": event.kind, "what": event.what}
