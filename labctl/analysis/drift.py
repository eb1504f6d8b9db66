"""Drift: how the figures of one cell, run again and again, changed while a campaign was worked on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labctl.analysis.figures import throughput_of
from labctl.analysis.summary import t_quantile
from labctl.model.campaign import Campaign, Cell
from labctl.model.outcome import Purpose
from labctl.model.result import CampaignRecord, RunRecord


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of the anchor's cell: when its transfers began (epoch seconds), what it measured (bit/s), and on which hosts.
    `anchor` is false for the runs of the cell that count as its replicates."""

    run: int
    at: float
    bits_per_second: float
    hosts: tuple[str, ...]
    anchor: bool


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A straight line through points: its slope in percent of their mean per hour, with its 95 % interval. None is unknown."""

    n: int
    hours: float
    """From the first point to the last."""
    percent_per_hour: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def told(self) -> bool:
        """Whether a drift can be told: the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The anchor's cell over time."""

    cell: str
    points: tuple[Point, ...]
    trend: Trend


def drift_of(campaign: Campaign, record: CampaignRecord) -> Drift | None:
    """How the figures of the anchor's cell changed; None for a campaign without an anchor."""
    if campaign.anchor is None:
        return None
    cell = Cell(levels=campaign.anchor.levels).id
    found = [point for run in record.runs if run.cell == cell and (point := _point(run)) is not None]
    points = tuple(sorted(found, key=lambda point: (point.at, point.run)))
    return Drift(cell=cell, points=points, trend=trend_of(points))


def trend_of(points: Sequence[Point]) -> Trend:
    """The trend of points by least squares, with one slope for all and a level of its own for each set of hosts.

    So hosts that differ are no drift, nor do they hide one (the analysis of covariance with one covariate; Montgomery,
    "Design and Analysis of Experiments", chapter 15). The interval of the slope is Student's with n - hosts - 1 degrees of
    freedom; the mean that it is related to is taken as known. There is none with fewer points than that needs, and no slope
    when all points of every set of hosts are of one moment.
    """
    if not points:
        return Trend(n=0, hours=0.0)
    hours = np.array([point.at for point in points]) / 3600.0
    hours -= hours[0]
    figures = np.array([point.bits_per_second for point in points])
    mean = float(figures.mean())
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, point in enumerate(points):
        groups[point.hosts].append(position)
    x, y = hours.copy(), figures.copy()
    for members in groups.values():
        x[members] -= x[members].mean()
        y[members] -= y[members].mean()
    spread = float(x @ x)
    span = float(hours[-1])
    if spread <= 0 or mean == 0:
        return Trend(n=len(points), hours=span)
    slope = float(x @ y) / spread
    freedom = len(points) - len(groups) - 1
    if freedom < 1:
        return Trend(n=len(points), hours=span, percent_per_hour=100 * slope / mean)
    residual = y - slope * x
    half = t_quantile(freedom) * math.sqrt(float(residual @ residual) / freedom / spread)
    return Trend(
        n=len(points),
        hours=span,
        percent_per_hour=100 * slope / mean,
        low=100 * (slope - half) / mean,
        high=100 * (slope + half) / mean,
    )


def _point(run: RunRecord) -> Point | None:
    figure = throughput_of(run.result) if run.result is not None else None
    if run.result is None or figure is None:
        return None
    begun = next((transfer.started for transfer in run.result.transfers if transfer.counted), run.started)
    if begun is None:
        return None
    return Point(run=run.id, at=begun, bits_per_second=figure, hosts=run.hosts, anchor=run.purpose is Purpose.ANCHOR)
