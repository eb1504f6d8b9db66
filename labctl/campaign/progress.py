"""How far a campaign is, and how long it will still take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from labctl.model.campaign import Campaign, Cell
from labctl.model.outcome import CampaignState, RunState
from labctl.plan.estimate import run_seconds
from labctl.store import ActiveAttempt, CampaignHead, Store


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Runs by outcome (or state), what is being done, and the seconds left as a range that the runs so far justify."""

    state: CampaignState
    total: int
    done: int
    counts: Mapping[str, int]
    active: tuple[ActiveAttempt, ...]
    seconds_left: tuple[float, float]
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
        seconds_left=_seconds_left(head.campaign, store.pending_cells(head.id), durations),
        measured=sum(len(values) for values in durations.values()),
    )


def _seconds_left(
    campaign: Campaign, left: Mapping[str, tuple[Cell, int]], durations: Mapping[str, list[float]]
) -> tuple[float, float]:
    """A low and a high figure: the plan's estimate times the ratio of measured to estimated time, less or plus its spread.

    Until three attempts have ended the range is the estimate with a quarter off and on.
    """
    estimates = {cell_id: run_seconds(campaign, cell) for cell_id, (cell, _) in left.items()}
    expected = 0.0
    for cell_id, (_, count) in left.items():
        own = durations.get(cell_id)
        expected += count * (statistics.fmean(own) if own else estimates[cell_id])
    ended = [value for values in durations.values() for value in values]
    if len(ended) < 3:
        return expected * 0.75, expected * 1.25
    spread = min(
        0.5, statistics.stdev(ended) / statistics.fmean(ended) / max(1, sum(n for _, n in left.values())) ** 0.5
    )
    return expected * (1 - spread), expected * (1 + spread)
