"""The design of a campaign as comparisons need it: which figure comes from which cell, block and hosts.

A campaign is a randomised block design (Montgomery, "Design and Analysis of Experiments", chapter 4): block r is replicate
r of every cell, so its runs share an hour of the night, and runs share hosts. What blocks and hosts add is common to all
cells, so it is estimated from all cells, and taken out of the comparison of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from labctl.analysis.summary import t_quantile

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

LEAST_CELLS = 4
"""With fewer cells, to estimate what blocks and hosts add costs more than it gives: each effect takes its degrees of
freedom from few figures, and the interval of a comparison of two cells with three runs each gets half as wide again."""

_TOLERANCE = 1e-8


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The figure of one run, in bit/s, with its block (the number of the replicate) and the hosts that it used."""

    bits_per_second: float
    block: int
    hosts: tuple[str, ...] = ()
    at: float | None = None
    """When its first counted transfer began, in seconds since the Unix epoch; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure that was estimated, with its variance and its degrees of freedom: the logarithm of a ratio of two cells, or
    what something adds to all cells, as a share of their means."""

    value: float
    variance: float
    freedom: float
    confounded: bool = False
    """The two cells used different hosts, and no other cells tell what these add."""

    @property
    def half(self) -> float:
        """Half the width of its 95 % interval (Student's t)."""
        return t_quantile(self.freedom) * math.sqrt(self.variance)

    @property
    def p(self) -> float:
        """The two-sided p-value of Student's t against zero."""
        if self.variance == 0:
            return 1.0 if self.value == 0 else 0.0
        return float(2 * stdtr(self.freedom, -abs(self.value) / math.sqrt(self.variance)))


class Design:
    """All figures of a campaign, each as a share of its cell's mean, less 1: y = cell + block + hosts + noise.

    The noise may differ from cell to cell: a cell's variance is that of its own residuals, over the degrees of freedom that
    they have left (the sum of 1 - leverage). Without blocks and hosts all this is the variance of the sample.
    """

    def __init__(self, cells: Mapping[str, Sequence[Observation]], *, blocked: bool) -> None:
        """`blocked` says that blocks and hosts may be estimated: the order of runs was random within blocks."""
        means = {name: float(np.mean([one.bits_per_second for one in some])) for name, some in cells.items() if some}
        self._means = {name: mean for name, mean in means.items() if mean > 0}
        everything = [(name, one) for name in self._means for one in cells[name]]
        names = np.array([name for name, _ in everything], dtype=object)
        self.observations = tuple(one for _, one in everything)
        """All figures that are shares of something, in the order of the cells."""
        self._rows: dict[str, Rows] = {name: np.flatnonzero(names == name) for name in self._means}
        self._shares = np.array([one.bits_per_second / self._means[name] - 1 for name, one in everything])
        self._blocks = _dummies([one.block for one in self.observations])
        self._hosts = _dummies([one.hosts for one in self.observations])
        repeated = sum(len(rows) > 1 for rows in self._rows.values())
        nothing = np.zeros((len(everything), 0))
        both = np.hstack([self._blocks, self._hosts]) if blocked and repeated >= LEAST_CELLS else nothing
        self._fit = _Fit(self._shares, self._rows, both)

    def mean(self, cell: str) -> float | None:
        """The mean of a cell, in bit/s; None when it has no figure, or nothing but zeros."""
        return self._means.get(cell)

    def contrast(self, cell: str, baseline: str) -> Estimate | None:
        """The logarithm of the ratio of two cells. None where one has a single figure, and so no spread, or a mean that can't
        be told from zero: then a ratio has no bounds (Fieller, "Some problems in interval estimation", 1954).
        """
        if not self._is_told_from_zero(cell) or not self._is_told_from_zero(baseline):
            return None
        fit = self._fit
        between = fit.centre(cell) - fit.centre(baseline)
        weights = -fit.within @ (fit.inverse @ between)
        weights[self._rows[cell]] += 1 / len(self._rows[cell])
        weights[self._rows[baseline]] -= 1 / len(self._rows[baseline])
        ratio = math.log(self._means[cell] / self._means[baseline])
        return fit.estimate(ratio - float(between @ fit.effects), weights, confounded=fit.leaves_open(between))

    def addition(self, covariate: Array, *, blocks: bool, hosts: bool) -> Estimate | None:
        """What one unit of a covariate adds to the figures of all cells, as a share of their means; blocks and hosts are taken
        out as asked for. None when the covariate differs within no cell, or no degree of freedom is left."""
        columns = [covariate[:, None], *([self._blocks] if blocks else []), *([self._hosts] if hosts else [])]
        fit = _Fit(self._shares, self._rows, np.hstack(columns))
        direction = np.zeros(fit.within.shape[1])
        direction[0] = 1.0
        if not fit.variances or fit.leaves_open(direction):
            return None
        return fit.estimate(float(fit.effects[0]), fit.within @ fit.inverse[0])

    def _is_told_from_zero(self, cell: str) -> bool:
        """Whether the 95 % interval of the cell's mean, by its own figures alone, excludes zero."""
        if cell not in self._fit.variances:
            return False
        shares = self._shares[self._rows[cell]]
        return bool(t_quantile(len(shares) - 1) * shares.std(ddof=1) / math.sqrt(len(shares)) < 1)


class _Fit:
    """Least squares with a level for each cell, taken out first (Frisch and Waugh, 1933), and some columns beside."""

    def __init__(self, shares: Array, rows: Mapping[str, Rows], columns: Array) -> None:
        self._rows = rows
        self._columns = columns
        self.within = columns.copy()
        for some in rows.values():
            self.within[some] -= self.within[some].mean(axis=0)
        self._gram = self.within.T @ self.within
        self.inverse = np.linalg.pinv(self._gram, rcond=_TOLERANCE, hermitian=True)
        self.effects = self.inverse @ (self.within.T @ shares)
        residuals = shares - self.within @ self.effects
        leverages = ((self.within @ self.inverse) * self.within).sum(axis=1)
        self.variances: dict[str, tuple[float, float]] = {}
        """Variance and degrees of freedom of every cell that has any left."""
        for name, some in rows.items():
            freedom = len(some) - 1 - float(leverages[some].sum())
            if freedom > _TOLERANCE:
                self.variances[name] = float(residuals[some] @ residuals[some]) / freedom, freedom

    def centre(self, cell: str) -> Array:
        """The mean of the columns in a cell."""
        centre: Array = self._columns[self._rows[cell]].mean(axis=0)
        return centre

    def leaves_open(self, direction: Array) -> bool:
        """Whether the figures within cells tell nothing of this direction of the columns."""
        if not direction.size:
            return False
        return bool(np.abs(direction - self._gram @ (self.inverse @ direction)).max() > _TOLERANCE**0.5)

    def estimate(self, value: float, weights: Array, *, confounded: bool = False) -> Estimate:
        """An estimate that is a weighted sum of all figures. Its degrees of freedom are approximated after Satterthwaite
        (1946) from the shares of the cells in its variance."""
        shares = [
            (float(weights[self._rows[name]] @ weights[self._rows[name]]) * variance, freedom)
            for name, (variance, freedom) in self.variances.items()
        ]
        variance = sum(share for share, _ in shares)
        below = sum(share**2 / freedom for share, freedom in shares)
        freedom = variance**2 / below if below > 0 else float("inf")
        return Estimate(value=value, variance=variance, freedom=freedom, confounded=confounded)


def _dummies(levels: Sequence[object]) -> Array:
    """One column for each level."""
    order = {level: at for at, level in enumerate(dict.fromkeys(levels))}
    columns = np.zeros((len(levels), len(order)))
    columns[np.arange(len(levels)), [order[level] for level in levels]] = 1.0
    return columns
