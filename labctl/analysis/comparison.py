"""Comparisons of two cells: how many times faster, how sure, and what else differs between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.special import stdtrit

from labctl.analysis.design import Design, Observation
from labctl.analysis.matrix import Matrix
from labctl.analysis.summary import t_quantile
from labctl.model.settings import Level

ALARM = 0.05
"""How often a comparison may find a difference where there is none; all comparisons of a campaign together."""
POWER = 0.8
"""How surely so many runs as are said to be needed would tell a difference."""
MOST_NEEDED = 1000
"""More runs than this are not reckoned up: nobody makes them."""

METHOD = (
    "ratio of arithmetic means; 95 % interval by the delta method on its logarithm, with Welch-Satterthwaite degrees "
    "of freedom; what blocks and hosts add to all cells alike is estimated from all cells and taken out, where there are "
    "four cells or more; a difference is called real when its interval excludes zero and so does its p-value after Holm's "
    "correction for all comparisons of the campaign"
)


class Difference(StrEnum):
    """What a comparison can tell."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_TOLD = "no difference can be told"
    """The interval of the change spans zero."""
    MAY_BE_CHANCE = "may be chance"
    """The interval excludes zero, but among so many comparisons some do that by chance."""
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
    p: float | None = None
    """How often chance alone would make a difference of this size, taken for itself."""
    p_among_all: float | None = None
    """The same, corrected for all comparisons of the campaign (Holm, 1979); None when this is the only one."""
    effect: float | None = None
    """Hedges' g: the difference of the means in standard deviations, corrected for small samples."""
    needed: int | None = None
    """How many runs on either side would tell a difference of this size, more than there are; `MOST_NEEDED` stands for that
    or more."""

    @property
    def difference(self) -> Difference:
        """What can be told. A difference is called real only when the interval of the change excludes zero, also in view
        of all other comparisons."""
        if self.ratio is None:
            return Difference.NO_FIGURE
        if self.low is None or self.high is None:
            return Difference.NO_INTERVAL
        if self.low <= 1 <= self.high:
            return Difference.NOT_TOLD
        if self.p_among_all is not None and self.p_among_all >= ALARM:
            return Difference.MAY_BE_CHANCE
        return Difference.FASTER if self.low > 1 else Difference.SLOWER

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
    samples = {
        name: [Observation(bits_per_second=value, block=0) for value in sample]
        for name, sample in (("cell", values), ("baseline", baseline))
    }
    return _ratio(Design(samples, blocked=False), samples, "cell", "baseline")


def _ratio(design: Design, figures: Mapping[str, Sequence[Observation]], cell: str, baseline: str) -> Ratio:
    own, theirs = _values(figures, cell), _values(figures, baseline)
    plain = Ratio(n=len(own), baseline_n=len(theirs))
    mean, below = design.mean(cell), design.mean(baseline)
    if not own or not below:
        return plain
    if not mean:
        return replace(plain, ratio=0.0)
    contrast = design.contrast(cell, baseline)
    if contrast is None:
        return replace(plain, ratio=mean / below)
    return replace(
        plain,
        ratio=math.exp(contrast.value),
        low=math.exp(contrast.value - contrast.half),
        high=math.exp(contrast.value + contrast.half),
        p=contrast.p,
        effect=hedges_g(own, theirs),
        needed=_more_runs(
            runs_needed(contrast.value, (_squared_cv(own) + _squared_cv(theirs)) / 2), len(own), len(theirs)
        ),
    )


def _values(figures: Mapping[str, Sequence[Observation]], cell: str) -> list[float]:
    return [one.bits_per_second for one in figures.get(cell, ())]


def hedges_g(values: Sequence[float], baseline: Sequence[float]) -> float | None:
    """The difference of two means in pooled standard deviations, with Hedges' correction J = 1 - 3 / (4 df - 1) for small
    samples (Hedges, "Distribution theory for Glass's estimator of effect size", 1981). None without a spread."""
    freedom = len(values) + len(baseline) - 2
    if len(values) < 2 or len(baseline) < 2:
        return None
    squares = sum((len(sample) - 1) * float(np.var(sample, ddof=1)) for sample in (values, baseline))
    if squares == 0:
        return None
    d = float(np.mean(values) - np.mean(baseline)) / math.sqrt(squares / freedom)
    return d * (1 - 3 / (4 * freedom - 1))


def runs_needed(log_ratio: float, squared_cv: float) -> int | None:
    """How many runs of each of two cells tell a ratio of this size with a power of 80 % at the level of 5 %.

    The least n with n >= 2 cv^2 (t(0.975) + t(0.8))^2 / ln(ratio)^2, t with 2 n - 2 degrees of freedom (Chow, Shao and Wang,
    "Sample Size Calculations in Clinical Research", 3.2.1). `squared_cv` is the mean of the two cells' squared coefficients
    of variation. None when there is no spread or no difference to tell.
    """
    if log_ratio == 0 or squared_cv == 0:
        return None
    for n in range(2, MOST_NEEDED):
        freedom = 2 * n - 2
        spread = t_quantile(freedom) + float(stdtrit(freedom, POWER))
        if n >= 2 * squared_cv * spread**2 / log_ratio**2:
            return n
    return MOST_NEEDED


def _more_runs(needed: int | None, n: int, baseline_n: int) -> int | None:
    """So many runs as are there were not enough when a difference is not told, whatever the formula hopes for."""
    return None if needed is None else min(MOST_NEEDED, max(needed, n + 1, baseline_n + 1))


def corrected(ratios: Sequence[Ratio]) -> tuple[Ratio, ...]:
    """The same ratios with their p-values corrected for how many they are. Those without one are left as they are."""
    told = [at for at, ratio in enumerate(ratios) if ratio.p is not None]
    if len(told) < 2:
        return tuple(ratios)
    found = list(ratios)
    for at, p in zip(told, holm([ratio.p for ratio in ratios if ratio.p is not None]), strict=True):
        found[at] = replace(found[at], p_among_all=p)
    return tuple(found)


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """p-values corrected for how many they are (Holm, "A simple sequentially rejective multiple test procedure",
    Scandinavian Journal of Statistics 6:65, 1979)."""
    found, floor = list(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=lambda at: ps[at])):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[at]))
        found[at] = floor
    return tuple(found)


def compare(
    matrix: Matrix, figures: Mapping[str, Sequence[Observation]], *, blocked: bool
) -> dict[str, tuple[Comparison, ...]]:
    """Every cell's comparisons, one for each factor in which it departs from the baseline level, by cell id.

    `figures` are the counted figures of every cell; `blocked` says that the order of runs was random within blocks. Cells
    without a counterpart at the baseline have none.
    """
    design = Design(figures, blocked=blocked)
    pairs = [
        (cell, factor, counterpart)
        for cell in matrix.cells
        for factor in matrix.factors
        if (counterpart := matrix.counterpart(cell, factor)) is not None
    ]
    ratios = corrected([_ratio(design, figures, cell, counterpart) for cell, _, counterpart in pairs])
    found: dict[str, list[Comparison]] = {cell: [] for cell in matrix.cells}
    for (cell, factor, counterpart), ratio in zip(pairs, ratios, strict=True):
        found[cell].append(
            Comparison(
                factor=factor,
                level=matrix.levels[cell][factor],
                baseline=matrix.levels[counterpart][factor],
                baseline_cell=counterpart,
                ratio=ratio,
                also_differs=_also_differs(matrix, design, cell, counterpart),
            )
        )
    return {cell: tuple(some) for cell, some in found.items()}


def _also_differs(matrix: Matrix, design: Design, cell: str, counterpart: str) -> tuple[str, ...]:
    contrast = design.contrast(cell, counterpart)
    hosts = ("hosts",) if contrast is not None and contrast.confounded else ()
    return (*matrix.also_differs(cell, counterpart), *hosts)


def _squared_cv(sample: Sequence[float]) -> float:
    return float(np.var(sample, ddof=1) / np.mean(sample) ** 2)
