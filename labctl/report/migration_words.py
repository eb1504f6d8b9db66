"""One migration in words, the same in every rendering."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.analysis.migration import MigrationEffect, PhaseThroughput, RecoveryState
from labctl.analysis.ordinals import FirstAgainstLater
from labctl.model.result import MigrationResult
from labctl.report import units


@dataclass(frozen=True, kw_only=True)
class MigrationWords:
    """What a migration did to the traffic, and what the hypervisor says of it, each as a short text."""

    before: str
    during: str
    after: str
    stall: str
    dip: str
    recovery: str
    not_moved: str
    survived: str
    alignment: str
    hypervisor_downtime: str
    hypervisor_total: str
    hypervisor_source: str
    ended: str
    """`completed`, or why it did not."""


def words_of(effect: MigrationEffect) -> MigrationWords:
    """The words of one migration."""
    migration = effect.migration
    return MigrationWords(
        before=_phase(effect.before),
        during=_phase(effect.during),
        after=_phase(effect.after),
        stall=_stall(effect),
        dip=units.NOTHING if effect.dip is None else units.percent(-100 * effect.dip.depth),
        recovery=_recovery(effect),
        not_moved=_not_moved(effect),
        survived={True: "yes", False: "no", None: "can't be told"}[effect.session_survived],
        alignment=units.NOTHING if effect.uncertainty is None else f"±{units.seconds(effect.uncertainty)}",
        hypervisor_downtime=_milliseconds(migration.downtime_ms),
        hypervisor_total=_milliseconds(migration.total_ms) + _queued(migration),
        hypervisor_source=migration.stats_source or "not stated",
        ended="completed" if migration.completed else f"not completed: {migration.error or 'no reason given'}",
    )


def _queued(migration: MigrationResult) -> str:
    """How long the hypervisor let it wait for its turn, where it did: that is no part of what it took."""
    return f" (after {units.seconds(migration.queued_ms / 1000)} in the queue)" if migration.queued_ms else ""


def _phase(phase: PhaseThroughput | None) -> str:
    return units.NOTHING if phase is None else units.rate(phase.mean)


def _stall(effect: MigrationEffect) -> str:
    if effect.dip is None or effect.resolution is None:
        return units.NOTHING
    if effect.stall is None:
        return f"none over {units.seconds(2 * effect.resolution)}"
    if effect.stall.unended:
        return f"{units.seconds(effect.stall.seconds)}, until the end of the record"
    longest = effect.stall.seconds + 2 * effect.resolution
    return f"{units.seconds(effect.stall.seconds)} (at most{units.SPACE}{units.seconds(longest)})"


def _recovery(effect: MigrationEffect) -> str:
    recovery = effect.recovery
    if recovery.state is not RecoveryState.RECOVERED or recovery.after_end is None:
        return recovery.state.value
    if recovery.after_end < 0:
        return f"{units.seconds(-recovery.after_end)} before its end"
    return f"{units.seconds(recovery.after_end)} after its end"


def _not_moved(effect: MigrationEffect) -> str:
    if effect.bytes_not_moved is None:
        return units.NOTHING
    return "nothing lost" if effect.bytes_not_moved <= 0 else units.size(effect.bytes_not_moved)


def _milliseconds(value: int | None) -> str:
    return "not stated" if value is None else units.seconds(value / 1000)


def first_words(found: FirstAgainstLater) -> str:
    """How the first migration of a VM differs from its later ones, in a sentence."""
    bounds = f"95{units.SPACE}% interval {_signed(found.low)} to {_signed(found.high)}, n = {found.n} VMs"
    if not found.told:
        return f"The {found.measure} of a VM's first migration is like that of its later ones ({bounds})."
    longer = "longer" if found.seconds > 0 else "shorter"
    return f"The {found.measure} of a VM's first migration is {units.seconds(abs(found.seconds))} {longer} ({bounds})."


def _signed(seconds: float) -> str:
    return ("" if seconds >= 0 else units.MINUS) + units.seconds(abs(seconds))
