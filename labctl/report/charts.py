"""Charts as inline SVG: drawn by matplotlib, coloured by the page's style sheet, the same bytes for the same data.

matplotlib draws in sentinel colours, which are then replaced by CSS variables, so that one drawing serves light, dark and
paper. Text stays text. Ids get a prefix of their own, since many drawings share one page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from lxml import etree
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labctl.report import units
from labctl.report.rows import figures_of
from labctl.report.values import NO_VM, Bar, BarGroup, MigrationRow

WIDTH = 330.0
"""Width of every drawing in points, chosen so that its text is legible on a phone."""
_FONT = 10.0
_BAR = 26.0
"""Points of height for each bar."""
_ROOM = 1.32
"""The axis is this much longer than its longest bar, so that the figure beside it has room."""
_LONGEST = 18
"""Longer labels are cut in the drawing; the table behind it has them whole."""

_STYLED = (
    "virtio", "vmxnet3", "e1000e", "e1000", "rtl8139", "igb", "vmxnet2", "pcnet32",
    "vt-d", "sr-iov", "synthetic", "legacy", "host", "other",
    "ink", "muted", "grid", "paper", "shade", "stall", "recovery", "before",
)  # fmt: skip
"""Names of colours; the style sheet gives each as `--c-NAME`."""
_SENTINELS = {name: f"#01{index:02x}fe" for index, name in enumerate(_STYLED)}


def colour_name(label: str) -> str:
    """The name of the colour of a NIC model, the same in every chart; other labels share one."""
    if label == NO_VM:
        return "host"
    return label if label in _STYLED[: _STYLED.index("host")] else "other"


@dataclass(frozen=True, kw_only=True)
class BarAxis:
    """What bar charts that are to be compared share: the right end of the axis in bit/s, and room for labels in points."""

    end: float
    left: float


def bar_axis(groups: Sequence[BarGroup]) -> BarAxis:
    """The axis that charts of these groups share."""
    bars = [bar for group in groups for bar in group.bars]
    longest = max((len(_short(bar.label)) for bar in bars), default=0)
    return BarAxis(end=_ROOM * max(map(_top, bars), default=0.0), left=14 + 5.9 * longest)


def bar_chart(group: BarGroup, axis: BarAxis, name: str) -> Markup:
    """Means as bars, 95 % intervals as whiskers, runs as dots.

    `name` makes the ids of the drawing unique on its page.
    """
    divisor, unit = units.rate_unit(axis.end / _ROOM)
    bars = list(reversed(group.bars))
    height = _BAR * len(bars) + 36
    with _drawing(WIDTH, height) as figure:
        axes = _axes(figure, left=axis.left, right=14, bottom=32, top=4, width=WIDTH, height=height)
        _draw_bars(axes, bars, divisor)
        axes.set_yticks(range(len(bars)), [_short(bar.label) for bar in bars])
        axes.tick_params(axis="y", length=0, labelcolor=_SENTINELS["ink"])
        axes.set_xlim(0, axis.end / divisor or 1)
        axes.set_ylim(-0.6, len(bars) - 0.4)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(unit, color=_SENTINELS["muted"])
        axes.grid(axis="x", color=_SENTINELS["grid"], linewidth=0.7)
        axes.spines["left"].set_color(_SENTINELS["muted"])
        axes.spines["bottom"].set_visible(False)
        figures = "; ".join(f"{bar.label}: {_in_words(bar)}" for bar in group.bars)
        return _svg(figure, name, f"Throughput, {group.title}. {figures}.")


def timeline_chart(row: MigrationRow, scale: float, name: str) -> Markup:
    """Throughput around one migration: its time shaded, the stall and the recovery marked, the level of before dashed.

    `scale` is the top of the axis in bit/s.
    """
    divisor, unit = units.rate_unit(scale)
    height = 150.0
    effect = row.effect
    with _drawing(WIDTH, height) as figure:
        axes = _axes(figure, left=42, right=14, bottom=32, top=8, width=WIDTH, height=height)
        start, end = _window(row)
        axes.set_xlim(start, end)
        axes.set_ylim(0, 1.08 * scale / divisor or 1)
        for one, other in row.others:
            axes.axvspan(one, other, facecolor=_SENTINELS["shade"], edgecolor="none", zorder=0)
        if effect.started is not None and effect.ended is not None:
            axes.axvspan(effect.started, effect.ended, facecolor=_SENTINELS["shade"], edgecolor="none", zorder=0)
        if effect.before is not None:
            axes.axhline(
                effect.before.mean / divisor, color=_SENTINELS["before"], linewidth=0.9, linestyle=(0, (4, 3)), zorder=2
            )
        points = [point for point in row.points if point.end >= start and point.start <= end]
        edges = [points[0].start, *(point.end for point in points)]
        rates = [point.bits_per_second / divisor for point in points]
        colour = _SENTINELS[colour_name(row.nic_model)]
        axes.stairs(rates, edges, baseline=None, color=colour, linewidth=1.3, zorder=3)
        if effect.stall is not None:
            axes.axvspan(
                effect.stall.start,
                effect.stall.end,
                ymax=0.07,
                facecolor=_SENTINELS["stall"],
                edgecolor="none",
                zorder=4,
            )
        if effect.recovery.at is not None and effect.stall is not None:
            axes.axvline(effect.recovery.at, color=_SENTINELS["recovery"], linewidth=1.2, zorder=4)
        axes.xaxis.set_major_locator(MaxNLocator(7))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("seconds of the transfer", color=_SENTINELS["muted"])
        axes.set_ylabel(unit, color=_SENTINELS["muted"])
        axes.grid(axis="y", color=_SENTINELS["grid"], linewidth=0.7)
        axes.spines["left"].set_visible(False)
        axes.spines["bottom"].set_color(_SENTINELS["muted"])
        return _svg(
            figure, name, f"Throughput over time, {row.title}, run {row.run}. The table below holds its values."
        )


def timeline_scale(rows: Sequence[MigrationRow]) -> float:
    """The top of the axis that the timelines of these rows share, in bit/s."""
    return max((point.bits_per_second for row in rows for point in row.points), default=0.0)


def _draw_bars(axes: Axes, bars: Sequence[Bar], divisor: float) -> None:
    ink = _SENTINELS["ink"]
    placed = [(place, bar, bar.row.summary) for place, bar in enumerate(bars)]
    axes.barh(
        range(len(bars)),
        [(summary.mean or 0.0) / divisor for _, _, summary in placed],
        height=0.56,
        color=[_SENTINELS[colour_name(bar.label)] for bar in bars],
        zorder=2,
    )
    bounds = [
        (place, max(0.0, summary.low) / divisor, summary.high / divisor)
        for place, _, summary in placed
        if summary.low is not None and summary.high is not None
    ]
    places, lows, highs = ([one[i] for one in bounds] for i in range(3))
    axes.hlines(places, lows, highs, color=ink, linewidth=1.2, zorder=4)
    axes.plot(lows + highs, places * 2, color=ink, marker="|", markersize=6, linestyle="none", zorder=4)
    dots = [
        (figure / divisor, place + (0.17 if index % 2 else -0.17))
        for place, bar in enumerate(bars)
        for index, figure in enumerate(figures_of(bar.row))
    ]
    axes.plot(
        [x for x, _ in dots], [y for _, y in dots], linestyle="none", marker="o", markersize=3.4, zorder=5,
        markerfacecolor=_SENTINELS["paper"], markeredgecolor=ink, markeredgewidth=0.8,
    )  # fmt: skip
    for place, bar, summary in placed:
        told = summary.mean is not None
        axes.annotate(
            units.rate(summary.mean) + _star(bar) if told else "no figure",
            (_top(bar) / divisor, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=ink if told else _SENTINELS["muted"],
            zorder=6,
        )


def _top(bar: Bar) -> float:
    summary = bar.row.summary
    return max(summary.mean or 0.0, summary.high or 0.0, summary.maximum or 0.0)


def _in_words(bar: Bar) -> str:
    summary = bar.row.summary
    if summary.mean is None:
        return "no figure"
    text = f"{units.rate(summary.mean)}, n = {summary.n}"
    if summary.low is not None:
        text += f", 95 % interval {units.rate_interval(summary.low, summary.high)}"
    return text + "".join(f", {kind}" for kind in _doubts(bar))


def _star(bar: Bar) -> str:
    """What stands at a figure when there is a doubt about runs that it is made of."""
    return "*" if _doubts(bar) else ""


def _doubts(bar: Bar) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flag.kind for flag in bar.row.flags if flag.runs))


def _window(row: MigrationRow) -> tuple[float, float]:
    """The stretch of the transfer that is drawn: all of it, or the surroundings of the migration in a long one."""
    first, last = row.points[0].start, row.points[-1].end
    effect = row.effect
    if effect.started is None or effect.ended is None:
        return first, last
    over = max(effect.ended, effect.recovery.at or 0.0, effect.stall.end if effect.stall else 0.0)
    start, end = max(first, effect.started - 5), min(last, over + 6)
    return (first, last) if end - start > 0.6 * (last - first) or end <= start else (start, end)


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"


@contextmanager
def _drawing(width: float, height: float) -> Iterator[Figure]:
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "labctl",
        "text.parse_math": False,
        "font.size": _FONT,
        "axes.linewidth": 0.8,
        "path.simplify": False,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield Figure(figsize=(width / 72, height / 72))


def _axes(figure: Figure, *, left: float, right: float, bottom: float, top: float, width: float, height: float) -> Axes:
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    )
    axes.set_facecolor("none")
    figure.patch.set_visible(False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(color=_SENTINELS["grid"], labelcolor=_SENTINELS["muted"], length=3, labelsize=_FONT - 0.5)
    axes.set_axisbelow(True)
    return axes


_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"


def _svg(figure: Figure, name: str, description: str) -> Markup:
    buffer = io.BytesIO()
    FigureCanvasSVG(figure)
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = etree.fromstring(buffer.getvalue())
    for unwanted in [*root.iter(f"{_SVG}metadata"), *root.iter(f"{_SVG}style")]:
        parent = unwanted.getparent()
        if parent is not None:
            parent.remove(unwanted)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(str(key), _rewritten(str(key), str(value), name))
    for key in ("width", "height", "version"):
        if key in root.attrib:
            del root.attrib[key]
    title = etree.Element(f"{_SVG}title", {"id": f"{name}-title"})
    title.text = description
    root.insert(0, title)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title")
    # matplotlib and lxml have escaped every text in it.
    return Markup(etree.tostring(root, encoding="unicode"))  # noqa: S704


def _rewritten(key: str, value: str, name: str) -> str:
    """An attribute with the drawing's own ids, the page's colours and the page's font."""
    if key == "id":
        return f"{name}-{value}"
    if key == _XLINK:
        return value.replace("#", f"#{name}-", 1) if value.startswith("#") else value
    value = value.replace("url(#", f"url(#{name}-")
    if key != "style":
        return value
    for colour, sentinel in _SENTINELS.items():
        value = value.replace(sentinel, f"var(--c-{colour})")
    return re.sub(r"'DejaVu Sans'.*?sans-serif", "var(--font)", value)
