"""The campaign: a matrix with its schedule, as read from a file and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from labctl.model.lab import SecretRef
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.model.window import Windows


class Order(StrEnum):
    """In which order the runs of a campaign are worked off."""

    BLOCKS = "blocks"
    """One replicate of every cell in seeded random order, then the next (a randomised block design)."""
    SEQUENTIAL = "sequential"
    """The order of the file; drift over the night then looks like an effect, and the report says so."""


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Deadlines in seconds. Nothing waits for ever."""

    boot: float = 60.0
    """From the creation of the VMs until the last channel answers."""
    command: float = 20.0
    """For one short command in an endpoint."""
    transfer_grace: float = 15.0
    """Beyond the asked seconds of a transfer, before it is ended by force."""
    migration: float = 60.0
    """For one migration; a migration that doesn't converge by then is aborted, which is a result."""


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """Repeats until the figure is known well enough. `Campaign.repeats` is the least; more are added run by run.

    A cell is known well enough when half the width of the 95 % interval of its mean is at most `within` (a share, 0.05
    for 5 %) of the mean. `budget` bounds the seconds of work that the further runs of the whole campaign may take.
    """

    maximum: int
    within: float
    budget: float | None = None


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A cell that is run again after every so many runs, so that drift over the night shows. Its further runs tell of
    the lab and count in no summary."""

    levels: Mapping[str, Level]
    every: int


class NotQuiet(StrEnum):
    """What becomes of a transfer whose hosts did not get quiet in time."""

    RUN = "run"
    """It runs, and its figures are marked as noisy."""
    SKIP = "skip"
    """The attempt ends as a lab-error (`not-quiet`) and is tried again later."""


@dataclass(frozen=True, kw_only=True)
class QuietWait:
    """How long, in seconds, to wait before a transfer for the hosts to be within the quiet limits of the lab."""

    wait: float = 60.0
    then: NotQuiet = NotQuiet.RUN


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What cells are to deliver. `of` is what counts as all of it, in bit/s; None: the speed of the lab's test network.

    A mean of at least `excellent` of that (a share) is excellent, of at least `good` good, of at least `poor` poor, and below
    that awful. `levels` select the cells; without any it is about all.
    """

    of: int | None = None
    excellent: float = 0.9
    good: float = 0.7
    poor: float = 0.4
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)


LONGEST_BACK_OFF = 3600.0
"""No run waits longer than so many seconds for its next try."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A part of the matrix: every named setting has one of the listed levels."""

    levels: Mapping[str, tuple[Level, ...]]


@dataclass(frozen=True, kw_only=True)
class Override:
    """Settings that hold only in the selected part of the matrix (`overrides:`). Later ones win."""

    when: Selection
    settings: Mapping[str, Level]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of levels. `scenario` is always among them; settings that are not varied are not."""

    levels: Mapping[str, Level]

    @property
    def scenario(self) -> Scenario:
        """The scenario of the cell."""
        return Scenario(str(self.levels[SCENARIO]))

    @property
    def key(self) -> str:
        """The cell in words, stable over campaigns: `scenario=same-host nic_model=virtio`."""
        first = [SCENARIO] if SCENARIO in self.levels else []
        names = first + sorted(name for name in self.levels if name != SCENARIO)
        return " ".join(f"{name}={_word(self.levels[name])}" for name in names)

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that name the cell, equal for equal cells."""
        return sha256(self.key.encode()).hexdigest()[:12]

    def __iter__(self) -> Iterator[str]:
        return iter(self.levels)


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell of the plan. `reason` says why it is not applicable in the lab; it is empty for cells that have runs."""

    cell: Cell
    reason: str = ""


def _word(level: Level) -> str:
    if isinstance(level, bool):
        return "on" if level else "off"
    return str(level)


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """A checked campaign file.

    The matrix is: every scenario times every level of every factor that concerns it, less `exclude`, plus the products
    of `include`. `baseline` names, per factor, the level that others are compared with. `repeats` counts runs (each with
    VMs of its own, unless `reuse`), `warmups` transfers inside a run that are kept but not counted, `transfers` counted
    transfers inside a run (sub-samples: averaged, never counted as replicates).
    """

    name: str
    scenarios: tuple[Scenario, ...]
    factors: Mapping[str, tuple[Level, ...]]
    settings: Mapping[str, Level]
    include: tuple[Selection, ...] = ()
    exclude: tuple[Selection, ...] = ()
    overrides: tuple[Override, ...] = ()
    repeats: int = 3
    warmups: int = 1
    transfers: int = 1
    reuse: bool = False
    order: Order = Order.BLOCKS
    seed: int = 1
    timeouts: Timeouts = field(default_factory=Timeouts)
    lab_error_retries: int = 2
    """How many more attempts a run gets after a `lab-error`."""
    max_runs: int = 10_000
    """A matrix with more runs than this is refused; the user may raise it."""
    baseline: Mapping[str, Level] = field(default_factory=dict)
    prepare: tuple[tuple[str, ...], ...] = ()
    """Commands (argument lists) run in every VM before verification; `{own.NAME}` inside an argument is replaced."""
    labels: Mapping[str, str] = field(default_factory=dict)
    question: str = ""
    published: str = ""
    """The id of the published experiment that the campaign repeats; its claims are checked in the report."""
    priority: int = 0
    """Campaigns of a higher one get hosts first; those of equal priority share them fairly."""
    windows: Windows | None = None
    """When runs may run; None: always."""
    adaptive: Adaptive | None = None
    anchor: Anchor | None = None
    quiet: QuietWait = field(default_factory=QuietWait)
    back_off: float = 10.0
    """Seconds before a run is tried again after a lab-error; doubled with every further try, an hour at the most."""
    expectations: tuple[Expectation, ...] = ()
    """What cells are to deliver; the first one that selects a cell is its own."""
    notify: tuple[SecretRef, ...] = ()
    """Where the URLs are to which news of the campaign is sent (mail, chat, webhooks)."""

    def back_off_after(self, tries: int) -> float:
        """How many seconds a run waits after so many tries: doubled with every try."""
        return min(self.back_off * 2.0 ** min(max(tries, 1) - 1, 60), LONGEST_BACK_OFF)

    @property
    def longest_back_off(self) -> float:
        """How many seconds a run may have to wait at the most."""
        return self.back_off_after(self.lab_error_retries)
