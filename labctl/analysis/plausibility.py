"""Plausibility: what speaks against taking a figure at face value. Flags travel with the figure; they drop nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labctl.analysis.comparison import Difference, Ratio
from labctl.analysis.figures import RunFigure, why_not_counted
from labctl.analysis.summary import t_quantile
from labctl.model.nic import NIC_MODELS
from labctl.model.result import AttemptResult, TransferResult
from labctl.model.settings import Level

APART = 0.10
"""The receiver's figure and the intervals of the transfer may differ by this share."""
CONSTANT_COUNT = 5
"""Fewer equal intervals than this are no sign of anything."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One doubt. `kind` is a short stable word, `what` a sentence."""

    kind: str
    what: str


def flags_of(result: AttemptResult, levels: Mapping[str, Level]) -> tuple[Flag, ...]:
    """The doubts about one run. `levels` are the levels of its cell.

    Of the facts of VMs it reads `nic.model` (what the hypervisor says it made) and `ethtool.driver` (what the guest uses).
    """
    flags = []
    for transfer in result.transfers:
        if transfer.counted:
            flags += _transfer_flags(result, transfer, levels)
    flags += _nic_flags(result, levels)
    return tuple(dict.fromkeys(flags))


def first_transfer_flag(figures: Sequence[RunFigure]) -> Flag | None:
    """Whether the first counted transfer of the runs of one cell differs from the later ones in the same runs.

    Needs at least three runs with two counted transfers each: a 95 % interval (Student's t) of the mean logarithm of
    first over later, which is real when it excludes zero.
    """
    ratios = [
        np.log(figure.transfers[0] / np.mean(figure.transfers[1:]))
        for figure in figures
        if figure.bits_per_second is not None and len(figure.transfers) > 1 and min(figure.transfers) > 0
    ]
    if len(ratios) < 3:
        return None
    mean = float(np.mean(ratios))
    half = t_quantile(len(ratios) - 1) * float(np.std(ratios, ddof=1)) / len(ratios) ** 0.5
    ratio = Ratio(
        n=len(ratios),
        baseline_n=len(ratios),
        ratio=float(np.exp(mean)),
        low=float(np.exp(mean - half)),
        high=float(np.exp(mean + half)),
    )
    if ratio.difference not in (Difference.FASTER, Difference.SLOWER):
        return None
    return Flag(
        kind="first-differs",
        what=f"the first counted transfer of a run is {ratio.difference.value} than the later ones by "
        f"{abs(100 * (float(np.exp(mean)) - 1)):.3g} % (n = {len(ratios)} runs)",
    )


def _transfer_flags(result: AttemptResult, transfer: TransferResult, levels: Mapping[str, Level]) -> list[Flag]:
    reading = transfer.reading
    flags = [Flag(kind="noisy", what=f"hosts were not quiet: {transfer.noisy}")] if transfer.noisy else []
    flags += [Flag(kind="disagree", what=what) for what in transfer.disagreements]
    why = why_not_counted(reading)
    if why:
        return [*flags, Flag(kind="not-counted", what=f"a transfer is not counted: {why}")]
    if reading.side == "sender":
        flags.append(Flag(kind="sender-side", what="the figure is the sender's; the receiver's could not be had"))
    intervals = reading.intervals or ()
    migrated = any(one.transfer_index == transfer.index for one in result.migrations)
    rates = [one.bits_per_second for one in intervals]
    zeros = sum(rate == 0 for rate in rates)
    if zeros and not migrated:
        flags.append(
            Flag(kind="stalled", what=f"nothing moved in {zeros} of {len(rates)} intervals, without a migration")
        )
    if len(rates) >= CONSTANT_COUNT and len(set(rates)) == 1 and "rate" not in levels:
        flags.append(Flag(kind="constant", what=f"all {len(rates)} intervals show exactly the same throughput"))
    seconds = sum(one.end - one.start for one in intervals)
    if seconds > 0 and reading.bits_per_second:
        mean = sum((one.end - one.start) * one.bits_per_second for one in intervals) / seconds
        apart = mean / reading.bits_per_second - 1
        if abs(apart) > APART:
            flags.append(
                Flag(kind="sides-apart", what=f"the intervals average {apart:+.0%} against the figure of the transfer")
            )
    return flags


def _nic_flags(result: AttemptResult, levels: Mapping[str, Level]) -> list[Flag]:
    asked = str(levels.get("nic_model", ""))
    model = NIC_MODELS.get(asked)
    if model is None:
        return []
    flags = []
    for facts in result.facts:
        if not facts.subject.startswith("vm:"):
            continue
        made, driver = facts.facts.get("nic.model"), facts.facts.get("ethtool.driver")
        if made and made != asked:
            flags.append(Flag(kind="nic-mismatch", what=f"{facts.subject} was made with {made}, asked for was {asked}"))
        if driver and model.linux_drivers and driver not in model.linux_drivers:
            what = f"{facts.subject} drives its adapter by {driver}, asked for was {asked}"
            flags.append(Flag(kind="nic-mismatch", what=what))
    return flags
