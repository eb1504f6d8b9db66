"""How many nights a campaign needs: its runs packed into the openings of its windows, none cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from labctl.model.window import Windows
from labctl.plan.estimate import Needs
from labctl.plan.windows import YEAR, Opening, openings

HORIZON = 4 * YEAR
"""Seconds that are looked ahead; what isn't done by then is said to be left."""


@dataclass(frozen=True, kw_only=True)
class Nights:
    """When the runs of a campaign would run. An opening counts as a night when at least one run of it fits."""

    openings: tuple[Opening, ...]
    """Those in which something would run, in order. The first starts when the campaign does, if it is open then. Without
    windows there is one, from start to end."""
    end: float | None
    """When the last run would end (an instant); None when runs are left."""
    left: int
    """Runs for which the windows have no room, because they end before, or in the years that are looked ahead."""

    @property
    def count(self) -> int:
        """How many nights are needed, or used up."""
        return len(self.openings)


def nights(needs: Mapping[Needs, int], windows: Windows | None, start: float, *, machines: int) -> Nights:
    """The nights that so many runs of each need take from an instant on, in a lab with so many physical machines.

    Every run lies within one opening. In each opening the machines are filled one by one, with the runs first that only
    few machines can do, then with the longest; a run that needs two machines takes its time on both.
    """
    left = {each: runs * each.machines for each, runs in needs.items() if runs}
    used: list[Opening] = []
    if not left:
        return Nights(openings=(), end=start, left=0)
    if windows is None:
        end = start + _span(left, machines)
        return Nights(openings=(Opening(start=start, end=end),), end=end, left=0)
    for opening in openings(windows, start, start + HORIZON):
        before = dict(left)
        _fill(left, opening.seconds, machines)
        if left == before:
            continue
        used.append(opening)
        if not any(left.values()):
            end = opening.start + min(opening.seconds, _span(before, machines))
            return Nights(openings=tuple(used), end=end, left=0)
    return Nights(openings=tuple(used), end=None, left=sum(ceil(parts / each.machines) for each, parts in left.items()))


def _fill(left: dict[Needs, int], seconds: float, machines: int) -> None:
    """Take from the parts of runs that are left what fits into so many seconds on each of the machines."""
    order = sorted(left, key=lambda each: (each.at_once * each.machines, -each.seconds))
    for machine in range(machines):
        rest = seconds
        for each in order:
            if machine < each.at_once * each.machines:
                parts = min(left[each], int(rest // each.seconds))
                left[each] -= parts
                rest -= parts * each.seconds


def _span(left: Mapping[Needs, int], machines: int) -> float:
    """The least seconds in which the machines can do these parts of runs: no less than one run takes, and no less than
    the work that only some of the machines can do, divided by their number."""
    bounds = [max(each.seconds for each, parts in left.items() if parts)]
    for some in {machines, *(min(machines, each.at_once * each.machines) for each in left)}:
        work = sum(each.seconds * parts for each, parts in left.items() if each.at_once * each.machines <= some)
        bounds.append(work / some)
    return max(bounds)
