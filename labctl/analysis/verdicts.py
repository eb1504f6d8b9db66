"""Verdicts: what a cell delivers against what the user expects, with the rule that it was judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from labctl.analysis.summary import Summary
from labctl.model.campaign import Expectation
from labctl.model.settings import Level


class Grade(StrEnum):
    """From best to worst."""

    EXCELLENT = "excellent"
    GOOD = "good"
    POOR = "poor"
    AWFUL = "awful"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The grade of a cell's mean. `of` is what counts as all of it, in bit/s, `share` the mean as a share of that.

    `least` and `most` are the grades of the ends of the mean's 95 % interval: where they differ from `grade`, more runs could
    change it. They are equal to it where there is no interval.
    """

    grade: Grade
    least: Grade
    most: Grade
    share: float
    of: float
    rule: str

    @property
    def sure(self) -> bool:
        """Whether the whole interval of the mean has this grade."""
        return self.least == self.most


def verdict_of(
    summary: Summary, levels: Mapping[str, Level], expectations: Sequence[Expectation], *, speed: float | None
) -> Verdict | None:
    """The verdict on a cell by the first expectation that selects it. None without one, without a figure, or where it is
    about the speed of a network whose speed (bit/s) nobody knows."""
    expected = next((one for one in expectations if _selects(one, levels)), None)
    if expected is None or summary.mean is None:
        return None
    of = expected.of if expected.of is not None else speed
    if not of:
        return None
    low = summary.low if summary.low is not None else summary.mean
    high = summary.high if summary.high is not None else summary.mean
    return Verdict(
        grade=grade_of(summary.mean / of, expected),
        least=grade_of(low / of, expected),
        most=grade_of(high / of, expected),
        share=summary.mean / of,
        of=of,
        rule=_rule(expected),
    )


def grade_of(share: float, expected: Expectation) -> Grade:
    """The grade of a share of what is expected."""
    if share >= expected.excellent:
        return Grade.EXCELLENT
    if share >= expected.good:
        return Grade.GOOD
    return Grade.POOR if share >= expected.poor else Grade.AWFUL


def _selects(expected: Expectation, levels: Mapping[str, Level]) -> bool:
    return all(levels.get(name) in allowed for name, allowed in expected.levels.items())


def _rule(expected: Expectation) -> str:
    shares = ((Grade.EXCELLENT, expected.excellent), (Grade.GOOD, expected.good), (Grade.POOR, expected.poor))
    return ", ".join(f"{grade} from {100 * share:g} %" for grade, share in shares) + f", {Grade.AWFUL} below"
