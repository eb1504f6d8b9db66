"""What a whole campaign shows beside its factors: a first repetition that differs, a drift over the night, hosts that differ.

Each is one question to all figures at once, each figure as a share of its cell's mean (`labctl.analysis.design`), so that a
campaign of many cells with few runs each can answer what no cell could.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from labctl.analysis.comparison import ALARM, holm
from labctl.analysis.design import Array, Design, Estimate, Observation


class Question(StrEnum):
    """What is asked."""

    FIRST = "first repetition"
    DRIFT = "drift"
    HOSTS = "hosts"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer to one question: what it adds to all figures, in percent of their means, with its 95 % interval.

    Of `drift` it is what is added from the first figure to the last, which lie `hours` apart. `p` is corrected for how many
    hosts were asked about; the three questions are apart.
    """

    question: Question
    subject: str
    """The hosts, joined by ` + `; empty for the other questions."""
    percent: float
    low: float
    high: float
    p: float
    n: int
    """Figures that tell of it."""
    hours: float = 0.0

    @property
    def told(self) -> bool:
        """Whether it is more than chance."""
        return self.p < ALARM


def findings_of(cells: Mapping[str, Sequence[Observation]], *, blocked: bool) -> tuple[Finding, ...]:
    """The answers to all questions that the figures of a campaign can answer, told or not.

    `blocked` says that the order of runs was random within blocks: else a cell's place in the night is its level, and
    neither a drift nor a first repetition can be told from it.
    """
    design = Design(cells, blocked=blocked)
    return (*_first(design), *_drift(design), *_hosts(design, blocked=blocked))


def _first(design: Design) -> tuple[Finding, ...]:
    blocks = np.array([one.block for one in design.observations])
    if len(set(blocks.tolist())) < 2:
        return ()
    found = design.addition((blocks == blocks.min()).astype(float), blocks=False, hosts=True)
    return _finding(Question.FIRST, "", found, int((blocks == blocks.min()).sum()))


def _drift(design: Design) -> tuple[Finding, ...]:
    times = [one.at for one in design.observations]
    known = [moment for moment in times if moment is not None]
    if len(known) < len(times) or len(set(known)) < 2:
        return ()
    span = max(known) - min(known)
    share: Array = (np.array(known) - min(known)) / span
    found = _finding(Question.DRIFT, "", design.addition(share, blocks=False, hosts=True), len(known))
    return tuple(replace(one, hours=span / 3600) for one in found)


def _hosts(design: Design, *, blocked: bool) -> tuple[Finding, ...]:
    every = [one.hosts for one in design.observations]
    names = list(dict.fromkeys(hosts for hosts in every if hosts))
    if len(names) < 2:
        return ()
    asked = names[:1] if len(names) == 2 else names
    found: list[Finding] = []
    for name in asked:
        here = np.array([float(hosts == name) for hosts in every])
        found += _finding(
            Question.HOSTS, " + ".join(name), design.addition(here, blocks=blocked, hosts=False), int(here.sum())
        )
    corrected = holm([one.p for one in found])
    return tuple(_with_p(one, p) for one, p in zip(found, corrected, strict=True))


def _finding(question: Question, subject: str, estimate: Estimate | None, n: int) -> tuple[Finding, ...]:
    if estimate is None:
        return ()
    value, half = 100 * estimate.value, 100 * estimate.half
    return (
        Finding(
            question=question, subject=subject, percent=value, low=value - half, high=value + half, p=estimate.p, n=n
        ),
    )


def _with_p(finding: Finding, p: float) -> Finding:
    return replace(finding, p=p)
