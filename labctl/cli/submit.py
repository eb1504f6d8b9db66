"""`labctl submit`: put campaigns into the store; whoever works for the lab does the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from labctl import clock
from labctl.campaign import commands
from labctl.campaign.edited import differences
from labctl.campaign.workers import unserved
from labctl.cli.main import Context
from labctl.cli.options import json_option, opened_store, priority_option
from labctl.cli.plan_view import nights_in_words, work_in_words
from labctl.cli.words import listed, many, moment, stamp
from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import Purpose
from labctl.plan.overview import Forecast, Overview, overview
from labctl.plan.windows import next_opening, opening_at
from labctl.spec.campaign import with_window
from labctl.spec.cross_check import load_both
from labctl.store import Store

_KEYS_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What of the lab file is different from the lab that an active campaign keeps."""

    campaign_id: int
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A campaign that was submitted, what it will take, and what it will wait for."""

    id: int
    plan: Overview
    starts: float | None
    """When it may start (an instant), whoever else wants the hosts."""
    ahead: tuple[int, ...]
    """Active campaigns in the same lab that get hosts before it, or in turn with it."""
    unserved: str
    edits: tuple[Edit, ...]


@click.command()
@click.argument("campaigns", metavar="CAMPAIGN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--lab", "lab_file", type=click.Path(path_type=Path), required=True, help="The lab file.")
@click.option("--window", help="A window of every day in place of the campaign's own, such as 22:00-06:00.")
@click.option("--zone", help="The time zone of the windows, such as Europe/Dublin.")
@priority_option
@click.option("--max-runs", type=click.IntRange(min=1), help="Raise the cap on the number of runs.")
@click.option("--again", is_flag=True, help="Also when a campaign that measures the same has not ended.")
@json_option
@click.pass_obj
def submit(
    context: Context,
    campaigns: tuple[Path, ...],
    lab_file: Path,
    window: str | None,
    zone: str | None,
    priority: int | None,
    max_runs: int | None,
    again: bool,
    as_json: bool,
) -> None:
    """Put campaigns into the queue of a lab, where `labctl worker` finds them, and say what they will take.

    All of them are checked before any is submitted.
    """
    changes = {"priority": priority, "max_runs": max_runs}
    plans = _plans(
        campaigns, lab_file, window, zone, {name: value for name, value in changes.items() if value is not None}
    )
    with opened_store(context, anew=True) as store:
        if not again:
            _refuse_same(store, campaigns, plans)
        lab_text = lab_file.read_text()
        submitted = [
            _submit(store, plan, campaign_text=file.read_text(), lab_text=lab_text, again=again)
            for file, plan in zip(campaigns, plans, strict=True)
        ]
    if as_json:
        click.echo(json.dumps([_as_data(each) for each in submitted], indent=2))
    else:
        click.echo("\n\n".join(_said(each) for each in submitted))


def _plans(
    files: tuple[Path, ...], lab_file: Path, window: str | None, zone: str | None, changes: dict[str, Any]
) -> list[Overview]:
    """What each file would be. Raises one `SpecError` with the mistakes of all files."""
    plans: list[Overview] = []
    errors: list[SpecError] = []
    now = clock.now()
    for file in files:
        try:
            campaign, lab = load_both(file, lab_file)
            campaign = replace(with_window(campaign, window, zone), **changes)
            plans.append(overview(campaign, lab, now=now, cells=0))
        except SpecError as error:
            if str(error) not in map(str, errors):
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SpecError("\n".join(map(str, errors)))
    return plans


def _refuse_same(store: Store, files: tuple[Path, ...], plans: list[Overview]) -> None:
    """Raise `SpecError` when a campaign that measures the same has not ended, or two of the files do."""
    seen: dict[str, Path] = {}
    for file, plan in zip(files, plans, strict=True):
        digest = commands.content_digest(plan.campaign, plan.lab)
        if digest in seen:
            raise SpecError(
                f"{file} and {seen[digest]} measure the same. Nothing was submitted.",
                todo="Leave one of them out, or submit both with --again.",
            )
        seen[digest] = file
        store.refuse_second(digest)


def _submit(store: Store, plan: Overview, *, campaign_text: str, lab_text: str, again: bool) -> Submitted:
    campaign, lab = plan.campaign, plan.lab
    others = [queued for queued in store.queue() if queued.lab == lab.name and queued.purpose is not Purpose.HEALTH]
    edits = _edits(store, [other.id for other in others], lab)
    campaign_id = commands.submit(store, campaign, lab, campaign_text=campaign_text, lab_text=lab_text, again=again)
    return Submitted(
        id=campaign_id,
        plan=plan,
        starts=_start(campaign, plan.now),
        ahead=tuple(other.id for other in others if other.priority >= campaign.priority),
        unserved=unserved(store, lab, campaign_id),
        edits=edits,
    )


def _edits(store: Store, campaign_ids: list[int], lab: Lab) -> tuple[Edit, ...]:
    found = [
        Edit(campaign_id=campaign_id, keys=tuple(map(str, differences(store.head(campaign_id).lab, lab))))
        for campaign_id in campaign_ids
    ]
    return tuple(edit for edit in found if edit.keys)


def _start(campaign: Campaign, now: float) -> float | None:
    if opening_at(campaign.windows, now) is not None:
        return now
    opening = next_opening(campaign.windows, now)
    return opening.start if opening is not None else None


def _said(submitted: Submitted) -> str:
    """What a person should know, in a few lines."""
    plan, campaign_id = submitted.plan, submitted.id
    lines = [
        f"Campaign {campaign_id} ({plan.campaign.name}) is submitted to lab {plan.lab.name}: "
        f"{many(plan.least.estimate.runs, 'run')}.",
        work_in_words(plan),
        nights_in_words(plan),
        _start_said(submitted),
    ]
    for edit in submitted.edits:
        more = f" and {len(edit.keys) - _KEYS_SHOWN} more" if len(edit.keys) > _KEYS_SHOWN else ""
        lines.append(
            f"Campaign {edit.campaign_id} was submitted with another state of the lab file and keeps it: "
            f"{'; '.join(edit.keys[:_KEYS_SHOWN])}{more}."
        )
    lines.append(submitted.unserved)
    lines.append(f"Look at it: `labctl watch {campaign_id}`, or `labctl status {campaign_id}`.")
    return "\n".join(line for line in lines if line)


def _start_said(submitted: Submitted) -> str:
    starts, windows = submitted.starts, submitted.plan.campaign.windows
    if starts is None:
        return ""
    when = "It may start now" if starts == submitted.plan.now else f"It may start {moment(starts)}"
    if windows is not None and starts != submitted.plan.now:
        when += (
            f", when its window opens ({datetime.fromtimestamp(starts, ZoneInfo(windows.zone)):%H:%M} {windows.zone})"
        )
    if submitted.ahead:
        others = listed([f"campaign {campaign_id}" for campaign_id in submitted.ahead])
        when += f", as hosts become free: {others} {'wants' if len(submitted.ahead) == 1 else 'want'} them, too"
    return f"{when}."


def _as_data(submitted: Submitted) -> dict[str, Any]:
    plan = submitted.plan
    return {
        "id": submitted.id,
        "name": plan.campaign.name,
        "lab": plan.lab.name,
        "priority": plan.campaign.priority,
        "cells": plan.counts.cells,
        "applicable": plan.counts.applicable,
        "runs": plan.least.estimate.runs,
        "most_runs": plan.most.estimate.runs,
        "least": _forecast(plan.least),
        "most": _forecast(plan.most),
        "starts": None if submitted.starts is None else stamp(submitted.starts),
        "ahead": list(submitted.ahead),
        "unserved": submitted.unserved,
        "edits": [{"campaign": edit.campaign_id, "keys": list(edit.keys)} for edit in submitted.edits],
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    nights = forecast.nights
    return {
        "seconds": round(forecast.estimate.seconds, 1),
        "nights": nights.count,
        "ends": None if nights.end is None else stamp(nights.end),
        "runs_left": nights.left,
    }
