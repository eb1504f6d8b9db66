"""`labctl plan`: what a campaign would run in a lab, how long it takes, in which nights, and what can't be run and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from labctl import clock
from labctl.cli.plan_view import show
from labctl.model.scenario import Scenario
from labctl.model.window import Day, Windows, clock_time
from labctl.plan.estimate import Share
from labctl.plan.overview import Forecast, Overview, overview
from labctl.report.console import terminal_console
from labctl.spec.campaign import with_window
from labctl.spec.cross_check import load_both

_OPENINGS_LISTED = 30


@click.command()
@click.argument("campaign", type=click.Path(path_type=Path))
@click.option("--lab", "lab_file", type=click.Path(path_type=Path), required=True, help="The lab file.")
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.option("--max-runs", type=click.IntRange(min=1), help="Raise the cap on the number of runs.")
@click.option("--cells", "shown", type=click.IntRange(min=0), default=40, show_default=True, help="Cells to list.")
@click.option("--window", help="A window of every day in place of the campaign's own, such as 22:00-06:00.")
@click.option("--zone", help="The time zone of the windows, such as Europe/Dublin.")
def plan(
    campaign: Path,
    lab_file: Path,
    as_json: bool,
    max_runs: int | None,
    shown: int,
    window: str | None,
    zone: str | None,
) -> None:
    """Show the cells and runs of CAMPAIGN in a lab, what is not applicable and why, and the hours and nights needed."""
    checked, lab = load_both(campaign, lab_file)
    checked = with_window(checked, window, zone)
    if max_runs is not None:
        checked = replace(checked, max_runs=max_runs)
    found = overview(checked, lab, now=clock.now(), cells=shown)
    if as_json:
        click.echo(json.dumps(_as_data(found), indent=2))
    else:
        show(found, terminal_console())


def _as_data(plan: Overview) -> dict[str, Any]:
    campaign, counts, least = plan.campaign, plan.counts, plan.least
    return {
        "campaign": campaign.name,
        "lab": plan.lab.name,
        "cells": counts.cells,
        "applicable": counts.applicable,
        "not_applicable": [
            {"reason": reason, "cells": number} for reason, number in counts.not_applicable_by_reason.items()
        ],
        "repeats": campaign.repeats,
        "adaptive": _adaptive(plan),
        "anchor": _anchor(plan),
        "warmups": campaign.warmups,
        "transfers": campaign.transfers,
        "max_runs": campaign.max_runs,
        "order": campaign.order.value,
        "seed": campaign.seed,
        "priority": campaign.priority,
        "runs_at_once": plan.machines,
        **_forecast(least, campaign.windows),
        "scenarios": _scenarios(least.estimate.by_scenario),
        "windows": _windows(campaign.windows) if campaign.windows is not None else None,
        "factors": {name: list(levels) for name, levels in campaign.factors.items()},
        "settings": dict(campaign.settings),
        "baseline": dict(campaign.baseline),
        "listed": [
            {"id": planned.cell.id, "levels": dict(planned.cell.levels), "reason": planned.reason}
            for planned in plan.cells
        ],
    }


def _forecast(forecast: Forecast, windows: Windows | None) -> dict[str, Any]:
    """Runs, seconds of work, and nights; these are null without windows, where there are none to count."""
    nights = forecast.nights
    zone = ZoneInfo(windows.zone) if windows is not None else None
    return {
        "runs": forecast.estimate.runs,
        "seconds": round(forecast.estimate.seconds, 1),
        "nights": nights.count if windows is not None else None,
        "end": _iso(nights.end, zone) if nights.end is not None else None,
        "runs_left": nights.left,
        "openings": [
            {"start": _iso(each.start, zone), "end": _iso(each.end, zone), "seconds": each.seconds}
            for each in nights.openings[:_OPENINGS_LISTED]
        ]
        if windows is not None
        else None,
    }


def _adaptive(plan: Overview) -> dict[str, Any] | None:
    adaptive = plan.campaign.adaptive
    if adaptive is None:
        return None
    asked = {"max": adaptive.maximum, "within": adaptive.within, "budget_seconds": adaptive.budget}
    return asked | {"at_most": _forecast(plan.most, plan.campaign.windows)}


def _anchor(plan: Overview) -> dict[str, Any] | None:
    anchor = plan.campaign.anchor
    if anchor is None:
        return None
    return {"levels": dict(anchor.levels), "every": anchor.every, "runs": plan.least.estimate.anchors.runs}


def _scenarios(shares: Mapping[Scenario, Share]) -> dict[str, Any]:
    return {
        scenario.value: {"runs": share.runs, "seconds": round(share.seconds, 1)} for scenario, share in shares.items()
    }


def _windows(windows: Windows) -> dict[str, Any]:
    return {
        "zone": windows.zone,
        "times": [
            {
                "days": [day.value for day in Day if day in time.days],
                "start": clock_time(time.start),
                "end": clock_time(time.end),
            }
            for time in windows.times
        ],
        "blackout": [str(day) for day in sorted(windows.blackout)],
        "until": str(windows.until) if windows.until is not None else None,
    }


def _iso(instant: float, zone: ZoneInfo | None) -> str:
    return datetime.fromtimestamp(instant, zone).astimezone(zone).isoformat(timespec="seconds")
