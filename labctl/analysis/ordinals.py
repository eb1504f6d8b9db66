"""Whether the first migration of a VM differs from its later ones: its memory, caches and paths are new to the destination."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from labctl.analysis.migration import MigrationEffect
from labctl.analysis.summary import t_quantile

LEAST_RUNS = 3


class Measure(StrEnum):
    """What is compared, in its unit."""

    STALL = "longest stall"
    """Seconds in which traffic stood still."""
    TOTAL = "total time of the hypervisor"
    """Seconds, by the hypervisor's own word."""


@dataclass(frozen=True, kw_only=True)
class FirstAgainstLater:
    """How much longer (seconds, negative: shorter) the first migration of a VM takes than the mean of its later ones, with the
    95 % interval of the mean over `n` VMs (Student's t of the differences within VMs)."""

    measure: Measure
    n: int
    seconds: float
    low: float
    high: float

    @property
    def told(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def first_against_later(effects: Mapping[str, Sequence[MigrationEffect]]) -> tuple[FirstAgainstLater, ...]:
    """The comparison by every measure that at least three VMs tell of. `effects` are by VM; only completed migrations count."""
    found = []
    for measure in Measure:
        differences = [one for some in effects.values() if (one := _difference(some, measure)) is not None]
        if len(differences) >= LEAST_RUNS:
            mean = float(np.mean(differences))
            half = t_quantile(len(differences) - 1) * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
            found.append(
                FirstAgainstLater(measure=measure, n=len(differences), seconds=mean, low=mean - half, high=mean + half)
            )
    return tuple(found)


def _difference(effects: Sequence[MigrationEffect], measure: Measure) -> float | None:
    told = [(one.migration.ordinal, value) for one in effects if (value := _value(one, measure)) is not None]
    first = [value for ordinal, value in told if ordinal == 1]
    later = [value for ordinal, value in told if ordinal > 1]
    return first[0] - float(np.mean(later)) if first and later else None


def _value(effect: MigrationEffect, measure: Measure) -> float | None:
    if not effect.migration.completed:
        return None
    if measure is Measure.TOTAL:
        return effect.migration.total_ms / 1000 if effect.migration.total_ms is not None else None
    if effect.dip is None:
        return None
    return effect.stall.seconds if effect.stall is not None else 0.0
