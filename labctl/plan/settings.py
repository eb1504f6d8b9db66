"""The settings of a cell: defaults, campaign, overrides and levels in layers."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.model.campaign import Campaign, Cell, Selection
from labctl.model.scenario import Scenario
from labctl.model.settings import SETTINGS, Level, find_setting
from labctl.model.tools import FILECOPY_SETTINGS


def settings_of(campaign: Campaign, cell: Cell) -> dict[str, Level]:
    """All settings of a run of the cell: defaults, then the campaign's, then overrides in order, then the cell's levels.

    Settings that concern nothing in the cell's scenario, or not its tool, are left out, as are those that nobody decided.
    """
    settings: dict[str, Level] = {
        name: setting.default for name, setting in SETTINGS.items() if setting.default is not None
    }
    settings |= campaign.settings
    for override in campaign.overrides:
        if matches(override.when, cell.levels):
            settings |= override.settings
    settings |= cell.levels
    copies = settings["tool"] == "filecopy"
    return {
        name: level
        for name, level in settings.items()
        if concerns(name, cell.scenario) and (copies or name not in FILECOPY_SETTINGS)
    }


def matches(selection: Selection, levels: Mapping[str, Level]) -> bool:
    """Whether a cell with these levels is in the selected part of the matrix."""
    return all(name in levels and levels[name] in wanted for name, wanted in selection.levels.items())


def concerns(name: str, scenario: Scenario) -> bool:
    """Whether the setting acts on anything in runs of the scenario (`scenario` itself always does)."""
    setting = find_setting(name)
    return setting is None or setting.concern.applies_to(scenario)
