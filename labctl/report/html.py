"""The report as one self-contained HTML file that opens offline."""

from __future__ import annotations

import base64
from collections import defaultdict
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from itertools import groupby
from pathlib import Path

import jinja2
from markupsafe import Markup

from labctl.analysis.comparison import Difference
from labctl.report import units
from labctl.report.charts import bar_axis, bar_chart, timeline_chart, timeline_scale
from labctl.report.cost_words import COLUMNS, cost_row
from labctl.report.facts import FactRow, Spread
from labctl.report.failures import FAULT_MEANS
from labctl.report.finding_words import findings_words
from labctl.report.heat import heat_map
from labctl.report.migration_words import MigrationWords, first_words, words_of
from labctl.report.repeat_words import drift_words, width_words, within_words
from labctl.report.values import BarGroup, MigrationRow, Report

MOST_BAR_CHARTS = 80
"""So many groups of bars get a chart; the table holds all cells."""
MOST_TIMELINES = 60
"""So many migrations get a chart; the table holds all of them."""


@dataclass(frozen=True, kw_only=True)
class BarPanel:
    """A bar chart with the data behind it."""

    group: BarGroup
    chart: Markup
    own_axis: bool


@dataclass(frozen=True, kw_only=True)
class TimelinePanel:
    """The timeline of a migration with what it says in words. `chart` is empty where there are no intervals."""

    row: MigrationRow
    words: MigrationWords
    chart: Markup


def render_html(report: Report) -> str:
    """The page, the same bytes for the same report. Needs nothing but itself: style, script and charts are inside."""
    script = _asset("report.js")
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            style=Markup(_asset("report.css")),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            script_hash=f"sha256-{digest}",
            bars=_bar_panels(report),
            timelines=_timeline_panels(report),
            migration_words=[(row, words_of(row.effect)) for row in report.migrations],
            sources=sorted({words_of(row.effect).hypervisor_source for row in report.migrations}),
            judged=list(dict.fromkeys(row.verdict.rule for row in report.rows if row.verdict is not None)),
            heat=heat_map(report),
            costs=[(row, cost_row(row.cost)) for row in report.rows if row.cost is not None],
            cost_columns=COLUMNS,
            findings=findings_words(report.findings),
            drift=drift_words(report.drift, report.row(report.drift.cell).title) if report.drift is not None else "",
            within=within_words(report.within) if report.within is not None else "",
            width_words=width_words,
            failures=[(fault, list(some)) for fault, some in groupby(report.failures, key=lambda one: one.fault)],
            fault_means=FAULT_MEANS,
            facts=_facts(report),
            Spread=Spread,
            comparing=[name for name in report.factors if any(row.comparison(name) for row in report.rows)],
        )
    )


def write_html(report: Report, path: Path) -> None:
    """Write the page so that a reader of the path sees the old page or the new one, never half of one."""
    part = path.with_name(path.name + ".part")
    part.write_text(render_html(report), encoding="utf-8")
    part.replace(path)


def _bar_panels(report: Report) -> list[BarPanel]:
    """All charts share one axis, but for controls without any VM: they are often much faster and would shrink the rest."""
    shared = bar_axis([group for group in report.bars if not group.control] or report.bars)
    return [
        BarPanel(
            group=group,
            chart=bar_chart(group, bar_axis([group]) if group.control else shared, f"bars{index}"),
            own_axis=group.control and len(report.bars) > 1,
        )
        for index, group in enumerate(report.bars[:MOST_BAR_CHARTS])
    ]


def _timeline_panels(report: Report) -> list[TimelinePanel]:
    by_cell: dict[str, list[MigrationRow]] = defaultdict(list)
    for row in report.migrations:
        by_cell[row.cell].append(row)
    scales = {cell: timeline_scale(rows) for cell, rows in by_cell.items()}
    return [
        TimelinePanel(
            row=row,
            words=words_of(row.effect),
            chart=timeline_chart(row, scales[row.cell], f"timeline{index}") if row.points else Markup(""),
        )
        for index, row in enumerate(report.migrations[:MOST_TIMELINES])
    ]


def _facts(report: Report) -> list[tuple[Spread, list[FactRow]]]:
    order = (Spread.DIFFERS, Spread.SAME, Spread.BY_CELL, Spread.PLACED, Spread.MEASURED)
    return [(spread, rows) for spread in order if (rows := [row for row in report.facts if row.spread is spread])]


def _asset(name: str) -> str:
    return (resources.files("labctl.report") / "assets" / name).read_text(encoding="utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("labctl.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "rate": units.rate,
        "size": units.size,
        "seconds": units.seconds,
        "percent": units.percent,
        "percent_interval": units.percent_interval,
        "times": units.times,
        "untold": units.untold,
        "first_words": first_words,
        "untold_briefly": units.untold_briefly,
        "moment": units.moment,
        "fact": units.fact,
        "setting": lambda name: "NIC model" if name == "nic_model" else str(name).replace("_", " "),
    }
    environment.globals |= {"rate_interval": units.rate_interval, "level": units.level, "nothing": units.NOTHING}
    environment.tests["faster_or_slower"] = lambda ratio: ratio.difference in (Difference.FASTER, Difference.SLOWER)
    return environment
