"""What the transfers of a cell cost their endpoints, and what a small packet waited beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.summary import Summary, summarise
from labctl.model.result import AttemptResult, EndpointCost, TransferResult
from labctl.model.scenario import Side


@dataclass(frozen=True, kw_only=True)
class SideCost:
    """Busy cores of one side during the counted transfers (a core that is busy all the time is 1.0), and what one busy core
    of it moves, in bit/s. Each run is one figure: the mean of its transfers."""

    busy_cores: Summary
    per_core: Summary


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Round-trip times under load, in milliseconds: each run's median and 99th percentile (the mean over its transfers), and
    the share of probes that were lost in all runs together."""

    median: Summary
    p99: Summary
    lost: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What is known of a cell."""

    sides: Mapping[Side, SideCost]
    """Without a side whose counters nobody could read."""
    waits: Waits | None
    """None where no probe was asked for."""


def cost_of(results: Sequence[AttemptResult]) -> Cost | None:
    """The cost of the runs of one cell, from the results that count; None when nothing is known of it."""
    sides = {side: cost for side in Side if (cost := _side(results, side)) is not None}
    waits = _waits(results)
    return Cost(sides=sides, waits=waits) if sides or waits is not None else None


def _side(results: Sequence[AttemptResult], side: Side) -> SideCost | None:
    busy, per_core = [], []
    for result in results:
        costs = [cost for one in _counted(result) for cost in one.costs if cost.side is side]
        busy += _mean(cores for cost in costs if (cores := _busy(cost)) is not None)
        per_core += _mean(cost.bits_per_cpu_second for cost in costs if cost.bits_per_cpu_second is not None)
    return SideCost(busy_cores=summarise(busy), per_core=summarise(per_core)) if busy else None


def _busy(cost: EndpointCost) -> float | None:
    return cost.cpu_seconds / cost.seconds if cost.cpu_seconds is not None and cost.seconds > 0 else None


def _waits(results: Sequence[AttemptResult]) -> Waits | None:
    probes = [[one.latency for one in _counted(result) if one.latency is not None] for result in results]
    sent = sum(probe.sent for some in probes for probe in some)
    if not sent:
        return None
    median, p99 = [], []
    for some in probes:
        median += _mean(probe.median_ms for probe in some if probe.median_ms is not None)
        p99 += _mean(probe.p99_ms for probe in some if probe.p99_ms is not None)
    lost = sum(probe.lost for some in probes for probe in some) / sent
    return Waits(median=summarise(median), p99=summarise(p99), lost=lost)


def _counted(result: AttemptResult) -> list[TransferResult]:
    return [one for one in result.transfers if one.counted]


def _mean(values: Iterable[float]) -> list[float]:
    """The mean as a list of one, or no figure at all."""
    some = list(values)
    return [sum(some) / len(some)] if some else []
