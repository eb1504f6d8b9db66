"""The account of a rehearsal: order, hours, openings, hosts, what wouldn't fit, and whether anything broke. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.campaign.pacing import Shift
from labctl.campaign.rehearsal import Rehearsal
from labctl.model.campaign import Cell
from labctl.model.outcome import CampaignState, Outcome, Purpose, RunState
from labctl.model.result import RunRecord
from labctl.plan.windows import Opening, opening_at


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One run as it went by: wall time of its first attempt, seconds until its last has ended, hosts of that one."""

    run: int
    cell: str
    replicate: int
    purpose: str
    started: float
    seconds: float
    hosts: tuple[str, ...]
    attempts: int
    outcome: str


@dataclass(frozen=True, kw_only=True)
class OpeningLine:
    """One opening of the windows, from when the rehearsal began on, or all the time without windows: wall times, what was done
    in it."""

    start: float
    end: float
    attempts: int
    used: float
    """Seconds from the start of the first attempt in it to the end of the last."""


@dataclass(frozen=True, kw_only=True)
class HostLine:
    """What one host did: attempts, seconds of them, and their share of the time in which anything was done."""

    host: str
    attempts: int
    seconds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a rehearsal tells. Seconds are those of the rehearsal; times are wall times."""

    campaign: str
    lab: str
    state: str
    why: str
    began: float
    zone: str
    """Of the windows; empty without."""
    seconds: float
    """From its beginning to the end of the last attempt."""
    busy_seconds: float
    """In which at least one attempt was in progress."""
    real_seconds: float
    outcomes: Mapping[str, int]
    """Of the runs; `not run` for those that were not."""
    runs: tuple[RunLine, ...]
    """In the order in which they were started."""
    openings: tuple[OpeningLine, ...]
    hosts: tuple[HostLine, ...]
    not_run: Mapping[str, int]
    """How many runs were not run, by the reason."""
    lost_runs: int
    doubled_runs: int
    leases_left: tuple[str, ...]
    vms_left: tuple[str, ...]
    broken: tuple[str, ...]
    """What must never be, in sentences; empty when all is well."""


def account_of(rehearsal: Rehearsal, *, vms_left: tuple[str, ...]) -> Account:
    """The account of a rehearsal, with the VMs that its hosts still have."""
    record, own = rehearsal.record, rehearsal.record.id
    shifts = sorted((shift for shift in rehearsal.shifts), key=lambda shift: (shift.began, shift.attempt))
    lost = [run.id for run in record.runs if _is_lost(run, rehearsal)]
    doubled = [run.id for run in record.runs if _has_two_results(run)]
    leases = tuple(sorted(f"{line.resource} (attempt {line.attempt_id})" for line in rehearsal.leases))
    windows = rehearsal.campaign.windows
    return Account(
        campaign=record.name,
        lab=record.lab,
        state=rehearsal.state,
        why=record.why,
        began=rehearsal.began,
        zone=windows.zone if windows is not None else "",
        seconds=max((shift.ended for shift in shifts), default=0.0),
        busy_seconds=_union(shifts),
        real_seconds=rehearsal.real_seconds,
        outcomes=dict(Counter(_outcome(run) for run in record.runs)),
        runs=tuple(_run_lines(rehearsal, [shift for shift in shifts if shift.campaign == own])),
        openings=tuple(_opening_lines(rehearsal, shifts)),
        hosts=tuple(_host_lines(rehearsal, shifts)),
        not_run=dict(Counter(_why_not_run(run, rehearsal) for run in record.runs if _outcome(run) == NOT_RUN)),
        lost_runs=len(lost),
        doubled_runs=len(doubled),
        leases_left=leases,
        vms_left=vms_left,
        broken=tuple(_broken(rehearsal, lost, doubled, leases, vms_left)),
    )


NOT_RUN = "not run"


def _outcome(run: RunRecord) -> str:
    return run.result.detail.outcome.value if run.result is not None else NOT_RUN


def _why_not_run(run: RunRecord, rehearsal: Rehearsal) -> str:
    if run.unrun is not None:
        return run.unrun.what
    return rehearsal.record.why or rehearsal.hold or f"The campaign is {rehearsal.state}."


def _is_lost(run: RunRecord, rehearsal: Rehearsal) -> bool:
    """Whether a run has neither a result nor a reason for having none: the policy stopped its campaign, or the engine says
    why it starts nothing more."""
    if run.state == RunState.DONE:
        return run.result is None and run.unrun is None
    waits = rehearsal.state is CampaignState.STOPPED or bool(rehearsal.hold)
    return run.state == RunState.ACTIVE or rehearsal.state is CampaignState.DONE or not waits


def _has_two_results(run: RunRecord) -> bool:
    results = [run.result, *run.earlier]
    return sum(one is not None and one.detail.outcome in (Outcome.OK, Outcome.FAILED) for one in results) > 1


def _broken(
    rehearsal: Rehearsal, lost: list[int], doubled: list[int], leases: tuple[str, ...], vms: tuple[str, ...]
) -> Iterator[str]:
    if rehearsal.stuck:
        yield "The campaign never ended: nothing went on any more."
    if lost:
        yield f"{len(lost)} runs are lost, without a result or a reason: {_few(lost)}."
    if doubled:
        yield f"{len(doubled)} runs have two results: {_few(doubled)}."
    if leases:
        yield f"{len(leases)} leases are left: {', '.join(leases[:5])}."
    if vms:
        yield f"{len(vms)} VMs are left: {', '.join(vms[:5])}."
    if rehearsal.vms and not vms:
        yield f"The store believes in {len(rehearsal.vms)} VMs that are gone."


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (" ..." if len(numbers) > 10 else "")


def _run_lines(rehearsal: Rehearsal, shifts: list[Shift]) -> Iterator[RunLine]:
    by_run: dict[int, list[Shift]] = defaultdict(list)
    for shift in shifts:
        by_run[shift.run].append(shift)
    runs = {run.id: run for run in rehearsal.record.runs}
    cells = {cell.id: Cell(levels=dict(cell.levels)).key for cell in rehearsal.record.cells}
    for run_id, some in by_run.items():
        run = runs[run_id]
        yield RunLine(
            run=run_id,
            cell=cells[run.cell],
            replicate=run.replicate,
            purpose=Purpose(run.purpose).value,
            started=rehearsal.began + some[0].began,
            seconds=some[-1].ended - some[0].began,
            hosts=some[-1].hosts,
            attempts=len(some),
            outcome=_outcome(run),
        )


def _opening_lines(rehearsal: Rehearsal, shifts: list[Shift]) -> Iterator[OpeningLine]:
    """The openings in which anything was done. Without windows that is one, as long as the work."""
    windows = rehearsal.campaign.windows
    within: dict[Opening | None, list[Shift]] = defaultdict(list)
    for shift in shifts:
        within[opening_at(windows, rehearsal.began + shift.began) if windows is not None else None].append(shift)
    for opening, some in within.items():
        first, last = rehearsal.began + some[0].began, rehearsal.began + max(shift.ended for shift in some)
        whole = opening or Opening(start=first, end=last)
        yield OpeningLine(start=max(whole.start, rehearsal.began), end=whole.end, attempts=len(some), used=last - first)


def _host_lines(rehearsal: Rehearsal, shifts: list[Shift]) -> Iterator[HostLine]:
    busy = _union(shifts)
    for host in (*rehearsal.lab.hosts, *rehearsal.lab.machines):
        own = [shift for shift in shifts if host in shift.hosts]
        seconds = sum(shift.ended - shift.began for shift in own)
        yield HostLine(host=host, attempts=len(own), seconds=seconds, share=seconds / busy if busy else 0.0)


def _union(shifts: list[Shift]) -> float:
    """Seconds in which at least one of the shifts, which are sorted, was in progress."""
    total, until = 0.0, float("-inf")
    for shift in shifts:
        total += max(0.0, shift.ended - max(until, shift.began))
        until = max(until, shift.ended)
    return total
