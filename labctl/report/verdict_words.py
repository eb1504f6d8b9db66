"""Verdicts in words."""

from __future__ import annotations

from labctl.analysis.verdicts import Verdict
from labctl.report import units


def verdict_words(verdict: Verdict | None) -> str:
    """The grade, and the share that it is of: `good, 74.2 % of 10.0 Gbit/s`; empty without a verdict."""
    if verdict is None:
        return ""
    sure = "" if verdict.sure else f" ({verdict.least} to {verdict.most})"
    return f"{verdict.grade}{sure}, {units.percent(100 * verdict.share, signed=False)} of {units.rate(verdict.of)}"
