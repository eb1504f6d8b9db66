"""A campaign in a lab, seen as a whole before anything starts: cells, runs, hours, nights. Refuses what can't be run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from labctl.model.campaign import Campaign, PlannedCell
from labctl.model.lab import Lab
from labctl.plan.estimate import Estimate, estimate
from labctl.plan.matrix import Counts, Matrix, anchor_position, planned_cells, refuse_oversize
from labctl.plan.nights import Nights, nights
from labctl.plan.resources import machines_of
from labctl.plan.windows import refuse_ended_windows, refuse_too_short


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How much work there is, and the nights that it takes."""

    estimate: Estimate
    nights: Nights


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What a campaign would be if it were submitted at the instant `now`."""

    campaign: Campaign
    lab: Lab
    now: float
    counts: Counts
    cells: tuple[PlannedCell, ...]
    """The first of them."""
    least: Forecast
    most: Forecast
    """The same as `least` unless repeats are adaptive."""

    @property
    def machines(self) -> int:
        """Physical machines with hosts: as many runs at once there can be at the most."""
        return machines_of(self.lab)


def overview(campaign: Campaign, lab: Lab, *, now: float, cells: int) -> Overview:
    """The campaign as a whole, with so many of its cells listed.

    Raises `SpecError` when it has too many runs or none, an anchor that can't be run, windows that have ended or never
    open, or runs that are longer than every opening.
    """
    matrix = Matrix(campaign, lab)
    counts = refuse_oversize(campaign, lab, matrix=matrix)
    anchor_position(campaign, lab, matrix=matrix)
    refuse_ended_windows(campaign, now)
    refuse_too_short(campaign, lab, now=now, matrix=matrix)
    least = _forecast(campaign, lab, now, estimate(campaign, lab, matrix=matrix))
    most = least
    if campaign.adaptive is not None:
        most = _forecast(campaign, lab, now, estimate(campaign, lab, matrix=matrix, most=True))
    return Overview(
        campaign=campaign,
        lab=lab,
        now=now,
        counts=counts,
        cells=tuple(islice(planned_cells(campaign, lab, matrix=matrix), cells)),
        least=least,
        most=most,
    )


def _forecast(campaign: Campaign, lab: Lab, now: float, found: Estimate) -> Forecast:
    return Forecast(estimate=found, nights=nights(found.needs, campaign.windows, now, machines=machines_of(lab)))
