"""What is said of cells that were run again and again: the anchor's over time, and those that never got narrow enough."""

from __future__ import annotations

from labctl.analysis.adaptive import Unsettled
from labctl.analysis.drift import Drift
from labctl.report import units


def drift_words(drift: Drift, title: str) -> str:
    """The trend of the anchor's cell in one sentence."""
    trend = drift.trend
    if trend.n == 0:
        return f"No run of the anchor, {title}, has given a figure."
    runs = "1 run" if trend.n == 1 else f"{trend.n} runs"
    if trend.percent_per_hour is None:
        return f"{runs} of {title} tell no trend: it takes two on one set of hosts, at different times."
    said = (
        f"{runs} of {title} over {units.seconds(3600 * trend.hours)}: {units.percent(trend.percent_per_hour)} an hour"
    )
    if trend.low is None or trend.high is None:
        return f"{said} (too few for an interval)."
    interval = units.percent_interval((trend.low, trend.high))
    told = "Figures drifted" if trend.told else "No drift can be told"
    return f"{said} (95{units.SPACE}% interval {interval}). {told}."


def within_words(within: float) -> str:
    """How well every cell was to be known: `5 %`."""
    return f"{100 * within:g}{units.SPACE}%"


def width_words(cell: Unsettled) -> str:
    """Half the interval of a cell's mean, in percent of the mean: `±12.3 %`."""
    return units.NOTHING if cell.share is None else f"±{units.percent(100 * cell.share, signed=False)}"
