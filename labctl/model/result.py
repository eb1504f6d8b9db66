"""Results: what one attempt brings back. Times are seconds since the Unix epoch by the worker's clock, unless said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labctl.model.outcome import OutcomeDetail, Purpose
from labctl.model.reading import Latency, Reading
from labctl.model.scenario import Side

Fact = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """An endpoint's clock minus the worker's, in seconds, with half the round trip of the sample as uncertainty."""

    seconds: float
    uncertainty: float


@dataclass(frozen=True, kw_only=True)
class EndpointCost:
    """What a transfer cost one endpoint, by its own counters read just before and just after; None: not known.

    `cpu_seconds` are busy seconds of all its cores together (user, system and interrupts), `stolen_seconds` those in which
    its host gave them to others. Bytes are those of the adapter with the endpoint's address, headers included.
    """

    side: Side
    seconds: float
    """Between both readings, by its own clock since boot."""
    cores: int | None = None
    cpu_seconds: float | None = None
    stolen_seconds: float | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    bits_per_cpu_second: float | None = None
    """Bits of the transfer, both ways together, over `cpu_seconds`: its throughput per busy core, in bit/s."""


@dataclass(frozen=True, kw_only=True)
class TransferResult:
    """One transfer of an attempt.

    `zero` is the worker's time at which the tool's own clock showed 0, known to within plus or minus `zero_uncertainty`
    seconds: it is what aligns intervals with the events of a migration. None when it could not be told.
    """

    index: int
    counted: bool
    """False for a warm-up."""
    tool: str
    reading: Reading
    measured_on: Side
    """The side whose clock and output the intervals come from: the endpoint that stays."""
    client_command: tuple[str, ...]
    server_command: tuple[str, ...]
    port: int
    started: float
    elapsed: float
    """Seconds by the worker's monotonic clock from starting the client until its end was seen."""
    zero: float | None = None
    zero_uncertainty: float | None = None
    clock_offset: ClockOffset | None = None
    noisy: str = ""
    """What else its hosts were doing when it began, beyond the quiet limits of the lab; empty when they were quiet."""
    costs: tuple[EndpointCost, ...] = ()
    latency: Latency | None = None
    """Round-trip times under its load, where they were asked for."""
    disagreements: tuple[str, ...] = ()
    """Which two of its witnesses disagree about what was moved, in sentences: the tool, its peer, the adapters, the clock."""


@dataclass(frozen=True, kw_only=True)
class MigrationSample:
    """Progress of a migration as the hypervisor told it. Seconds since the start of the migration; bytes; None: not told."""

    at: float
    memory_total: int | None = None
    memory_processed: int | None = None
    memory_remaining: int | None = None
    iteration: int | None = None
    percent: int | None = None
    """Share of the hypervisor's whole task, whatever it counts in (vSphere, Hyper-V)."""


@dataclass(frozen=True, kw_only=True)
class MigrationResult:
    """One live migration. `downtime_ms` and `total_ms` are the hypervisor's own words; None is unknown, never zero."""

    domain: str
    mover: Side
    source: str
    destination: str
    started: float
    ended: float
    completed: bool
    transfer_index: int
    """Which transfer it happened in."""
    ordinal: int = 1
    """1 for the first migration of this VM since it booted, 2 for the next, ..."""
    error: str = ""
    total_ms: int | None = None
    downtime_ms: int | None = None
    no_downtime: str = ""
    """Why a migration that completed has no `downtime_ms`."""
    setup_ms: int | None = None
    bytes_moved: int | None = None
    iterations: int | None = None
    stats_source: str = ""
    queued_ms: int | None = None
    """How long the hypervisor let it wait for its turn, which is no part of `total_ms`."""
    samples: tuple[MigrationSample, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FactSet:
    """What was true of one host, VM or endpoint. `when` is before, after, or a phase name."""

    subject: str
    """`host:a`, `vm:sender`, `vm:receiver`, `machine:box`."""
    when: str
    facts: Mapping[str, Fact]


@dataclass(frozen=True, kw_only=True)
class RawOutput:
    """One captured output, kept so that every figure can be recomputed."""

    name: str
    """`transfer-1/client.stdout`, `vm-receiver/domain.xml`, ..."""
    content: bytes


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """All that an attempt brings back, whatever happened. `phases` are (name, seconds) in order."""

    detail: OutcomeDetail
    transfers: tuple[TransferResult, ...] = ()
    migrations: tuple[MigrationResult, ...] = ()
    facts: tuple[FactSet, ...] = ()
    raw: tuple[RawOutput, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    warnings: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """A cell of a submitted campaign. `reason` says why a not-applicable cell is so; empty for others."""

    id: str
    levels: Mapping[str, str | int | float | bool]
    applicable: bool
    reason: str = ""
    position: int = 0


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as the store knows it. `result` is the accepted one; None while there is none."""

    id: int
    cell: str
    replicate: int
    state: str
    sequence: int
    """Position in the campaign's order of work, from 0."""
    attempts: int = 0
    started: float | None = None
    ended: float | None = None
    result: AttemptResult | None = None
    earlier: tuple[AttemptResult, ...] = ()
    """Results of attempts that were not accepted as the run's own (retried lab-errors)."""
    purpose: Purpose = Purpose.MEASURE
    hosts: tuple[str, ...] = ()
    """The hosts and plain machines that its result comes from, in order of use."""
    unrun: OutcomeDetail | None = None
    """Why a run that is done has no result: the outcome policy or a person ended it before it was run."""


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """Something that happened while a campaign was worked off, to it or to a host of its lab."""

    at: float
    kind: str
    """`quarantine`, `host-back`, `cell-stopped`, ..."""
    what: str


@dataclass(frozen=True, kw_only=True)
class CampaignRecord:
    """A submitted campaign with everything that a report needs."""

    id: int
    name: str
    state: str
    lab: str
    submitted: float
    started: float | None
    ended: float | None
    campaign_text: str
    """The campaign file as submitted."""
    lab_text: str
    document: Mapping[str, object]
    """The checked campaign as plain data (see `labctl.spec.documents`)."""
    cells: tuple[CellRecord, ...]
    runs: tuple[RunRecord, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    """Why it is paused, stopped or cancelled, in a sentence."""
    lab_document: Mapping[str, object] = field(default_factory=dict)
    """The checked lab as plain data."""
    events: tuple[EventRecord, ...] = ()
    """What happened from its submission to its end, oldest first."""
