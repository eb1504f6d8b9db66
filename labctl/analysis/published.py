"""Published figures: their arithmetic recomputed, and ours put beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from labctl.analysis.matrix import Matrix
from labctl.analysis.summary import Summary, summarise
from labctl.model.published import Published, PublishedCell
from labctl.model.settings import Level


@dataclass(frozen=True, kw_only=True)
class PublishedChange:
    """A published figure against another one. `percent` is computed from the figures, whatever the source claims.

    `factors` are the names, in the source, of all that differs between the two: with more than one, nobody can tell whose
    effect it is.
    """

    cell: PublishedCell
    baseline: PublishedCell
    factors: tuple[str, ...]
    percent: float
    claimed: str = ""

    @property
    def confounded(self) -> bool:
        """Whether more than one thing changed at once."""
        return len(self.factors) > 1


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A published figure and our cell with the same levels. `cell` is empty when the campaign has none."""

    theirs: PublishedCell
    cell: str
    ours: Summary


@dataclass(frozen=True, kw_only=True)
class ChangeBeside:
    """A published change, and what the same change is with us, in percent; None when one side is missing."""

    theirs: PublishedChange
    ours: float | None


def published_changes(published: Published) -> tuple[PublishedChange, ...]:
    """Every figure against every earlier one from which it differs in one thing; and those that the source itself invites to
    compare although they differ in two, because each of the two differs in one from a third."""
    found = []
    for baseline, cell in combinations(published.cells, 2):
        factors = tuple(name for name in cell.levels if cell.levels[name] != baseline.levels.get(name))
        if 1 <= len(factors) <= 2:
            found.append(
                PublishedChange(
                    cell=cell,
                    baseline=baseline,
                    factors=factors,
                    percent=100 * (cell.bits_per_second / baseline.bits_per_second - 1),
                    claimed=cell.claimed if _is_claimed(cell, baseline, published) else "",
                )
            )
    return tuple(found)


def _is_claimed(cell: PublishedCell, baseline: PublishedCell, published: Published) -> bool:
    """Whether the claim of a cell is about this baseline: the first one from which it differs in one thing, other than the
    scenario where there is a choice."""
    if not cell.claimed:
        return False
    singles = [
        other
        for other in published.cells[: published.cells.index(cell)]
        if sum(cell.levels[name] != other.levels.get(name) for name in cell.levels) == 1
    ]
    same_place = [other for other in singles if other.levels.get("scenario") == cell.levels.get("scenario")]
    return bool(same_place or singles) and (same_place or singles)[0] is baseline


def beside(published: Published, matrix: Matrix, figures: Mapping[str, Sequence[float]]) -> tuple[Beside, ...]:
    """Our figures (bit/s) beside the published ones: the cell of the campaign that has all their levels."""
    return tuple(_beside(cell, matrix, figures) for cell in published.cells)


def changes_beside(published: Published, pairs: Sequence[Beside]) -> tuple[ChangeBeside, ...]:
    """The published changes with ours. Those that are confounded in the source are no comparison of ours either."""
    ours = {id(pair.theirs): pair.ours.mean for pair in pairs}
    found = []
    for change in published_changes(published):
        mean, below = ours.get(id(change.cell)), ours.get(id(change.baseline))
        found.append(ChangeBeside(theirs=change, ours=100 * (mean / below - 1) if mean and below else None))
    return tuple(found)


def _beside(cell: PublishedCell, matrix: Matrix, figures: Mapping[str, Sequence[float]]) -> Beside:
    fitting = [name for name in matrix.cells if _fits(matrix.levels[name], cell.as_campaign)]
    if len(fitting) != 1:
        return Beside(theirs=cell, cell="", ours=Summary(n=0))
    return Beside(theirs=cell, cell=fitting[0], ours=summarise(figures.get(fitting[0], ())))


def _fits(levels: Mapping[str, Level], wanted: Mapping[str, str]) -> bool:
    return all(_word(levels[name]) == level for name, level in wanted.items() if name in levels) and bool(wanted)


def _word(level: Level) -> str:
    if isinstance(level, bool):
        return "on" if level else "off"
    return str(level)
