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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell, Order, PlannedCell, Selection
from labctl.model.lab import Lab
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.plan.applicability import HOSTS, Readable, Rule, View, effective, rules
from labctl.plan.placement import FACT_PREFIX, hosts_with_fact
from labctl.plan.settings import concerns

Array = np.ndarray[Any, np.dtype[Any]]

MAX_COMBINATIONS = 20_000_000
"""Combinations of levels that exclusions and rules read together; a matrix with more is refused uncounted."""

CHUNK = 2**21
"""So many combinations are judged at once; it bounds the memory (some ten bytes each)."""


KEPT_BYTES = 2**26
"""A matrix keeps its verdicts up to this size, for the next question."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How large a matrix is. `runs` counts those of applicable cells, with all replicates."""

    cells: int
    applicable: int
    not_applicable_by_reason: Mapping[str, int]
    runs: int


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
    )


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


def refuse_oversize(campaign: Campaign, lab: Lab, *, matrix: Matrix | None = None) -> Counts:
    """Raises `SpecError` when the campaign has more runs than its `max_runs`, or none at all; else its counts."""
    counts = count(campaign, lab, matrix=matrix)
    if counts.runs > campaign.max_runs:
        raise SpecError(
            f"The campaign {campaign.name} has {counts.runs:,} runs; the cap is {campaign.max_runs:,}. "
            "Nothing was started",
            why=f"{counts.applicable:,} applicable cells, each repeated {campaign.repeats} times",
            todo=f"name fewer levels, or raise the cap: `limits: {{max_runs: {counts.runs}}}` in the campaign file, "
            f"or --max-runs {counts.runs}",
        )
    if counts.applicable == 0:
        reasons = [f"{why} ({number} cells)" for why, number in counts.not_applicable_by_reason.items()]
        raise SpecError(
            f"The campaign {campaign.name} has no cell that can be run in this lab. Nothing was started",
            why="; ".join(reasons[:5]) or "every cell is excluded",
            todo="change the scenarios or factors, or choose another lab",
        )
    return counts


def _shuffle(order: array[int], source: random.Random) -> None:
    """Fisher and Yates, by Durstenfeld (CACM 7 (1964) 420)."""
    for last in range(len(order) - 1, 0, -1):
        other = int(source.random() * (last + 1))
        order[last], order[other] = order[other], order[last]


@dataclass(frozen=True, kw_only=True)
class Product:
    """All combinations of some levels in one scenario, less those that `exclude` selects."""

    scenario: Scenario
    axes: Mapping[str, tuple[Level, ...]]
    exclude: tuple[Selection, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """How many levels each axis has."""
        return tuple(len(levels) for levels in self.axes.values())

    @property
    def size(self) -> int:
        """How many combinations there are, excluded ones among them."""
        return prod(self.shape)

    def cell(self, index: int) -> Cell:
        """The combination with this index; the last axis varies fastest."""
        levels: dict[str, Level] = {}
        for name in reversed(list(self.axes)):
            index, digit = divmod(index, len(self.axes[name]))
            levels[name] = self.axes[name][digit]
        return Cell(levels={SCENARIO: self.scenario.value} | dict(reversed(levels.items())))


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
            grid = _Grid(verdict.product, self._campaign, self._lab)
            readings = [grid.reading(name) for name in names]
            sizes = [len(values) for values, _ in readings]
            kept, *indices = np.broadcast_arrays(verdict.codes == 0, *(index for _, index in readings))
            chosen = _combined(sizes, [index[kept] for index in indices])
            multiplicity = verdict.product.size // kept.size if kept.size else 0
            codes, numbers = np.unique(chosen, return_counts=True)
            decoded = _decoded(codes, [values for values, _ in readings])
            for levels, number in zip(decoded, numbers.tolist(), strict=True):
                total[verdict.product.scenario, levels] += number * multiplicity
        return total

    def _judge(self, product: Product, earlier: list[Product]) -> Iterator[Verdict]:
        grid = _Grid(product, self._campaign, self._lab)
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

    def _apply(self, rule: Rule, grid: _Grid) -> Array:
        """The codes of the rule's reasons, over the axes that it reads; every combination of values is judged once."""
        readings = [grid.reading(name) for name in rule.reads]
        sizes = [len(values) for values, _ in readings]
        combined = _combined(sizes, [index for _, index in readings])
        found, where = np.unique(combined, return_inverse=True)
        table = np.zeros(len(found), dtype=np.int32)
        for position, levels in enumerate(_decoded(found, [values for values, _ in readings])):
            text = rule.judge(View(grid.product.scenario, dict(zip(rule.reads, levels, strict=True))))
            if text:
                table[position] = self._texts.setdefault(text, len(self._texts) + 1)
        if not table.any():
            return np.zeros((1,) * len(grid.product.axes), dtype=np.int32)
        return table[where.reshape(combined.shape)]


class _Grid:
    """The settings of all combinations of a product, as arrays over its axes.

    A reading of a setting is the list of values that it has anywhere in the product, and an array that says which of
    them each combination has. The array has length 1 on axes that the setting doesn't depend on.
    """

    def __init__(self, product: Product, campaign: Campaign, lab: Lab | None) -> None:
        self.product = product
        self._campaign = campaign
        self._lab = lab
        self._names = list(product.axes)

    def reading(self, name: str) -> tuple[list[Readable], Array]:
        """The values of a setting, or of `HOSTS`, and which combination has which."""
        if name == HOSTS:
            return self._hosts()
        if name in self.product.axes:
            values = [effective(name, level) for level in self.product.axes[name]]
            return list(values), self._along(name, np.arange(len(values)))
        if not concerns(name, self.product.scenario):
            return [effective(name, None)], self._nothing(int)
        return self._fixed(name)

    def extent(self, names: Iterable[str]) -> tuple[int, ...]:
        """The largest shape that readings of these settings may have together."""
        axes = set().union(*(self._depends(name) for name in names))
        return tuple(
            length if name in axes else 1 for name, length in zip(self._names, self.product.shape, strict=True)
        )

    def _depends(self, name: str) -> set[str]:
        """The axes that the reading of a setting may depend on."""
        if name == HOSTS:
            return set().union(*(self._depends(fact) for fact in self._facts()))
        if name in self.product.axes:
            return {name}
        overrides = [override for override in self._campaign.overrides if name in override.settings]
        return {axis for override in overrides for axis in override.when.levels if axis in self.product.axes}

    def selected(self, selection: Selection) -> Array:
        """Which combinations the selection selects."""
        mask: Array = ~self._nothing(bool)
        for name, levels in selection.levels.items():
            if name == SCENARIO:
                mask = mask & (self.product.scenario.value in levels)
            elif name in self.product.axes:
                chosen = np.array([level in levels for level in self.product.axes[name]])
                mask = mask & self._along(name, chosen)
            else:
                return self._nothing(bool)
        return mask

    def shared_with(self, other: Product) -> Array:
        """Which combinations are cells of the other product too. Both have the same scenario and axes of equal names."""
        mask = self.selected(Selection(levels=other.axes))
        for selection in other.exclude:
            mask = mask & ~self.selected(selection)
        return mask

    def _fixed(self, name: str) -> tuple[list[Readable], Array]:
        """A setting that is no axis: the campaign's value, changed where overrides say so."""
        values: list[Readable] = [effective(name, self._campaign.settings.get(name))]
        index = self._nothing(int)
        for override in self._campaign.overrides:
            if name in override.settings:
                index = np.where(self.selected(override.when), len(values), index)
                values.append(effective(name, override.settings[name]))
        return values, index

    def _hosts(self) -> tuple[list[Readable], Array]:
        """The hosts that declare every fact asked for, fact by fact, so that equal sets are one value."""
        assert self._lab is not None
        sets = [frozenset(self._lab.hosts)]
        index = self._nothing(int)
        for name in self._facts():
            levels, which = self.reading(name)
            declaring = [
                frozenset(self._lab.hosts) if level is None else hosts_with_fact(name, level, self._lab)
                for level in levels
            ]
            known: dict[frozenset[str], int] = {}
            table = np.array([[known.setdefault(a & b, len(known)) for b in declaring] for a in sets], dtype=np.intp)
            index = table[index, which]
            sets = list(known)
        return list(sets), index

    def _facts(self) -> list[str]:
        named = [*self.product.axes, *self._campaign.settings]
        named += [name for override in self._campaign.overrides for name in override.settings]
        return [name for name in dict.fromkeys(named) if name.startswith(FACT_PREFIX)]

    def _along(self, name: str, values: Array) -> Array:
        """Values of one axis, with length 1 on all others."""
        shape = [1] * len(self._names)
        shape[self._names.index(name)] = -1
        return values.reshape(shape)

    def _nothing(self, kind: type) -> Array:
        return np.zeros((1,) * len(self._names), dtype=kind)


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
        f"The matrix is too large to be planned: one scenario alone has {size:,} combinations",
        why=f"more than {MAX_COMBINATIONS:,} combinations of levels depend on each other through exclusions and rules",
        todo="vary fewer settings at once, or split the campaign",
    )


def _combined(sizes: list[int], digits: list[Array]) -> Array:
    """The mixed-radix numbers with these digits, the last size varying fastest."""
    combined: Array = np.zeros((1,) * digits[0].ndim, dtype=np.int64)
    for size, digit in zip(sizes, digits, strict=True):
        combined = combined * size + digit
    return combined


def _decoded(codes: Array, values: list[list[Readable]]) -> Iterator[tuple[Readable, ...]]:
    """The values that numbers made by `_combined` stand for."""
    digits = np.unravel_index(codes, [len(each) for each in values])
    columns = [[each[digit] for digit in column.tolist()] for each, column in zip(values, digits, strict=True)]
    yield from zip(*columns, strict=True)
