"""The history of a cell over many campaigns, and when it changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import ruptures

from labctl.analysis.comparison import ALARM, Ratio, corrected, ratio_of_means

LEAST_SIDE = 3
"""Campaigns on either side of a change: fewer tell no level."""
_PENALTY = 5.0
"""A change costs 5 sigma^2 ln(n). Schwarz's criterion asks for 2 (Killick, Fearnhead and Eckley, "Optimal detection of
changepoints with a linear computational cost", JASA 107:500, 2012); sigma is estimated, and an alarm in a calm year is worse
than a change that is told of some nights later."""
_NORMAL = 0.6745
"""The median absolute deviation of normal figures, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class PastFigure:
    """What a cell measured in one campaign: the mean of its runs in bit/s, and when the campaign began (epoch seconds)."""

    campaign: int
    began: float
    bits_per_second: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of level: the first campaign after it, and the level from there to the next change over that before."""

    campaign: int
    began: float
    ratio: Ratio


def changes_of(figures: Sequence[PastFigure]) -> tuple[Change, ...]:
    """When the level of a cell changed, oldest first. `figures` are of one cell, oldest campaign first.

    Candidates are found by PELT with squared errors (the library ruptures; Truong, Oudre and Vayatis, "Selective review of
    offline change point detection methods", Signal Processing 167, 2020), the noise being taken from the differences of
    neighbours. Each is kept only when the levels on both sides differ by Welch's test, corrected for how many candidates
    there are. Fewer than twice `LEAST_SIDE` campaigns tell of no change.
    """
    values = np.array([one.bits_per_second for one in figures])
    if len(values) < 2 * LEAST_SIDE:
        return ()
    sigma = _noise(values)
    if sigma == 0:
        sigma = float(np.abs(values).max()) * 1e-9 or 1.0
    found = ruptures.Pelt(model="l2", min_size=LEAST_SIDE, jump=1).fit(values / sigma)
    ends = [int(end) for end in found.predict(pen=_PENALTY * math.log(len(values)))]
    starts = [0, *ends[:-1]]
    segments = [values[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
    ratios = corrected([ratio_of_means(after, before) for before, after in pairwise(segments)])
    return tuple(
        Change(campaign=figures[at].campaign, began=figures[at].began, ratio=ratio)
        for at, ratio in zip(starts[1:], ratios, strict=True)
        if _is_real(ratio)
    )


def _noise(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The standard deviation of the figures about their level, whatever the level does: from the median of the absolute
    differences of neighbours, which few changes hardly touch."""
    return float(np.median(np.abs(np.diff(values)))) / _NORMAL / math.sqrt(2)


def _is_real(ratio: Ratio) -> bool:
    p = ratio.p_among_all if ratio.p_among_all is not None else ratio.p
    return p is not None and p < ALARM
