"""The matrix of a campaign: counted, listed and put in order without being materialised.

A matrix is a sum of products: for every scenario the levels of all factors that concern it, and the products that are
included. Cells are left out by `exclude`, merged when two products have the same cell, and judged by the rules of
`labctl.plan.applicability`. Each of these reads a few axes only. A product is therefore judged as an array over the
axes that anything reads, in which the axes that nothing reads have length 1 and multiply the counts: a million cells
are a few small arrays, and in the worst case one of a million numbers.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell, Order, PlannedCell, Selection
from labctl.model.lab import Lab
from labctl.model.outcome import Purpose
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.plan.applicability import Readable, Rule, View, rules
from labctl.plan.product import Array, Grid, Product, combined, decoded
from labctl.plan.settings import concerns

MAX_COMBINATIONS = 20_000_000
"""Combinations of levels that exclusions and rules read together; a matrix with more is refused uncounted."""

CHUNK = 2**21
"""So many combinations are judged at once; it bounds the memory (some ten bytes each)."""

FIRST_ANCHOR_REPLICATE = 1_000_000
"""Replicates of the anchor's further runs count from here; those that measure end far below."""

KEPT_BYTES = 2**26
"""A matrix keeps its verdicts up to this size, for the next question."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How large a matrix is."""

    cells: int
    applicable: int
    not_applicable_by_reason: Mapping[str, int]
    runs: int
    """Runs of applicable cells that are made in any case: `repeats` of each."""
    most_runs: int
    """All runs that there can be: adaptive repeats up to their maximum, and anchors."""


def count(campaign: Campaign, lab: Lab, *, matrix: Matrix | None = None) -> Counts:
    """How many cells and runs the campaign has in the lab, and why others have none.

    With a `matrix` of the same campaign and lab nothing is judged twice. Raises `SpecError` when the matrix is too large
    to be counted.
    """
    by_reason: Counter[str] = Counter()
    applicable = 0
    for verdict in (matrix or Matrix(campaign, lab)).verdicts():
        applicable += verdict.applicable
        by_reason += verdict.by_reason
    cells = applicable + by_reason.total()
    return Counts(
        cells=cells,
        applicable=applicable,
        not_applicable_by_reason=dict(by_reason.most_common()),
        runs=applicable * campaign.repeats,
        most_runs=_most_runs(campaign, applicable),
    )


def _most_runs(campaign: Campaign, applicable: int) -> int:
    measured = applicable * (campaign.adaptive.maximum if campaign.adaptive is not None else campaign.repeats)
    return measured + (measured // campaign.anchor.every if campaign.anchor is not None else 0)


def cells(campaign: Campaign) -> Iterator[Cell]:
    """All cells of the campaign, each once, in the order of the file, whatever the lab can do. Lazy."""
    for verdict in Matrix(campaign, None).verdicts():
        yield from (verdict.product.cell(int(index)) for index in verdict.indices(applicable=True))


def planned_cells(campaign: Campaign, lab: Lab, *, matrix: Matrix | None = None) -> Iterator[PlannedCell]:
    """All cells of the campaign, each once, in the order of `cells`, with the reasons of those not applicable. Lazy."""
    for verdict in (matrix or Matrix(campaign, lab)).verdicts():
        for index, reason in verdict.reasons():
            yield PlannedCell(cell=verdict.product.cell(index), reason=reason)


def block_order(campaign: Campaign, cells: int, replicate: int) -> array[int]:
    """In which order one block (replicate 1, 2, ... of every applicable cell) is worked off.

    The numbers 0 to `cells` - 1 are the applicable cells in the order of `planned_cells`. The order depends on the
    campaign's seed and the replicate only, and is the same in every version of Python: it uses nothing but
    `random.random()`, the one method whose sequence the library guarantees.
    """
    order = array("q", range(cells))
    if campaign.order is Order.BLOCKS:
        _shuffle(order, random.Random(f"{campaign.seed}/{replicate}"))  # noqa: S311 - an order, not a secret
    return order


def work_order(campaign: Campaign, cells: int, anchor: int | None) -> Iterator[tuple[int, int, Purpose]]:
    """All runs of the campaign in the order of work, as position of the cell, replicate and purpose. Lazy.

    Block by block in the order of `block_order`. With an anchor (the position of its cell), one of its runs follows after
    every so many measured ones; its replicates count from `FIRST_ANCHOR_REPLICATE`, so that none is also a measured one's.
    """
    measured = 0
    for replicate in range(1, campaign.repeats + 1):
        for position in block_order(campaign, cells, replicate):
            yield position, replicate, Purpose.MEASURE
            measured += 1
            if anchor is not None and campaign.anchor is not None and measured % campaign.anchor.every == 0:
                number = measured // campaign.anchor.every
                yield anchor, FIRST_ANCHOR_REPLICATE + number - 1, Purpose.ANCHOR


def anchor_position(campaign: Campaign, lab: Lab, *, matrix: Matrix | None = None) -> int | None:
    """The position of the anchor's cell among the applicable ones in the order of `planned_cells`; None without an anchor.

    Raises `SpecError` when the campaign has no such cell, or when it is not applicable in the lab.
    """
    if campaign.anchor is None:
        return None
    anchor = Cell(levels=campaign.anchor.levels)
    before = 0
    for verdict in (matrix or Matrix(campaign, lab)).verdicts():
        index = verdict.product.index(anchor)
        reason = verdict.reason(index) if index is not None else None
        if index is not None and reason is not None:
            if reason:
                raise _no_anchor(campaign, anchor, f"In this lab the cell is not applicable: {reason}.")
            return before + int(np.count_nonzero(verdict.indices(applicable=True) < index))
        before += verdict.applicable
    raise _no_anchor(
        campaign, anchor, "The campaign has no such cell; an anchor names a level of every factor of a cell."
    )


def _no_anchor(campaign: Campaign, anchor: Cell, why: str) -> SpecError:
    return SpecError(
        f"The anchor of the campaign {campaign.name} is not a cell that can be run: {anchor.key}. Nothing was submitted.",
        why=why,
        todo="Name another cell under `anchor`; `labctl plan` of the campaign without its anchor lists them.",
    )


def refuse_oversize(campaign: Campaign, lab: Lab, *, matrix: Matrix | None = None) -> Counts:
    """Raises `SpecError` when the campaign has more runs than its `max_runs`, or none at all; else its counts."""
    counts = count(campaign, lab, matrix=matrix)
    most = counts.most_runs
    if most > campaign.max_runs:
        up_to = f"up to {campaign.adaptive.maximum}" if campaign.adaptive is not None else f"{campaign.repeats}"
        anchors = (
            f", and a run of the anchor after every {campaign.anchor.every}" if campaign.anchor is not None else ""
        )
        raise SpecError(
            f"The campaign {campaign.name} has {most:,} runs; the cap is {campaign.max_runs:,}. Nothing was submitted.",
            why=f"{counts.applicable:,} applicable cells, each repeated {up_to} times{anchors}.",
            todo=f"Name fewer levels, or raise the cap: `limits: {{max_runs: {most}}}` in the campaign file, "
            f"or --max-runs {most}.",
        )
    if counts.applicable == 0:
        reasons = [f"{why} ({number} cells)" for why, number in counts.not_applicable_by_reason.items()]
        raise SpecError(
            f"The campaign {campaign.name} has no cell that can be run in this lab. Nothing was submitted.",
            why=f"{'; '.join(reasons[:5])}." if reasons else "Every cell is excluded.",
            todo="Change the scenarios or factors, or choose another lab.",
        )
    return counts


def _shuffle(order: array[int], source: random.Random) -> None:
    """Fisher and Yates, by Durstenfeld (CACM 7 (1964) 420)."""
    for last in range(len(order) - 1, 0, -1):
        other = int(source.random() * (last + 1))
        order[last], order[other] = order[other], order[last]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What becomes of the combinations of a product.

    `codes` is broadcast to the product's shape: 0 is an applicable cell, -1 no cell at all (excluded, or the cell of an
    earlier product), and others are the position of the reason in `texts`, counted from 1.
    """

    product: Product
    codes: Array
    texts: Sequence[str]

    @property
    def multiplicity(self) -> int:
        """How many combinations each entry of `codes` stands for."""
        return self.product.size // self.codes.size if self.codes.size else 0

    @property
    def applicable(self) -> int:
        """How many cells are applicable."""
        return int(np.count_nonzero(self.codes == 0)) * self.multiplicity

    @property
    def by_reason(self) -> Counter[str]:
        """How many cells are not applicable for each reason."""
        found, numbers = np.unique(self.codes[self.codes > 0], return_counts=True)
        return Counter(
            {
                self.texts[code - 1]: number * self.multiplicity
                for code, number in zip(found.tolist(), numbers.tolist(), strict=True)
            }
        )

    def indices(self, *, applicable: bool) -> Array:
        """Indices of the applicable cells, or of all cells."""
        kept = self.codes == 0 if applicable else self.codes >= 0
        return np.flatnonzero(np.broadcast_to(kept, self.product.shape))

    def reason(self, index: int) -> str | None:
        """Why the cell with this index is not applicable; empty when it is, None when there is no such cell here."""
        where = np.unravel_index(index, self.product.shape)
        code = int(np.broadcast_to(self.codes, self.product.shape)[where])
        return None if code < 0 else self.texts[code - 1] if code else ""

    def reasons(self) -> Iterator[tuple[int, str]]:
        """Index and reason of every cell; the reason of applicable cells is empty."""
        flat = np.broadcast_to(self.codes, self.product.shape).reshape(-1)
        for index in self.indices(applicable=False).tolist():
            code = int(flat[index])
            yield index, self.texts[code - 1] if code else ""


class Matrix:
    """The products of a campaign and, with a lab, what its rules say of them."""

    def __init__(self, campaign: Campaign, lab: Lab | None) -> None:
        self._campaign = campaign
        self._lab = lab
        self._rules = rules(campaign, lab) if lab is not None else ()
        self._texts: dict[str, int] = {}
        self._kept: tuple[Verdict, ...] | None = None

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The main products by scenario, then the included ones, in the order of the file."""
        campaign = self._campaign
        main = [
            Product(scenario=scenario, axes=_axes(campaign.factors, scenario), exclude=campaign.exclude)
            for scenario in campaign.scenarios
        ]
        included = [
            Product(scenario=scenario, axes=_axes(selection.levels, scenario))
            for selection in campaign.include
            for scenario in _scenarios(selection, campaign)
        ]
        return (*main, *included)

    def verdicts(self) -> Iterator[Verdict]:
        """The verdict on every product, the large ones in parts; they are kept when they are small enough together.

        Raises `SpecError` when a product is too large to judge.
        """
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Verdict] = []
        size = 0
        for number, product in enumerate(self.products):
            earlier = [other for other in self.products[:number] if _may_share_cells(product, other)]
            for verdict in self._judge(product, earlier):
                size += verdict.codes.nbytes
                if size <= KEPT_BYTES:
                    kept.append(verdict)
                yield verdict
        if size <= KEPT_BYTES:
            self._kept = tuple(kept)

    def tally(self, *names: str) -> Counter[tuple[Scenario, tuple[Readable, ...]]]:
        """How many applicable cells there are by scenario and the resolved values of the named settings."""
        total: Counter[tuple[Scenario, tuple[Readable, ...]]] = Counter()
        for verdict in self.verdicts():
            grid = Grid(verdict.product, self._campaign, self._lab)
            readings = [grid.reading(name) for name in names]
            sizes = [len(values) for values, _ in readings]
            kept, *indices = np.broadcast_arrays(verdict.codes == 0, *(index for _, index in readings))
            chosen = combined(sizes, [index[kept] for index in indices])
            multiplicity = verdict.product.size // kept.size if kept.size else 0
            codes, numbers = np.unique(chosen, return_counts=True)
            resolved = decoded(codes, [values for values, _ in readings])
            for levels, number in zip(resolved, numbers.tolist(), strict=True):
                total[verdict.product.scenario, levels] += number * multiplicity
        return total

    def _judge(self, product: Product, earlier: list[Product]) -> Iterator[Verdict]:
        grid = Grid(product, self._campaign, self._lab)
        shapes = [grid.extent(selection.levels) for selection in product.exclude]
        shapes += [grid.extent(other.axes) for other in earlier]
        shapes += [grid.extent(rule.reads) for rule in self._rules]
        widest = max(shapes, key=prod, default=())
        if prod(widest) > CHUNK:
            yield from self._divided(product, earlier, widest)
            return
        dropped = [grid.selected(selection) for selection in product.exclude]
        dropped += [grid.shared_with(other) for other in earlier]
        dropped = [mask for mask in dropped if mask.any()]
        judged = [codes for rule in self._rules if (codes := self._apply(rule, grid)).any()]
        shape = np.broadcast_shapes(*(part.shape for part in (*dropped, *judged)), (1,) * len(product.axes))
        if prod(shape) > CHUNK:
            yield from self._divided(product, earlier, shape)
            return
        codes = np.zeros(shape, dtype=np.int32)
        for found in judged:
            np.copyto(codes, found, where=(codes == 0) & (found > 0))
        for mask in dropped:
            np.copyto(codes, np.int32(-1), where=mask)
        yield Verdict(product=product, codes=codes, texts=list(self._texts))

    def _divided(self, product: Product, earlier: list[Product], shape: tuple[int, ...]) -> Iterator[Verdict]:
        """The product in two parts, divided on the first of the axes that something depends on."""
        if prod(shape) > MAX_COMBINATIONS:
            raise _too_large(product.size)
        axis = next(number for number, length in enumerate(shape) if length > 1)
        name = list(product.axes)[axis]
        levels = product.axes[name]
        middle = len(levels) // 2
        for part in (levels[:middle], levels[middle:]):
            axes = {**product.axes, name: part}
            yield from self._judge(Product(scenario=product.scenario, axes=axes, exclude=product.exclude), earlier)

    def _apply(self, rule: Rule, grid: Grid) -> Array:
        """The codes of the rule's reasons, over the axes that it reads; every combination of values is judged once."""
        readings = [grid.reading(name) for name in rule.reads]
        sizes = [len(values) for values, _ in readings]
        numbers = combined(sizes, [index for _, index in readings])
        found, where = np.unique(numbers, return_inverse=True)
        table = np.zeros(len(found), dtype=np.int32)
        for position, levels in enumerate(decoded(found, [values for values, _ in readings])):
            text = rule.judge(View(grid.product.scenario, dict(zip(rule.reads, levels, strict=True))))
            if text:
                table[position] = self._texts.setdefault(text, len(self._texts) + 1)
        if not table.any():
            return np.zeros((1,) * len(grid.product.axes), dtype=np.int32)
        return table[where.reshape(numbers.shape)]


def _axes(levels: Mapping[str, tuple[Level, ...]], scenario: Scenario) -> dict[str, tuple[Level, ...]]:
    """What is varied in runs of the scenario: the settings that concern it."""
    return {name: levels[name] for name in levels if name != SCENARIO and concerns(name, scenario)}


def _scenarios(selection: Selection, campaign: Campaign) -> tuple[Scenario, ...]:
    named = selection.levels.get(SCENARIO)
    return campaign.scenarios if named is None else tuple(Scenario(str(word)) for word in named)


def _may_share_cells(product: Product, other: Product) -> bool:
    return product.scenario is other.scenario and set(product.axes) == set(other.axes)


def _too_large(size: int) -> SpecError:
    return SpecError(
        f"The matrix is too large to be planned: one scenario alone has {size:,} combinations.",
        why=f"More than {MAX_COMBINATIONS:,} combinations of levels depend on each other through exclusions and rules.",
        todo="Vary fewer settings at once, or split the campaign.",
    )
