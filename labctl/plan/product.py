"""One product of a matrix: its combinations by number, and their settings as arrays over its axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from labctl.model.campaign import Campaign, Cell, Selection
from labctl.model.lab import Lab
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.plan.applicability import HOSTS, Readable, effective
from labctl.plan.placement import chooses_hosts, hosts_with
from labctl.plan.settings import concerns

Array = np.ndarray[Any, np.dtype[Any]]


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

    def index(self, cell: Cell) -> int | None:
        """The index of a cell; None when none of the combinations has exactly its levels."""
        if cell.scenario is not self.scenario or set(cell.levels) != {SCENARIO, *self.axes}:
            return None
        index = 0
        for name, levels in self.axes.items():
            if cell.levels[name] not in levels:
                return None
            index = index * len(levels) + levels.index(cell.levels[name])
        return index


class Grid:
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
            return set().union(*(self._depends(fact) for fact in self._choices()))
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
        """The hosts that are left by all settings that choose hosts, one by one, so that equal sets are one value."""
        assert self._lab is not None
        sets = [frozenset(self._lab.hosts)]
        index = self._nothing(int)
        for name in self._choices():
            levels, which = self.reading(name)
            left = [hosts_with(name, level, self._lab) for level in levels if not isinstance(level, frozenset)]
            known: dict[frozenset[str], int] = {}
            table = np.array([[known.setdefault(a & b, len(known)) for b in left] for a in sets], dtype=np.intp)
            index = table[index, which]
            sets = list(known)
        return list(sets), index

    def _choices(self) -> list[str]:
        named = [*self.product.axes, *self._campaign.settings]
        named += [name for override in self._campaign.overrides for name in override.settings]
        return [name for name in dict.fromkeys(named) if chooses_hosts(name)]

    def _along(self, name: str, values: Array) -> Array:
        """Values of one axis, with length 1 on all others."""
        shape = [1] * len(self._names)
        shape[self._names.index(name)] = -1
        return values.reshape(shape)

    def _nothing(self, kind: type) -> Array:
        return np.zeros((1,) * len(self._names), dtype=kind)


def combined(sizes: list[int], digits: list[Array]) -> Array:
    """The mixed-radix numbers with these digits, the last size varying fastest."""
    numbers: Array = np.zeros((1,) * digits[0].ndim, dtype=np.int64)
    for size, digit in zip(sizes, digits, strict=True):
        numbers = numbers * size + digit
    return numbers


def decoded(codes: Array, values: list[list[Readable]]) -> Iterator[tuple[Readable, ...]]:
    """The values that numbers made by `combined` stand for."""
    digits = np.unravel_index(codes, [len(each) for each in values])
    columns = [[each[digit] for digit in column.tolist()] for each, column in zip(values, digits, strict=True)]
    yield from zip(*columns, strict=True)
