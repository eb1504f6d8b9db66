"""The matrix of a campaign as comparisons need it: every cell with all varied settings, and its counterparts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.model.campaign import Campaign
from labctl.model.result import CellRecord
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level, find_setting

NEUTRAL = frozenset({"interval"})
"""Settings that change how finely a transfer is reported, and not the transfer."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Cells by id, each with its level of every varied setting that concerns its scenario.

    A setting that a cell doesn't name itself has the level that overrides, the campaign's settings or the catalogue
    give it; None stands for what is left to the tool or the system.
    """

    factors: tuple[str, ...]
    """Varied settings in the order of the campaign, the scenario first."""
    cells: tuple[str, ...]
    levels: Mapping[str, Mapping[str, Level]]
    baselines: Mapping[str, Level]
    overridden: Mapping[str, Mapping[str, Level]]
    """Per cell, the settings that only overrides change, but for `NEUTRAL` ones."""
    by_levels: Mapping[frozenset[tuple[str, Level]], str]

    def counterpart(self, cell: str, factor: str) -> str | None:
        """The cell that equals this one but for the baseline level of the factor.

        None when this cell is at the baseline itself, or has no such setting, or no such cell exists. Another scenario
        may lack settings that this one has (a peer, the moment of a migration); those are then not compared.
        """
        own = self.levels[cell]
        if factor not in own or factor not in self.baselines or own[factor] == self.baselines[factor]:
            return None
        wanted = {**own, factor: self.baselines[factor]}
        if factor == SCENARIO:
            scenario = Scenario(str(wanted[SCENARIO]))
            wanted = {name: level for name, level in wanted.items() if _concerns(name, scenario)}
        return self.by_levels.get(frozenset(wanted.items()))

    def also_differs(self, cell: str, other: str) -> tuple[str, ...]:
        """Settings that overrides set differently in the two cells."""
        one, two = self.overridden[cell], self.overridden[other]
        return tuple(name for name in sorted({*one, *two}) if one.get(name) != two.get(name))


def matrix_of(campaign: Campaign, cells: Sequence[CellRecord]) -> Matrix:
    """The matrix of a submitted campaign."""
    named = [SCENARIO, *campaign.factors, *(name for cell in cells for name in cell.levels)]
    factors = tuple(dict.fromkeys(named))
    levels = {cell.id: _levels(campaign, cell, factors) for cell in cells}
    return Matrix(
        factors=factors,
        cells=tuple(cell.id for cell in cells),
        levels=levels,
        baselines={name: level for name in factors if (level := _baseline(campaign, name)) is not None},
        overridden={
            cell.id: {
                name: level
                for override in campaign.overrides
                if _selected(override.when.levels, levels[cell.id])
                for name, level in override.settings.items()
                if name not in factors and name not in NEUTRAL
            }
            for cell in cells
        },
        by_levels={frozenset(levels[cell.id].items()): cell.id for cell in cells},
    )


def _levels(campaign: Campaign, cell: CellRecord, factors: Sequence[str]) -> dict[str, Level]:
    scenario = Scenario(str(cell.levels[SCENARIO]))
    own: dict[str, Level] = {}
    for name in factors:
        level = cell.levels.get(name, _unvaried(campaign, name))
        if level is not None and _concerns(name, scenario):
            own[name] = level
    for override in campaign.overrides:
        if _selected(override.when.levels, own):
            own |= {
                name: level
                for name, level in override.settings.items()
                if name in factors and name not in cell.levels and _concerns(name, scenario)
            }
    return own


def _baseline(campaign: Campaign, name: str) -> Level | None:
    if name in campaign.baseline:
        return campaign.baseline[name]
    if name == SCENARIO:
        return campaign.scenarios[0].value if campaign.scenarios else None
    if campaign.factors.get(name):
        return campaign.factors[name][0]
    return _unvaried(campaign, name)


def _unvaried(campaign: Campaign, name: str) -> Level | None:
    if name in campaign.settings:
        return campaign.settings[name]
    setting = find_setting(name)
    return setting.default if setting is not None else None


def _concerns(name: str, scenario: Scenario) -> bool:
    setting = find_setting(name)
    return setting is None or setting.concern.applies_to(scenario)


def _selected(wanted: Mapping[str, Sequence[Level]], levels: Mapping[str, Level]) -> bool:
    return all(name in levels and levels[name] in allowed for name, allowed in wanted.items())
