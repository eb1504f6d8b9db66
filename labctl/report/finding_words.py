"""What a campaign shows beside its factors, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.findings import Finding, Question
from labctl.report import units


def finding_words(finding: Finding) -> str:
    """One finding that is told, or that is not, with its size and interval."""
    size = f"{units.percent(finding.percent)} ({units.percent_interval((finding.low, finding.high))})"
    told = {
        Question.FIRST: f"The first repetition differs from the later ones by {size}.",
        Question.DRIFT: f"Figures drift by {size} from the first run to the last, {_span(finding.hours)} later.",
        Question.HOSTS: f"Runs on {finding.subject} differ from those on other hosts by {size}.",
    }
    untold = {
        Question.FIRST: f"The first repetition is like the later ones: {size}.",
        Question.DRIFT: f"No drift can be told over {_span(finding.hours)}: {size}.",
        Question.HOSTS: f"Runs on {finding.subject} are like those on other hosts: {size}.",
    }
    return (told if finding.told else untold)[finding.question]


def _span(hours: float) -> str:
    return f"{hours:.1f}{units.SPACE}h" if hours >= 1 else f"{60 * hours:.0f}{units.SPACE}min"


def findings_words(findings: Sequence[Finding]) -> tuple[str, ...]:
    """All findings that are told, and of the others what was asked of the whole campaign."""
    shown = [one for one in findings if one.told or one.question is not Question.HOSTS]
    quiet = [one for one in findings if one.question is Question.HOSTS]
    words = [finding_words(one) for one in shown]
    if quiet and not any(one.told for one in quiet):
        words.append(f"No set of hosts differs from the others (of {max(2, len(quiet))}).")
    return tuple(words)
