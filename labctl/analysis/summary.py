"""Summaries of the figures of one cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Every interval of labctl is one of this confidence."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of `n` runs, in the unit of the figures (bit/s). None is unknown, never zero.

    `low` and `high` bound the 95 % interval of the mean. One run has no spread and no interval.
    """

    n: int
    mean: float | None = None
    median: float | None = None
    sd: float | None = None
    """Standard deviation of the sample (n - 1)."""
    cv: float | None = None
    """`sd` as a share of the mean."""
    low: float | None = None
    high: float | None = None
    minimum: float | None = None
    maximum: float | None = None


def summarise(values: Sequence[float]) -> Summary:
    """The summary of independent figures.

    The interval is Student's: mean plus or minus t(0.975, n - 1) sd / sqrt(n) (NIST/SEMATECH e-Handbook of Statistical
    Methods, 1.3.5.2). It holds for figures that spread about normally; with few runs it is honestly wide.
    """
    n = len(values)
    if n == 0:
        return Summary(n=0)
    figures = np.asarray(values, dtype=float)
    mean = float(figures.mean())
    median = float(np.median(figures))
    minimum, maximum = float(figures.min()), float(figures.max())
    if n == 1:
        return Summary(n=1, mean=mean, median=median, minimum=minimum, maximum=maximum)
    sd = float(figures.std(ddof=1))
    half = t_quantile(n - 1) * sd / math.sqrt(n)
    return Summary(
        n=n,
        mean=mean,
        median=median,
        sd=sd,
        cv=sd / mean if mean else None,
        low=mean - half,
        high=mean + half,
        minimum=minimum,
        maximum=maximum,
    )


@cache
def t_quantile(freedom: float) -> float:
    """The quantile of Student's t that a two-sided interval of 95 % takes."""
    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
