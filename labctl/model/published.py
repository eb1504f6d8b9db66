"""A published experiment: what others measured and claimed, in our units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublishedCell:
    """One figure of the source. `levels` are as the source names them, `as_campaign` as a campaign of labctl does."""

    levels: Mapping[str, str]
    as_campaign: Mapping[str, str]
    bits_per_second: float
    printed: str
    """The figure as the source has it, with its unit."""
    n: int | None = None
    """How many runs it is the mean of; None: the source doesn't say."""
    claimed: str = ""
    """The change that the source claims for it."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published experiment. One whose source has no figures has claims only (`labctl.analysis.claims`)."""

    id: str
    title: str
    author: str
    date: str
    hypervisor: str
    cells: tuple[PublishedCell, ...]
    claims: tuple[str, ...]
    notes: tuple[str, ...]
