"""Outcomes and states: how runs, attempts and campaigns stand and end, and whose fault it was."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a run or an attempt ended."""

    OK = "ok"
    NOT_APPLICABLE = "not-applicable"
    FAILED = "failed"
    """A result about the system under test."""
    LAB_ERROR = "lab-error"
    """Our lab's fault; retried, never counted."""
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """Where a run stands. Only `done` runs have an outcome."""

    PENDING = "pending"
    ACTIVE = "active"
    DONE = "done"


class AttemptState(StrEnum):
    """Where an attempt stands: message sent, claimed by a worker, ended with an accepted result, or given up."""

    SENT = "sent"
    CLAIMED = "claimed"
    ENDED = "ended"
    LOST = "lost"
    """No heartbeat for too long; its token is void."""


class CampaignState(StrEnum):
    """Where a campaign stands."""

    ACTIVE = "active"
    PAUSED = "paused"
    """No new attempts; what runs may finish. `resume` makes it active again. Interrupted campaigns are paused."""
    CANCELLED = "cancelled"
    DONE = "done"
    STOPPED = "stopped"
    """Ended early by the outcome policy, with runs left that were not run; `resume` lets it go on once that is mended."""

    @property
    def ended(self) -> bool:
        """Whether nothing of it will be started by itself any more."""
        return self in (CampaignState.CANCELLED, CampaignState.DONE, CampaignState.STOPPED)


class HostState(StrEnum):
    """Whether a host of a lab is given runs."""

    GOOD = "good"
    QUARANTINED = "quarantined"
    """It had too many lab-errors in a row. A health check lets it back in."""
    OUT = "out"
    """Its health checks failed too, or a person took it out. Only a person lets it back in."""


class Purpose(StrEnum):
    """What a campaign or a run is for."""

    MEASURE = "measure"
    ANCHOR = "anchor"
    """A further run of the anchor cell: it shows drift and counts in no summary."""
    HEALTH = "health"
    """A small campaign of labctl's own that finds out whether a quarantined host works again."""
    IMPORTED = "imported"
    """A campaign whose outputs were made by hand and brought in as they were: nothing of it was run, or can be."""


@dataclass(frozen=True, kw_only=True)
class OutcomeDetail:
    """An outcome with its reason. `kind` is a short stable word for grouping; `what`, `why`, `todo` are sentences."""

    outcome: Outcome
    kind: str = ""
    what: str = ""
    why: str = ""
    todo: str = ""
    host: str = ""
    phase: str = ""
    """In which phase of the attempt it happened: lease, place, verify, settle, transfer, collect, release."""
