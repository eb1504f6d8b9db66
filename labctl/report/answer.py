"""The answer of a report in a few sentences: the headline, how complete it is, what to bear in mind."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.comparison import Difference, Ratio
from labctl.model.campaign import Campaign, Order
from labctl.model.outcome import CampaignState, Outcome
from labctl.model.result import CampaignRecord, CellRecord
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.report import units
from labctl.report.rows import setting_name
from labctl.report.values import NIC_MODEL, NO_VM, Completeness, MigrationRow, Row


def notes_of(campaign: Campaign) -> tuple[str, ...]:
    """What a reader has to bear in mind because of how the campaign was made, in sentences."""
    notes = []
    if campaign.order is Order.SEQUENTIAL:
        notes.append(
            "The runs were worked off in the order of the file, not in random blocks: drift over the campaign can look "
            "like an effect of a factor."
        )
    if campaign.reuse:
        notes.append(
            "Runs reused VMs: the intervals cover the spread between repeats in the same VMs, not between boots, and "
            "are likely too narrow for other VMs."
        )
    if campaign.repeats < 2:
        notes.append("One run a cell: there is no spread to tell, so no figure has an interval.")
    return tuple(notes)


def notice_of(record: CampaignRecord) -> str:
    """Why the campaign was stopped, cancelled or paused, in a sentence; empty when it wasn't, or nobody said why."""
    word = _NOTICE.get(record.state)
    return f"{word}: {record.why}" if word and record.why else ""


_NOTICE: dict[str, str] = {
    CampaignState.STOPPED: "Stopped early",
    CampaignState.CANCELLED: "Cancelled",
    CampaignState.PAUSED: "Paused",
}
EXPECTED_EVENTS = ("submitted", "started", "finished")
"""Kinds of events that happen to every campaign: when they did stands elsewhere."""


def status_of(record: CampaignRecord, completeness: Completeness, cells: Sequence[CellRecord]) -> str:
    """How complete the answer is, in one sentence."""
    parts = [f"{completeness.figures} of {completeness.planned} planned runs gave a figure"]
    for outcome, words in (
        (Outcome.FAILED, "failed"),
        (Outcome.LAB_ERROR, "lost to lab errors"),
        (Outcome.CANCELLED, "cancelled"),
    ):
        if completeness.outcomes.get(outcome.value):
            parts.append(f"{completeness.outcomes[outcome.value]} {words}")
    uncounted = completeness.outcomes.get(Outcome.OK.value, 0) - completeness.figures
    if uncounted > 0:
        parts.append(f"{uncounted} ended ok without a figure that counts")
    if completeness.unrun:
        parts.append(f"{completeness.unrun} not run (see what failed)")
    missing = completeness.planned - completeness.done - completeness.unrun
    if missing > 0:
        parts.append(f"{missing} {_MISSING.get(record.state, 'missing')}")
    skipped = sum(not cell.applicable for cell in cells)
    if skipped:
        parts.append(f"{skipped} {'cell is' if skipped == 1 else 'cells are'} not applicable")
    return "; ".join(parts) + "."


_MISSING: dict[str, str] = {
    CampaignState.ACTIVE: "still to come (the campaign is running)",
    CampaignState.PAUSED: "missing (the campaign is paused and can be resumed)",
    CampaignState.CANCELLED: "missing (the campaign was cancelled)",
    CampaignState.STOPPED: "missing (the campaign was stopped early and can be resumed)",
}


def headline_of(rows: Sequence[Row], migrations: Sequence[MigrationRow], factor: str, campaign: Campaign) -> str:
    """The answer in one sentence: what moves the most, by how much, how sure that is, and what migrations cost."""
    scenario = _telling_scenario(rows, factor, campaign)
    group = [row for row in rows if row.summary.mean is not None and row.levels.get(SCENARIO) == scenario]
    if not group:
        return "Nothing can be said yet: no run has given a figure."
    best = max(group, key=lambda row: row.summary.mean or 0.0)
    what = units.level(factor, best.levels[factor]) if factor in best.levels else NO_VM
    sentence = (
        f"{_where(best, factor)}, {what} moves {'the most: ' if len(group) > 1 else ''}{units.rate(best.summary.mean)}"
        f" ({'one run' if best.summary.n == 1 else f'mean of {best.summary.n} runs'})"
    )
    return sentence + _against(best, group, factor) + _while_migrating(migrations) + "."


def _telling_scenario(rows: Sequence[Row], factor: str, campaign: Campaign) -> str | None:
    """The first scenario with two levels of the factor to compare, or else the first with a figure."""
    levels: dict[str, set[Level]] = {scenario.value: set() for scenario in campaign.scenarios}
    for row in rows:
        if row.summary.n:
            levels.setdefault(str(row.levels[SCENARIO]), set()).add(row.levels.get(factor, NO_VM))
    some = [name for name, found in levels.items() if found]
    return next((name for name in some if len(levels[name]) > 1), some[0] if some else None)


def _where(row: Row, factor: str) -> str:
    words = {
        Scenario.SAME_HOST: "Between two VMs on the same host",
        Scenario.CROSS_HOST: "Between two VMs on different hosts",
        Scenario.DURING_MIGRATION: "While one VM migrates",
        Scenario.VM_TO_HOST: "From a VM to a host",
        Scenario.HOST_TO_VM: "From a host to a VM",
        Scenario.HOST_TO_HOST: "From host to host",
    }[Scenario(str(row.levels[SCENARIO]))]
    others = [
        f"{setting_name(name)} {units.level(name, level)}"
        for name, level in row.levels.items()
        if name not in (SCENARIO, factor, NIC_MODEL)
    ]
    return words + (f" ({', '.join(others)})" if others else "")


def _against(best: Row, group: Sequence[Row], factor: str) -> str:
    comparison = best.comparison(factor)
    if comparison is not None and comparison.ratio.ratio is not None:
        return _against_baseline(units.level(factor, comparison.baseline), comparison.ratio, comparison.ratio.ratio)
    against_best = [one for row in group if (one := row.comparison(factor)) and one.baseline_cell == best.cell]
    ratios = [one for one in against_best if one.ratio.ratio is not None]
    if not ratios:
        return ""
    nearest = max(ratios, key=lambda one: one.ratio.ratio or 0.0)
    least = min(ratios, key=lambda one: one.ratio.ratio or 0.0)
    name = units.level(factor, nearest.level)
    if nearest.ratio.difference in (Difference.NOT_TOLD, Difference.MAY_BE_CHANCE):
        text = f", from which {name} can't be told apart"
    else:
        text = f", the next, {name}, {units.change(nearest.ratio)}"
    if least is not nearest:
        text += f", and the last, {units.level(factor, least.level)}, {units.percent(least.ratio.percent)}"
    return text


def _against_baseline(baseline: str, ratio: Ratio, value: float) -> str:
    times = f", {units.significant(value)} times as much as {baseline}"
    if ratio.low is None or ratio.high is None:
        return f"{times} (too few runs for an interval)"
    if ratio.difference in (Difference.NOT_TOLD, Difference.MAY_BE_CHANCE):
        return f", but against {baseline} {units.untold(ratio)}"
    return f"{times} (95{units.SPACE}% interval {units.significant(ratio.low)} to {units.significant(ratio.high)})"


def _while_migrating(migrations: Sequence[MigrationRow]) -> str:
    told = [row.effect for row in migrations if row.effect.dip is not None]
    if not told:
        return ""
    stalls = [effect.stall.seconds if effect.stall else 0.0 for effect in told]
    lost = sum(effect.session_survived is False for effect in told)
    count = f"{len(told)} live {'migration' if len(told) == 1 else 'migrations'}"
    if max(stalls) == 0:
        text = f"; {count} stopped traffic for no whole interval"
    elif min(stalls) == max(stalls):
        text = f"; {count} stopped traffic for {units.seconds(max(stalls))}"
    else:
        text = f"; {count} stopped traffic for {units.seconds_range(min(stalls), max(stalls))}"
    return text + (f" and cut {lost} {'connection' if lost == 1 else 'connections'}" if lost else "")
