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


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """The logarithm of a ratio of two cells' means, with its variance and its degrees of freedom.

    `confounded` says that the two cells used different hosts, and no other cells tell what these add.
    """

    log_ratio: float
    variance: float
    freedom: float
    confounded: bool = False


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
        self._rows: dict[str, Rows] = {name: np.flatnonzero(names == name) for name in self._means}
        self._shares = np.array([one.bits_per_second / self._means[name] - 1 for name, one in everything])
        repeated = sum(len(rows) > 1 for rows in self._rows.values())
        if blocked and repeated >= LEAST_CELLS:
            parts = [_dummies([one.block for _, one in everything]), _dummies([one.hosts for _, one in everything])]
            self._nuisance = np.hstack(parts)
        else:
            self._nuisance = np.zeros((len(everything), 0))
        self._fit()

    def mean(self, cell: str) -> float | None:
        """The mean of a cell, in bit/s; None when it has no figure, or nothing but zeros."""
        return self._means.get(cell)

    @property
    def adjusted(self) -> bool:
        """Whether anything was estimated of blocks or hosts."""
        return bool(self._inverse.any())

    def contrast(self, cell: str, baseline: str) -> Contrast | None:
        """The comparison of two cells. None where one has a single figure, and so no spread, or a mean that can't be told from
        zero: then a ratio has no bounds (Fieller, "Some problems in interval estimation", 1954).

        The variance is that of a weighted sum of all figures, its degrees of freedom approximated after Satterthwaite (1946)
        from the shares of the cells in it.
        """
        if not self._is_told_from_zero(cell) or not self._is_told_from_zero(baseline):
            return None
        between = self._centre(cell) - self._centre(baseline)
        weights = -self._within @ (self._inverse @ between)
        weights[self._rows[cell]] += 1 / len(self._rows[cell])
        weights[self._rows[baseline]] -= 1 / len(self._rows[baseline])
        shares = [
            (float(weights[self._rows[name]] @ weights[self._rows[name]]) * self._variances[name], freedom)
            for name, freedom in self._freedoms.items()
        ]
        variance = sum(share for share, _ in shares)
        below = sum(share**2 / freedom for share, freedom in shares)
        return Contrast(
            log_ratio=math.log(self._means[cell] / self._means[baseline]) - float(between @ self._effects),
            variance=variance,
            freedom=variance**2 / below if below > 0 else float("inf"),
            confounded=self._is_confounded(between),
        )

    def _fit(self) -> None:
        """Least squares, with the cells' own levels taken out first (Frisch and Waugh, 1933)."""
        self._within = self._nuisance.copy()
        for rows in self._rows.values():
            self._within[rows] -= self._within[rows].mean(axis=0)
        self._gram = self._within.T @ self._within
        self._inverse = np.linalg.pinv(self._gram, rcond=_TOLERANCE, hermitian=True)
        self._effects = self._inverse @ (self._within.T @ self._shares)
        residuals = self._shares - self._within @ self._effects
        leverages = ((self._within @ self._inverse) * self._within).sum(axis=1)
        self._freedoms: dict[str, float] = {}
        self._variances: dict[str, float] = {}
        for name, rows in self._rows.items():
            freedom = len(rows) - 1 - float(leverages[rows].sum())
            if freedom > _TOLERANCE:
                self._freedoms[name] = freedom
                self._variances[name] = float(residuals[rows] @ residuals[rows]) / freedom

    def _is_told_from_zero(self, cell: str) -> bool:
        """Whether the 95 % interval of the cell's mean, by its own figures alone, excludes zero."""
        if cell not in self._freedoms:
            return False
        shares = self._shares[self._rows[cell]]
        return bool(t_quantile(len(shares) - 1) * shares.std(ddof=1) / math.sqrt(len(shares)) < 1)

    def _centre(self, cell: str) -> Array:
        centre: Array = self._nuisance[self._rows[cell]].mean(axis=0)
        return centre

    def _is_confounded(self, between: Array) -> bool:
        """Whether the two differ in what no cell tells the effect of: a direction that the figures within cells don't have."""
        if not self._nuisance.shape[1]:
            return False
        told = self._gram @ (self._inverse @ between)
        return bool(np.abs(between - told).max() > _TOLERANCE**0.5)


def _dummies(levels: Sequence[object]) -> Array:
    """One column for each level."""
    order = {level: at for at, level in enumerate(dict.fromkeys(levels))}
    columns = np.zeros((len(levels), len(order)))
    columns[np.arange(len(levels)), [order[level] for level in levels]] = 1.0
    return columns
