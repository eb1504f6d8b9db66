"""The refusal of campaigns that are larger than their user can have meant, or that have nothing to run."""

from __future__ import annotations

from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.plan.matrix import Counts


def check_cap(campaign: Campaign, counts: Counts, *, max_runs: int | None = None) -> None:
    """Raises `SpecError` when the campaign has more runs than `max_runs` (default: its own limit), or none at all."""
    cap = campaign.max_runs if max_runs is None else max_runs
    if counts.runs > cap:
        raise SpecError(
            f"The campaign {campaign.name} has {counts.runs:,} runs; the cap is {cap:,}. Nothing was started",
            why=f"{counts.applicable:,} applicable cells, each repeated {campaign.repeats} times",
            todo=f"name fewer levels, or raise the cap: `limits: {{max_runs: {counts.runs}}}` or --max-runs {counts.runs}",
        )
    if counts.applicable == 0:
        reasons = "; ".join(
            f"{reason} ({number} cells)" for reason, number in list(counts.not_applicable_by_reason.items())[:5]
        )
        raise SpecError(
            f"The campaign {campaign.name} has no cell that can be run in this lab. Nothing was started",
            why=reasons or "every cell is excluded",
            todo="see `labctl plan` for all reasons",
        )
