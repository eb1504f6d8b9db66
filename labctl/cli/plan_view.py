"""What `labctl plan` shows, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labctl.cli.words import duration, many, moment
from labctl.model.campaign import Campaign, Cell, PlannedCell, QuietWait
from labctl.model.settings import Kind, Level, find_setting
from labctl.model.window import Windows
from labctl.plan.estimate import Estimate
from labctl.plan.nights import Nights
from labctl.plan.overview import Overview

_NIGHTS_SHOWN = 7


def show(plan: Overview, console: Console) -> None:
    """Print everything that the plan says."""
    campaign, counts = plan.campaign, plan.counts
    console.print(Text(f"Campaign {campaign.name} in lab {plan.lab.name}", style="bold"))
    if campaign.question:
        console.print(Text(campaign.question))
    console.print(_read_as(campaign))
    console.print(_cells(plan.cells, counts.cells))
    if counts.not_applicable_by_reason:
        console.print(_not_applicable(counts.not_applicable_by_reason))
    console.print(_times(plan.least.estimate))
    if campaign.windows is not None:
        console.print(_openings(plan.most.nights, campaign.windows))
    console.print(Text(f"{_runs(plan)}\n{work_in_words(plan)}\n{nights_in_words(plan)}"))


def _runs(plan: Overview) -> str:
    campaign, counts = plan.campaign, plan.counts
    order = f"random blocks, seed {campaign.seed}" if campaign.order.value == "blocks" else "the order of the file"
    runs = _range(plan.least.estimate.runs, plan.most.estimate.runs)
    return (
        f"{many(counts.cells, 'cell')}, {counts.applicable:,} applicable; {runs} {'run' if runs == '1' else 'runs'} "
        f"({_repeats(campaign)}, with {many(campaign.warmups, 'warm-up transfer')} and "
        f"{many(campaign.transfers, 'counted transfer')} in each); order: {order}.{_adaptive(campaign)}{_anchors(plan)}"
    )


def _repeats(campaign: Campaign) -> str:
    most = f" to {campaign.adaptive.maximum}" if campaign.adaptive is not None else ""
    return f"{campaign.repeats}{most} of each cell"


def _adaptive(campaign: Campaign) -> str:
    adaptive = campaign.adaptive
    if adaptive is None:
        return ""
    text = f"\nA cell is repeated until half the 95 % interval of its mean is within {adaptive.within * 100:g} % of it"
    if adaptive.budget is None:
        return f"{text}."
    return f"{text}; all runs beyond the first {campaign.repeats} of each take {duration(adaptive.budget)} at the most."


def _anchors(plan: Overview) -> str:
    anchor = plan.campaign.anchor
    if anchor is None:
        return ""
    runs = _range(plan.least.estimate.anchors.runs, plan.most.estimate.anchors.runs)
    return f"\nAmong the runs are {runs} further ones of the anchor: {Cell(levels=anchor.levels).key}."


def work_in_words(plan: Overview) -> str:
    """How much work there is, and how much of it goes on at once."""
    least, most = plan.least.estimate.seconds, plan.most.estimate.seconds
    hours = duration(least) if least == most else f"{duration(least)} to {duration(most)}"
    once = f"; up to {plan.machines} runs go on at once" if plan.machines > 1 else ""
    return f"About {hours} of work, one run after the other{once}."


def nights_in_words(plan: Overview) -> str:
    """How many nights are needed, and when it all would end."""
    windows, least, most = plan.campaign.windows, plan.least.nights, plan.most.nights
    if windows is None:
        return f"It has no windows, so it would go on without a pause and end {_ends(least.end, most.end)}."
    over = f"the windows end with {windows.until}" if windows.until is not None else "the years looked ahead are over"
    if least.left:
        return f"{many(least.left, 'run')} would be left when {over}, after {many(least.count, 'night')}."
    if most.left:
        first = f"{many(least.count, 'night')} needed at the least, to end {_ends(least.end, least.end)}"
        return f"{first}; {many(most.left, 'run')} may be left when {over}."
    needed = many(least.count, "night") if least.count == most.count else f"{least.count} to {most.count} nights"
    return f"{needed} needed; it would end {_ends(least.end, most.end)}."


def _ends(least: float | None, most: float | None) -> str:
    assert least is not None
    assert most is not None
    first, last = moment(least), moment(most)
    return f"about {first}" if first == last else f"between {first} and {last}"


def _range(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


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
    for name, text in _schedule(campaign):
        table.add_row(name, Text(text), "")
    return table


def _schedule(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """What the file says of when and how runs are made, beside its settings."""
    windows, quiet = campaign.windows, campaign.quiet
    if windows is not None:
        yield "windows", "; ".join(str(time) for time in windows.times) + f" ({windows.zone})"
        if windows.blackout:
            yield "blackout", ", ".join(str(day) for day in sorted(windows.blackout))
        if windows.until is not None:
            yield "until", str(windows.until)
    if campaign.priority:
        yield "priority", str(campaign.priority)
    if campaign.anchor is not None:
        yield "anchor", f"{Cell(levels=campaign.anchor.levels).key} after every {campaign.anchor.every} runs"
    if quiet != QuietWait():
        yield "quiet", f"wait {duration(quiet.wait)}, then {quiet.then}"
    if campaign.back_off != Campaign.back_off:
        yield "back_off", duration(campaign.back_off)
    if campaign.notify:
        yield "notify", ", ".join(str(address) for address in campaign.notify)


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
        table.add_row(scenario.value, f"{share.runs:,}", duration(share.seconds))
    if estimate.anchors.runs:
        table.add_row("anchor", f"{estimate.anchors.runs:,}", duration(estimate.anchors.seconds))
    return table


def _openings(nights: Nights, windows: Windows) -> Table:
    """The first nights with their real lengths."""
    first = nights.openings[:_NIGHTS_SHOWN]
    of_all = "" if nights.count <= len(first) else f" (the first {len(first)} of {nights.count})"
    table = _table(f"Nights, by the clock of {windows.zone}{of_all}", "from", "to", "length")
    for opening in first:
        zone = ZoneInfo(windows.zone)
        table.add_row(moment(opening.start, zone), moment(opening.end, zone), duration(opening.seconds))
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("cells", "about", "length") else "left")
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
