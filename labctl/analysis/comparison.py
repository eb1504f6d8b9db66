"""Comparisons of two cells: how many times faster, how sure, and what else differs between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from labctl.analysis.matrix import Matrix
from labctl.analysis.summary import t_quantile
from labctl.model.settings import Level

METHOD = (
    "ratio of arithmetic means; 95 % interval by the delta method on its logarithm, with Welch-Satterthwaite degrees "
    "of freedom; runs are compared unpaired"
)


class Difference(StrEnum):
    """What a comparison can tell."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_TOLD = "no difference can be told"
    """The interval of the change spans zero."""
    NO_INTERVAL = "no interval"
    """A side has a single run: there is a ratio, and no telling how sure it is."""
    NO_FIGURE = "no figure"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Mean of the figures over mean of the baseline's. `low` and `high` bound its 95 % interval; None is unknown."""

    n: int
    baseline_n: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> Difference:
        """What can be told. A difference is called real only when the interval of the change excludes zero."""
        if self.ratio is None:
            return Difference.NO_FIGURE
        if self.low is None or self.high is None:
            return Difference.NO_INTERVAL
        if self.low > 1:
            return Difference.FASTER
        if self.high < 1:
            return Difference.SLOWER
        return Difference.NOT_TOLD

    @property
    def percent(self) -> float | None:
        """The change against the baseline in percent."""
        return None if self.ratio is None else 100 * (self.ratio - 1)

    @property
    def percent_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the change in percent."""
        return None if self.low is None or self.high is None else (100 * (self.low - 1), 100 * (self.high - 1))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A cell against the cell that has the baseline level of `factor` and equals it in every other varied setting.

    `also_differs` names settings that overrides make different between the two: the effect may be theirs.
    """

    factor: str
    level: Level
    baseline: Level
    baseline_cell: str
    ratio: Ratio
    also_differs: tuple[str, ...] = ()


def ratio_of_means(values: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """The ratio of two arithmetic means of independent samples, with its 95 % interval.

    The variance of ln(mean / mean) is cv1^2 / n1 + cv2^2 / n2 (delta method; Friedrich, Adhikari and Beyene, "The ratio
    of means method", BMC Medical Research Methodology 8:32, 2008). Its degrees of freedom are approximated after Welch
    (1947) and Satterthwaite (1946) from the two shares. Good while the means are many standard errors above zero, which
    throughput of repeated runs is. No interval with fewer than two figures on either side, no ratio to a mean of zero.
    """
    n, baseline_n = len(values), len(baseline)
    if not n or not baseline_n or not np.mean(baseline) > 0:
        return Ratio(n=n, baseline_n=baseline_n)
    ratio = float(np.mean(values) / np.mean(baseline))
    if n < 2 or baseline_n < 2 or ratio <= 0:
        return Ratio(n=n, baseline_n=baseline_n, ratio=ratio)
    shares = [(_squared_cv(sample) / len(sample), len(sample) - 1) for sample in (values, baseline)]
    variance = sum(share for share, _ in shares)
    if variance == 0:
        return Ratio(n=n, baseline_n=baseline_n, ratio=ratio, low=ratio, high=ratio)
    freedom = variance**2 / sum(share**2 / degrees for share, degrees in shares)
    half = t_quantile(freedom) * math.sqrt(variance)
    return Ratio(n=n, baseline_n=baseline_n, ratio=ratio, low=ratio * math.exp(-half), high=ratio * math.exp(half))


def compare(matrix: Matrix, figures: Mapping[str, Sequence[float]]) -> dict[str, tuple[Comparison, ...]]:
    """Every cell's comparisons, one for each factor in which it departs from the baseline level, by cell id.

    `figures` are the counted figures (bit/s) of every cell. Cells without a counterpart at the baseline have none.
    """
    found: dict[str, tuple[Comparison, ...]] = {}
    for cell in matrix.cells:
        comparisons = []
        for factor in matrix.factors:
            counterpart = matrix.counterpart(cell, factor)
            if counterpart is None:
                continue
            comparisons.append(
                Comparison(
                    factor=factor,
                    level=matrix.levels[cell][factor],
                    baseline=matrix.levels[counterpart][factor],
                    baseline_cell=counterpart,
                    ratio=ratio_of_means(figures.get(cell, ()), figures.get(counterpart, ())),
                    also_differs=matrix.also_differs(cell, counterpart),
                )
            )
        found[cell] = tuple(comparisons)
    return found


def _squared_cv(sample: Sequence[float]) -> float:
    return float(np.var(sample, ddof=1) / np.mean(sample) ** 2)
