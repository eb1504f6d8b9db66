"""What failed, grouped by whose fault it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.result import CampaignRecord, RunRecord

BUG = "bug"
"""The `kind` of outcomes that an unexpected exception of labctl's own led to."""


class Fault(StrEnum):
    """Who or what did not do its part."""

    SYSTEM_UNDER_TEST = "system under test"
    LAB = "lab"
    LABCTL = "labctl itself"
    CANCELLED = "nobody: cancelled"
    NOT_RUN = "not run"


FAULT_MEANS = {
    Fault.SYSTEM_UNDER_TEST: "A result: kept, reported, not retried.",
    Fault.LAB: "No result about the system under test: retried, never counted.",
    Fault.LABCTL: "A mistake in labctl: please report it with the kept raw output.",
    Fault.CANCELLED: "Somebody asked for it to stop.",
    Fault.NOT_RUN: "Runs that were ended without an attempt, for the reason that is named.",
}


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Attempts that ended badly in the same way, or runs without any that were not run for the same reason. `recovered`
    counts those whose run got a result by a later attempt."""

    fault: Fault
    kind: str
    host: str
    phase: str
    what: str
    """As the first of them says; the others may name other VMs or figures."""
    why: str
    todo: str
    attempts: int
    recovered: int
    runs: tuple[int, ...]
    cells: tuple[str, ...]

    @property
    def counted(self) -> str:
        """How many attempts, or runs without one, in words."""
        word = "run" if self.fault is Fault.NOT_RUN else "attempt"
        return f"{self.attempts} {word}{'' if self.attempts == 1 else 's'}"


def failures_of(record: CampaignRecord, titles: Mapping[str, str]) -> tuple[FailureGroup, ...]:
    """All failures of a campaign: those that ended runs, and those of attempts that were retried."""
    groups: dict[tuple[Fault, str, str, str, str], list[tuple[RunRecord, OutcomeDetail, bool]]] = defaultdict(list)
    for run in sorted(record.runs, key=lambda run: run.sequence):
        for detail, final in _details(run):
            fault = _fault(detail)
            if fault is not None:
                groups[fault, detail.kind, detail.host, detail.phase, ""].append((run, detail, final))
        if run.unrun is not None:
            groups[Fault.NOT_RUN, run.unrun.kind, run.unrun.host, "", run.unrun.why].append((run, run.unrun, True))
    order = list(Fault)
    return tuple(
        FailureGroup(
            fault=fault,
            kind=kind,
            host=host,
            phase=phase,
            what=members[0][1].what,
            why=members[0][1].why,
            todo=members[0][1].todo,
            attempts=len(members),
            recovered=sum(not final and _ended_well(run) for run, _, final in members),
            runs=tuple(dict.fromkeys(run.id for run, _, _ in members)),
            cells=tuple(dict.fromkeys(titles[run.cell] for run, _, _ in members)),
        )
        for (fault, kind, host, phase, _), members in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1]), item[0][1:])
        )
    )


def _details(run: RunRecord) -> Iterator[tuple[OutcomeDetail, bool]]:
    for result in run.earlier:
        yield result.detail, False
    if run.result is not None:
        yield run.result.detail, True


def _ended_well(run: RunRecord) -> bool:
    return run.result is not None and run.result.detail.outcome in (Outcome.OK, Outcome.FAILED)


def _fault(detail: OutcomeDetail) -> Fault | None:
    if detail.outcome in (Outcome.OK, Outcome.NOT_APPLICABLE):
        return None
    if detail.outcome is Outcome.CANCELLED:
        return Fault.CANCELLED
    if detail.outcome is Outcome.FAILED:
        return Fault.SYSTEM_UNDER_TEST
    return Fault.LABCTL if detail.kind == BUG else Fault.LAB
