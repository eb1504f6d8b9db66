"""How far a campaign is, and how long it will still take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from labctl.model.campaign import Cell
from labctl.model.outcome import CampaignState, RunState
from labctl.plan.estimate import run_seconds
from labctl.plan.resources import machines_of
from labctl.store import ActiveAttempt, CampaignHead, Store

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Runs by outcome (or state), what is being done, and the seconds left as a range that the runs so far justify."""

    state: CampaignState
    total: int
    done: int
    counts: Mapping[str, int]
    active: tuple[ActiveAttempt, ...]
    seconds_left: Range
    measured: int
    """How many attempts the range rests on; 0 means that it is only the plan's estimate."""


def progress(store: Store, head: CampaignHead) -> Progress:
    """The progress of a campaign now, from the store alone."""
    counts = store.run_counts(head.id)
    total = sum(counts.values())
    open_runs = counts.get(RunState.PENDING, 0) + counts.get(RunState.ACTIVE, 0)
    durations = store.durations(head.id)
    return Progress(
        state=store.state(head.id),
        total=total,
        done=total - open_runs,
        counts=counts,
        active=store.active_attempts(head.id),
        seconds_left=_seconds_left(head, store.pending_cells(head.id), durations),
        measured=sum(count for count, _ in durations.values()),
    )


def _seconds_left(
    head: CampaignHead, left: Mapping[str, tuple[Cell, int]], durations: Mapping[str, tuple[int, float]]
) -> Range:
    """A low and a high figure, from what the attempts so far took.

    A cell that was measured counts with its own mean; the others with the plan's estimate, times the ratio of measured to
    estimated seconds of those that were. Physical machines work side by side. Until three attempts have ended the range
    is a quarter off and on; then it is two standard errors of the ratio, at least a tenth.
    """
    estimates = {cell_id: run_seconds(head.campaign, cell) for cell_id, (cell, _) in left.items()}
    measured = {cell_id: mean for cell_id, (_, mean) in durations.items()}
    ratios = [
        mean / estimates[cell_id]
        for cell_id, (count, mean) in durations.items()
        if cell_id in estimates
        for _ in range(count)
    ]
    ratio = statistics.fmean(ratios) if ratios else 1.0
    expected = sum(count * measured.get(cell_id, ratio * estimates[cell_id]) for cell_id, (_, count) in left.items())
    expected /= machines_of(head.lab)
    spread = 0.25
    if len(ratios) >= 3:
        spread = min(0.5, max(0.1, 2 * statistics.stdev(ratios) / ratio / math.sqrt(len(ratios))))
    return expected * (1 - spread), expected * (1 + spread)
