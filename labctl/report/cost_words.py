"""What transfers cost, in words: the same columns in every rendering."""

from __future__ import annotations

from labctl.analysis.costs import Cost
from labctl.analysis.summary import Summary
from labctl.model.scenario import Side
from labctl.report import units

COLUMNS = (
    "sender: busy cores",
    "moved per core",
    "receiver: busy cores",
    "moved per core",
    "round trip: median",
    "99 %",
    "lost",
)
"""Of a table with `cost_row`, after the cell's name."""


def cost_row(cost: Cost) -> tuple[str, ...]:
    """A text for each of `COLUMNS`."""
    words: list[str] = []
    for side in Side:
        one = cost.sides.get(side)
        words.append(
            units.significant(one.busy_cores.mean) if one and one.busy_cores.mean is not None else units.NOTHING
        )
        words.append(units.rate(one.per_core.mean) if one else units.NOTHING)
    if cost.waits is None:
        return (*words, units.NOTHING, units.NOTHING, units.NOTHING)
    lost = units.percent(100 * cost.waits.lost, signed=False)
    return (*words, _milliseconds(cost.waits.median), _milliseconds(cost.waits.p99), lost)


def _milliseconds(summary: Summary) -> str:
    return units.seconds(summary.mean / 1000) if summary.mean is not None else units.NOTHING
