"""How the figures of a report came about, in words."""

from __future__ import annotations

from labctl.analysis.comparison import ALARM, POWER
from labctl.analysis.design import LEAST_CELLS
from labctl.analysis.migration import RECOVERY_SHARE, SMOOTHING_SECONDS, STALL_SHARE
from labctl.model.campaign import Adaptive, Anchor, Campaign, Order


def method_of(campaign: Campaign) -> tuple[tuple[str, str], ...]:
    """Headings and sentences about how this campaign was measured and evaluated."""
    sections = [
        ("Figure of a run", _figure(campaign)),
        ("Order", _order(campaign)),
        (
            "Interval of a mean",
            "95 % interval by Student's t over the runs of a cell. It covers "
            + (
                "the spread between repeats in the same VMs, since VMs were reused."
                if campaign.reuse
                else "the spread between boots as well as between transfers, since every run has VMs of its own."
            ),
        ),
        (
            "Change against a baseline",
            "Mean over the mean of the cell that has the baseline level of one factor and equals it in all others. The "
            "95 % interval is taken by the delta method on the logarithm of the ratio of means, with "
            "Welch-Satterthwaite degrees of freedom. "
            + (
                f"With {LEAST_CELLS} cells or more, what a block or a set of hosts adds to all cells alike is estimated from "
                "all of them and taken out first; so a ratio may differ a little from that of the means shown. "
                if campaign.order is Order.BLOCKS
                else ""
            )
            + "Where the interval spans zero, no difference can be told. A difference is called real when its p-value is "
            f"below {ALARM:g} after Holm's correction for all comparisons of the campaign. There is no interval with a single "
            "run on either side, nor where a mean can't be told from zero. So many runs as are said to be needed would tell "
            f"a difference of the size seen with a power of {100 * POWER:g} %.",
        ),
        (
            "Beside the factors",
            "All figures, as shares of their cells' means, are asked at once whether the first repetition differs from the "
            "later ones, whether they drift from hour to hour, and whether sets of hosts differ (corrected by Holm).",
        ),
    ]
    if campaign.adaptive is not None:
        sections.append(("Adaptive repeats", _adaptive(campaign.repeats, campaign.adaptive)))
    if campaign.anchor is not None:
        sections.append(("Drift", _drift(campaign.anchor)))
    if any(scenario.migrates for scenario in campaign.scenarios):
        sections.append(("Migration", _migration()))
    return tuple(sections)


def _figure(campaign: Campaign) -> str:
    warmups = f"{campaign.warmups} warm-up {'transfer is' if campaign.warmups == 1 else 'transfers are'}"
    text = (
        "Throughput is what the receiver got, in bit/s of payload; where only the sender's figure can be trusted, a "
        f"flag says so. {warmups} run first, kept, and not counted. "
    )
    if campaign.transfers > 1:
        text += (
            f"{campaign.transfers} counted transfers within a run are sub-samples: they are averaged to one figure. "
        )
    return text + "Runs with partial or invalid readings are shown and not counted."


def _order(campaign: Campaign) -> str:
    if campaign.order is Order.BLOCKS:
        return (
            f"Random blocks: one run of every cell in random order (seed {campaign.seed}), then the next; "
            f"{campaign.repeats} {'block' if campaign.repeats == 1 else 'blocks'}."
        )
    return f"The order of the file, {campaign.repeats} runs a cell."


def _adaptive(least: int, adaptive: Adaptive) -> str:
    return (
        f"A cell was run again as long as half the 95 % interval of its mean was more than {100 * adaptive.within:g} % of it, "
        f"from {least} up to {adaptive.maximum} runs"
        + (
            f", with {adaptive.budget:g} s of work at the most for all further runs"
            if adaptive.budget is not None
            else ""
        )
        + ". Intervals of cells that were stopped when they had become narrow are a little too narrow on average."
    )


def _drift(anchor: Anchor) -> str:
    return (
        f"One cell was run again after every {anchor.every} runs. Its figures over time are fitted by least squares, with one "
        "slope and a level of its own for each set of hosts; the 95 % interval of the slope is Student's. These further "
        "runs count in no other figure."
    )


def _migration() -> str:
    return (
        "Intervals come from the endpoint that stays, the moments of the migration from the worker's clock; the "
        "uncertainty of putting both on one axis is stated with each migration. Before: intervals that surely ended "
        "before the migration began. Stall: the longest contiguous stretch of intervals that each moved less than "
        f"{STALL_SHARE:.0%} of the median before; the true gap is at most two intervals longer. Dip: the lowest "
        "interval against that median. Not moved: what the mean of before would have moved from the migration's start "
        f"to the recovery, less what was moved. Recovered: throughput is back at {RECOVERY_SHARE:.0%} of before, and "
        f"means over {SMOOTHING_SECONDS:.0f} s stay there, or above the slowest such stretch before. The hypervisor's "
        "downtime (its virtual CPUs stood still) and total time are its own words and no measure of the gap that "
        "traffic saw."
    )
