"""Summaries of the figures of one cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Every interval of labctl is one of this confidence."""
BOOTSTRAPS = 2000
LEAST_FOR_MEDIAN = 6
LEAST_FOR_OUTLIERS = 5
FAR = 3.5
"""Modified z-scores beyond this mark outliers."""


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
    median_low: float | None = None
    median_high: float | None = None
    """Bounds of the 95 % interval of the median; None with fewer than six runs, which have none."""


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
    median_low, median_high = median_interval(figures)
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
        median_low=median_low,
        median_high=median_high,
    )


def median_interval(values: Sequence[float] | npt.NDArray[np.float64]) -> tuple[float | None, float | None]:
    """The 95 % interval of a median by bootstrap (percentiles of the medians of 2,000 samples drawn from the figures; Efron
    and Tibshirani, "An Introduction to the Bootstrap", 13.3). The draws are the same every time.

    None and None for fewer than six figures: all of them lie on one side of the true median more often than 5 % of the
    time, so that not even their whole range is such an interval.
    """
    figures = np.asarray(values, dtype=float)
    if len(figures) < LEAST_FOR_MEDIAN:
        return None, None
    drawn = np.median(figures[_draws(len(figures))], axis=1)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


@cache
def _draws(n: int) -> npt.NDArray[np.intp]:
    return np.random.default_rng(n).integers(n, size=(BOOTSTRAPS, n))


def outliers(values: Sequence[float]) -> tuple[int, ...]:
    """Positions of figures that lie far from the others; they are marked, and never dropped.

    The modified z-score 0.6745 (x - median) / MAD beyond 3.5, with the mean absolute deviation times 1.2533 in place of
    MAD / 0.6745 where more than half of the figures are equal (Iglewicz and Hoaglin, "How to Detect and Handle Outliers",
    1993). None among fewer than five figures.
    """
    if len(values) < LEAST_FOR_OUTLIERS:
        return ()
    figures = np.asarray(values, dtype=float)
    away = np.abs(figures - np.median(figures))
    scale = float(np.median(away)) / 0.6745 or float(away.mean()) * 1.253314
    if scale == 0:
        return ()
    return tuple(int(at) for at in np.flatnonzero(away / scale > FAR))


@cache
def t_quantile(freedom: float) -> float:
    """The quantile of Student's t that a two-sided interval of 95 % takes."""
    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
