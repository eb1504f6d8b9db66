"""One campaign against another: the same cells, measured at another time, with another driver, on another lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.analysis.comparison import Ratio, corrected, ratio_of_means
from labctl.model.campaign import Campaign
from labctl.model.settings import Level, find_setting


@dataclass(frozen=True, kw_only=True)
class CellAgainst:
    """A cell that both campaigns have, with its figures' means in bit/s and the ratio of the second to the first."""

    cell: str
    first: float | None
    second: float | None
    ratio: Ratio


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A setting that both campaigns fix, at different levels. None is left to the tool or the system."""

    name: str
    first: Level | None
    second: Level | None


def against(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]
) -> tuple[tuple[CellAgainst, ...], tuple[str, ...], tuple[str, ...]]:
    """The cells that both have, those that only the first has, and those that only the second has, by cell id.

    Figures are in bit/s. Cells are the same when all their levels are. Runs are compared unpaired: the two campaigns share
    neither a night nor blocks. Corrected for all cells that both have.
    """
    both = [cell for cell in first if cell in second]
    ratios = corrected([ratio_of_means(second[cell], first[cell]) for cell in both])
    found = tuple(
        CellAgainst(cell=cell, first=_mean(first[cell]), second=_mean(second[cell]), ratio=ratio)
        for cell, ratio in zip(both, ratios, strict=True)
    )
    return (
        found,
        tuple(cell for cell in first if cell not in second),
        tuple(cell for cell in second if cell not in first),
    )


def setting_changes(first: Campaign, second: Campaign) -> tuple[SettingChange, ...]:
    """Settings that neither campaign varies and that they fix differently: a difference of figures may be theirs."""
    names = dict.fromkeys([*first.settings, *second.settings])
    varied = {*first.factors, *second.factors}
    pairs = [(name, _fixed(first, name), _fixed(second, name)) for name in names if name not in varied]
    return tuple(SettingChange(name=name, first=one, second=other) for name, one, other in pairs if one != other)


def _fixed(campaign: Campaign, name: str) -> Level | None:
    if name in campaign.settings:
        return campaign.settings[name]
    setting = find_setting(name)
    return setting.default if setting is not None else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
