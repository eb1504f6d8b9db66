"""Adaptive repeats: whether a cell is known well enough, and which cells of a campaign never were.

A cell is known well enough when half the width of the 95 % interval of its mean is at most the asked share of the mean.
Looking at the interval after every run and stopping once it is narrow makes it a little too narrow on average (Anscombe,
"Large-sample theory of sequential estimation", Mathematical Proceedings of the Cambridge Philosophical Society 48(4),
1952: the nominal confidence is reached as the share gets small). The least number of runs that is asked for keeps that
small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.analysis.figures import throughput_of
from labctl.analysis.summary import summarise
from labctl.model.campaign import Adaptive, Campaign
from labctl.model.outcome import Purpose, RunState
from labctl.model.result import CampaignRecord, RunRecord


@dataclass(frozen=True, kw_only=True)
class Unsettled:
    """A cell that is not known as well as was asked for, with `n` figures, and why no more runs of it were made."""

    cell: str
    n: int
    share: float | None
    """Half the width of the interval of its mean, as a share of the mean; None with fewer than two figures."""
    why: str


def half_width(figures: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean, as a share of the mean. None when there is no interval, or no
    mean to take a share of."""
    summary = summarise(figures)
    if summary.low is None or summary.high is None or not summary.mean:
        return None
    return (summary.high - summary.low) / 2 / abs(summary.mean)


def wanted(figures: Sequence[float], adaptive: Adaptive, runs: int) -> bool:
    """Whether a cell needs one more run, when all its `runs` so far are done and gave these figures (bit/s).

    Without a single figure there is nothing to know better: it isn't repeated for that.
    """
    return 0 < len(figures) <= runs < adaptive.maximum and not settled(figures, adaptive)


def settled(figures: Sequence[float], adaptive: Adaptive) -> bool:
    """Whether a cell with these figures (bit/s) is known well enough."""
    share = half_width(figures)
    return share is not None and share <= adaptive.within


def unsettled(campaign: Campaign, record: CampaignRecord) -> tuple[Unsettled, ...]:
    """The cells of a campaign with adaptive repeats that are not known well enough, in the order of the matrix; none of a
    campaign without."""
    adaptive = campaign.adaptive
    if adaptive is None:
        return ()
    by_cell: dict[str, list[RunRecord]] = defaultdict(list)
    for run in record.runs:
        if run.purpose is Purpose.MEASURE:
            by_cell[run.cell].append(run)
    found = []
    for cell in sorted(record.cells, key=lambda each: each.position):
        runs = by_cell[cell.id]
        figures = [
            figure for run in runs if run.result is not None and (figure := throughput_of(run.result)) is not None
        ]
        if cell.applicable and not settled(figures, adaptive):
            why = _why(runs, figures, adaptive, record)
            found.append(Unsettled(cell=cell.id, n=len(figures), share=half_width(figures), why=why))
    return tuple(found)


def _why(runs: Sequence[RunRecord], figures: Sequence[float], adaptive: Adaptive, record: CampaignRecord) -> str:
    if any(run.state != RunState.DONE for run in runs):
        return "not all of its runs are done"
    if not figures:
        return "none of its runs gave a figure"
    if len(runs) >= adaptive.maximum:
        return f"it has {adaptive.maximum} runs, which is the most that was asked for"
    if any(run.unrun is not None for run in runs):
        return "runs of it were not run"
    if record.ended is None:
        return "the campaign goes on"
    if adaptive.budget is not None:
        return "the budget for further runs was used up"
    return "the campaign ended before"
