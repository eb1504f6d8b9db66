"""`labctl plan`: what a campaign would run in a lab, how long it takes, and what can't be run and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.model.campaign import Campaign, PlannedCell
from labctl.model.lab import Lab
from labctl.model.settings import Kind, Level, find_setting
from labctl.plan.estimate import Estimate, estimate, nights
from labctl.plan.matrix import Counts, Matrix, planned_cells, refuse_oversize
from labctl.report.console import terminal_console
from labctl.spec.cross_check import load_both

_DAY = 24 * 60


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a campaign would be. `cells` are the first ones only; `window` is the length of a night in seconds."""

    campaign: Campaign
    lab: Lab
    counts: Counts
    estimate: Estimate
    cells: tuple[PlannedCell, ...]
    window: float


@click.command()
@click.argument("campaign", type=click.Path(path_type=Path))
@click.option("--lab", "lab_file", type=click.Path(path_type=Path), required=True, help="The lab file.")
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.option("--max-runs", type=click.IntRange(min=1), help="Raise the cap on the number of runs.")
@click.option("--cells", "shown", type=click.IntRange(min=0), default=40, show_default=True, help="Cells to list.")
@click.option("--window", default="22:00-06:00", show_default=True, help="The hours of a night, for the nights needed.")
def plan(campaign: Path, lab_file: Path, as_json: bool, max_runs: int | None, shown: int, window: str) -> None:
    """Show the cells and runs of CAMPAIGN in a lab, what is not applicable and why, and the hours needed."""
    seconds = _window_seconds(window)
    checked, lab = load_both(campaign, lab_file)
    if max_runs is not None:
        checked = replace(checked, max_runs=max_runs)
    matrix = Matrix(checked, lab)
    found = Plan(
        campaign=checked,
        lab=lab,
        counts=refuse_oversize(checked, lab, matrix=matrix),
        estimate=estimate(checked, lab, matrix=matrix),
        cells=tuple(islice(planned_cells(checked, lab, matrix=matrix), shown)),
        window=seconds,
    )
    if as_json:
        click.echo(json.dumps(_as_data(found), indent=2))
    else:
        _show(found, terminal_console())


def _window_seconds(window: str) -> float:
    """The nominal length of a window such as `22:00-06:00`; of a night with a clock change it is not the real one."""
    match = re.fullmatch(r"([01]?\d|2[0-4]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)", window)
    if match is None:
        raise click.BadParameter(f"{window!r} is no window such as 22:00-06:00", param_hint="--window")
    begin, end = (int(hour) * 60 + int(minute) for hour, minute in (match.group(1, 2), match.group(3, 4)))
    return float((end - begin) % _DAY or _DAY) * 60


def _as_data(plan: Plan) -> dict[str, Any]:
    campaign, counts = plan.campaign, plan.counts
    return {
        "campaign": campaign.name,
        "lab": plan.lab.name,
        "cells": counts.cells,
        "applicable": counts.applicable,
        "not_applicable": [
            {"reason": reason, "cells": number} for reason, number in counts.not_applicable_by_reason.items()
        ],
        "repeats": campaign.repeats,
        "warmups": campaign.warmups,
        "transfers": campaign.transfers,
        "runs": counts.runs,
        "max_runs": campaign.max_runs,
        "order": campaign.order.value,
        "seed": campaign.seed,
        "seconds": round(plan.estimate.seconds, 1),
        "window_seconds": plan.window,
        "nights": nights(plan.estimate.seconds, plan.window),
        "scenarios": {
            scenario.value: {"runs": share.runs, "seconds": round(share.seconds, 1)}
            for scenario, share in plan.estimate.by_scenario.items()
        },
        "factors": {name: list(levels) for name, levels in campaign.factors.items()},
        "settings": dict(campaign.settings),
        "baseline": dict(campaign.baseline),
        "listed": [
            {"id": planned.cell.id, "levels": dict(planned.cell.levels), "reason": planned.reason}
            for planned in plan.cells
        ],
    }


def _show(plan: Plan, console: Console) -> None:
    campaign, counts = plan.campaign, plan.counts
    console.print(Text(f"Campaign {campaign.name} in lab {plan.lab.name}", style="bold"))
    if campaign.question:
        console.print(Text(campaign.question))
    console.print(_read_as(campaign))
    console.print(_cells(plan.cells, counts.cells))
    if counts.not_applicable_by_reason:
        console.print(_not_applicable(counts.not_applicable_by_reason))
    console.print(_times(plan.estimate))
    console.print(Text(_summary(plan)))


def _summary(plan: Plan) -> str:
    campaign, counts = plan.campaign, plan.counts
    seconds = plan.estimate.seconds
    needed = nights(seconds, plan.window)
    order = f"random blocks, seed {campaign.seed}" if campaign.order.value == "blocks" else "the order of the file"
    return (
        f"{_many(counts.cells, 'cell')}, {counts.applicable:,} applicable; {_many(counts.runs, 'run')} "
        f"({campaign.repeats} of each cell, with {_many(campaign.warmups, 'warm-up transfer')} and "
        f"{_many(campaign.transfers, 'counted transfer')} in each); order: {order}.\n"
        f"About {_duration(seconds)} of work, one run after the other: {_many(needed, 'night')} "
        f"of {_duration(plan.window)}."
    )


def _many(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _read_as(campaign: Campaign) -> Table:
    """How the values of the file were understood."""
    table = _table("Values as they were read", "setting", "values", "varied")
    for name, levels in campaign.factors.items():
        table.add_row(name, Text(", ".join(_value(name, level) for level in levels)), "yes")
    for name, level in campaign.settings.items():
        table.add_row(name, Text(_value(name, level)), "")
    for override in campaign.overrides:
        where = "; ".join(
            f"{name} {', '.join(_value(name, level) for level in levels)}"
            for name, levels in override.when.levels.items()
        )
        for name, level in override.settings.items():
            table.add_row(name, Text(f"{_value(name, level)} when {where}"), "")
    return table


def _cells(cells: tuple[PlannedCell, ...], total: int) -> Table:
    table = _table("Cells" if len(cells) == total else f"The first {len(cells)} of {total:,} cells", "cell", "runs")
    for planned in cells:
        table.add_row(Text(planned.cell.key), Text(f"no: {planned.reason}" if planned.reason else "yes"))
    return table


def _not_applicable(reasons: Mapping[str, int]) -> Table:
    table = _table("Not applicable", "reason", "cells")
    for reason, number in islice(reasons.items(), 30):
        table.add_row(Text(reason), f"{number:,}")
    if len(reasons) > 30:
        rest = sum(islice(reasons.values(), 30, None))
        table.add_row(Text(f"{len(reasons) - 30} further reasons"), f"{rest:,}")
    return table


def _times(estimate: Estimate) -> Table:
    table = _table("Time needed", "scenario", "runs", "about")
    for scenario, share in estimate.by_scenario.items():
        table.add_row(scenario.value, f"{share.runs:,}", _duration(share.seconds))
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("cells", "about") else "left")
    return table


def _value(name: str, level: Level) -> str:
    """A level with its unit."""
    if isinstance(level, bool):
        return "on" if level else "off"
    setting = find_setting(name)
    if setting is None or isinstance(level, str):
        return str(level)
    if setting.kind in (Kind.SIZE, Kind.RATE, Kind.SECONDS):
        return f"{level:g} {setting.unit}" if isinstance(level, float) else f"{level} {setting.unit}"
    return f"{level:g}" if isinstance(level, float) else str(level)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
