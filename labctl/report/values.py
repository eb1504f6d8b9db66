"""What a report shows, as frozen values. Every rendering shows these facts and adds none of its own.

Throughput is in bit/s, sizes in bytes, durations in seconds, moments in seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.analysis.adaptive import Unsettled
from labctl.analysis.claims import CheckedClaim
from labctl.analysis.comparison import Comparison
from labctl.analysis.costs import Cost
from labctl.analysis.drift import Drift
from labctl.analysis.figures import RunFigure
from labctl.analysis.findings import Finding
from labctl.analysis.migration import MigrationEffect, TimelinePoint
from labctl.analysis.ordinals import FirstAgainstLater
from labctl.analysis.summary import Summary
from labctl.analysis.verdicts import Verdict
from labctl.model.result import EventRecord
from labctl.model.settings import Level
from labctl.report.facts import FactRow
from labctl.report.failures import FailureGroup

NIC_MODEL = "nic_model"
NO_VM = "host itself"
"""Stands where a cell has no level of the factor that bars are drawn by."""


@dataclass(frozen=True, kw_only=True)
class RowFlag:
    """A doubt about figures of a cell, with the runs it concerns. No runs: it concerns the cell as a whole."""

    kind: str
    what: str
    runs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell of the matrix with its figures. `planned` counts runs, `summary.n` those with a figure."""

    cell: str
    title: str
    levels: Mapping[str, Level]
    summary: Summary
    planned: int
    runs: tuple[RunFigure, ...]
    comparisons: tuple[Comparison, ...]
    flags: tuple[RowFlag, ...]
    verdict: Verdict | None = None
    """Against what the campaign expects of the cell; None where it expects nothing."""
    cost: Cost | None = None
    """What its transfers cost both ends, and round-trip times beside them; None where nothing is known."""

    def comparison(self, factor: str) -> Comparison | None:
        """The comparison against the baseline level of this factor."""
        return next((one for one in self.comparisons if one.factor == factor), None)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: the level that it stands for and the cell with its figures."""

    label: str
    row: Row


@dataclass(frozen=True, kw_only=True)
class BarGroup:
    """Bars that differ only in the factor that bars are drawn by."""

    title: str
    bars: tuple[Bar, ...]

    @property
    def control(self) -> bool:
        """Whether none of its cells has a level of the factor: a control beside the matrix."""
        return all(bar.label == NO_VM for bar in self.bars)


@dataclass(frozen=True, kw_only=True)
class MigrationRow:
    """One migration of one run, with the timeline of the transfer that it happened in."""

    run: int
    cell: str
    title: str
    replicate: int
    nic_model: str
    transfer: int
    counted: bool
    effect: MigrationEffect
    points: tuple[TimelinePoint, ...]
    others: tuple[tuple[float, float], ...] = ()
    """Start and end of the transfer's other migrations."""


@dataclass(frozen=True, kw_only=True)
class NotApplicable:
    """Cells that can't exist in this lab, with the reason."""

    reason: str
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MissingCell:
    """A cell that has fewer finished runs than planned."""

    title: str
    done: int
    planned: int


@dataclass(frozen=True, kw_only=True)
class Completeness:
    """How much of the campaign is there. Counts of runs: `done` have a result, `figures` are those that count, `unrun`
    were ended without having been run."""

    planned: int
    done: int
    figures: int
    outcomes: Mapping[str, int]
    active: int
    unrun: int
    missing: tuple[MissingCell, ...]

    @property
    def complete(self) -> bool:
        """Whether every planned run is done."""
        return self.done >= self.planned


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a report shows."""

    id: int
    name: str
    state: str
    lab: str
    simulated: bool
    """The lab, or its hypervisor, only pretends: its figures are none of real VMs."""
    pretence: str
    """What it is that pretends, in a sentence; empty when everything was real."""
    question: str
    notice: str
    """Why the campaign was stopped, cancelled or paused, in a sentence; empty when it wasn't, or nobody said why."""
    headline: str
    """The answer in one sentence."""
    status: str
    """How complete the answer is, in one sentence."""
    submitted: float
    started: float | None
    ended: float | None
    completeness: Completeness
    factors: tuple[str, ...]
    """Settings that the matrix shows, in order."""
    bar_factor: str
    """The factor that bars are drawn by; the NIC model where that is varied."""
    baselines: Mapping[str, Level]
    rows: tuple[Row, ...]
    bars: tuple[BarGroup, ...]
    migrations: tuple[MigrationRow, ...]
    first_migrations: tuple[FirstAgainstLater, ...]
    """First migrations of VMs against later ones of the same VMs; empty where hardly any VM was migrated twice."""
    claims: tuple[CheckedClaim, ...]
    published: str
    not_applicable: tuple[NotApplicable, ...]
    failures: tuple[FailureGroup, ...]
    events: tuple[EventRecord, ...]
    """What happened meanwhile, oldest first: to hosts, to cells, to the campaign itself."""
    facts: tuple[FactRow, ...]
    findings: tuple[Finding, ...]
    """What all figures together show beside the factors, told or not: a first repetition, a drift, hosts that differ."""
    drift: Drift | None
    """How the anchor's cell changed over time; None without an anchor."""
    within: float | None
    """How well every cell was to be known: half the interval of its mean as a share of the mean. None: not asked for."""
    unsettled: tuple[Unsettled, ...]
    """The cells that are not known as well."""
    notes: tuple[str, ...]
    method: tuple[tuple[str, str], ...]
    order: str
    seed: int
    repeats: int
    labels: Mapping[str, str]
    versions: Mapping[str, str]
    campaign_text: str
    lab_text: str

    def row(self, cell: str) -> Row:
        """The row of a cell."""
        return next(row for row in self.rows if row.cell == cell)
