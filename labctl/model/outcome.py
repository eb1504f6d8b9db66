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
