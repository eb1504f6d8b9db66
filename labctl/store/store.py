"""The store: every change of state is one short transaction here.

Rules that hold in the database itself: a run has at most one accepted attempt, and a result is accepted only with the
token of an attempt that is still claimed; a resource of a lab has at most one lease; all leases of an attempt are taken
in the transaction that creates it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    PoolProxiedConnection,
    Row,
    and_,
    delete,
    func,
    insert,
    select,
    update,
)

from labctl.errors import AttemptCancelled, LabError, SpecError
from labctl.model.campaign import Campaign, Cell, PlannedCell
from labctl.model.lab import Lab
from labctl.model.order import RunOrder
from labctl.model.outcome import AttemptState, CampaignState, Outcome, OutcomeDetail, RunState
from labctl.model.result import AttemptResult, CampaignRecord, CellRecord, RawOutput, RunRecord
from labctl.spec.documents import from_json, to_json
from labctl.store.database import open_engine, reading, sqlite_url, writing
from labctl.store.tables import attempts, campaigns, cells, leases, raw_outputs, runs, store_info, vms

_BATCH = 1000

WORKER_LOST = OutcomeDetail(
    outcome=Outcome.LAB_ERROR,
    kind="worker-lost",
    what="The worker died in the middle of the attempt.",
    why="It gave no sign of life any more: its process, or its machine, is gone.",
    todo="See the worker's log in the state directory; the kernel's log says whether it ran out of memory.",
)
MESSAGE_LOST = OutcomeDetail(
    outcome=Outcome.CANCELLED,
    kind="message-lost",
    what="No worker took the attempt up.",
    why="Its message was lost with the broker, or no worker listens for this lab.",
)
ENGINE_GONE = OutcomeDetail(
    outcome=Outcome.CANCELLED,
    kind="engine-gone",
    what="The attempt ended with the `labctl run` that had started it.",
    why="That command was killed.",
)
"""Why an attempt was given up. One that nobody took up never touched a host, so it costs its run no try."""


@dataclass(frozen=True, kw_only=True)
class CampaignHead:
    """What is needed to work on a campaign: its checked documents and its state."""

    id: int
    name: str
    state: CampaignState
    stop_attempts: bool
    campaign: Campaign
    lab: Lab
    submitted: float


@dataclass(frozen=True, kw_only=True)
class CampaignLine:
    """One campaign in a list, with how many runs stand where."""

    id: int
    name: str
    lab: str
    state: CampaignState
    submitted: float
    runs: Mapping[str, int]
    """Count of runs by outcome for those that are done, else by state."""


@dataclass(frozen=True, kw_only=True)
class PendingRun:
    """A run that waits for its hosts."""

    id: int
    cell: Cell
    replicate: int
    sequence: int
    attempts: int


@dataclass(frozen=True, kw_only=True)
class AttemptHandle:
    """What the message to a worker holds."""

    id: int
    token: str


@dataclass(frozen=True, kw_only=True)
class ClaimedAttempt:
    """An attempt that a worker has claimed, with all that it needs."""

    id: int
    token: str
    number: int
    run_id: int
    campaign_id: int
    order: RunOrder
    lab: Lab


@dataclass(frozen=True, kw_only=True)
class ActiveAttempt:
    """An attempt in progress, as people are shown it."""

    id: int
    run_id: int
    cell: Cell
    replicate: int
    number: int
    state: AttemptState
    phase: str
    hosts: tuple[str, ...]
    created: float
    claimed: float | None
    worker: str


@dataclass(frozen=True, kw_only=True)
class LeaseLine:
    """Who holds a resource of a lab."""

    resource: str
    campaign_id: int
    campaign: str
    attempt_id: int
    taken: float


@dataclass(frozen=True, kw_only=True)
class VmRecord:
    """A VM that labctl made or is about to make. `state` is `live`, `parked` (paused, waiting for reuse) or `gone`."""

    uuid: str
    name: str
    lab: str
    host: str
    campaign_id: int
    run_id: int
    attempt_id: int
    role: str
    mac: str
    address: str
    shape: str
    state: str
    migrations: int = 0


class Store:
    """The store of one state directory or database. Open it in the process that uses it (`open_store`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch: PoolProxiedConnection | None = None
        self.identity = self._identity()

    def close(self) -> None:
        """Let go of all connections."""
        if self._watch is not None:
            self._watch.close()
        self._engine.dispose()

    def version(self) -> int:
        """A number that is another one when anything may have been written since the last call. Cheap on SQLite."""
        if self._engine.dialect.name != "sqlite":
            return time.monotonic_ns()
        if self._watch is None:
            self._watch = self._engine.raw_connection()
        cursor = self._watch.cursor()
        cursor.execute("PRAGMA data_version")
        row = cursor.fetchone()
        cursor.close()
        return int(row[0]) if row else 0

    # Campaigns

    def submit(
        self,
        campaign: Campaign,
        lab: Lab,
        *,
        campaign_text: str,
        lab_text: str,
        versions: Mapping[str, str],
        cells: Iterable[PlannedCell],
        blocks: Iterable[Sequence[int]],
    ) -> int:
        """Store a campaign with its cells and runs and return its id.

        `blocks` gives, per replicate, positions into the applicable cells in the order in which they are to be run.
        """
        with writing(self._engine) as db:
            campaign_id = _inserted(
                db,
                insert(campaigns).values(
                    name=campaign.name,
                    lab=lab.name,
                    state=CampaignState.ACTIVE,
                    stop_attempts=False,
                    submitted=time.time(),
                    campaign_text=campaign_text,
                    lab_text=lab_text,
                    campaign_document=to_json(campaign),
                    lab_document=to_json(lab),
                    versions=json.dumps(dict(versions)),
                ),
            )
            applicable = self._insert_cells(db, campaign_id, cells)
            self._insert_runs(db, campaign_id, applicable, blocks)
        return campaign_id

    def _insert_cells(self, db: Connection, campaign_id: int, planned: Iterable[PlannedCell]) -> list[int]:
        """Insert cells and return the row ids of the applicable ones, in order."""
        base = db.execute(select(func.coalesce(func.max(cells.c.id), 0))).scalar_one()
        applicable: list[int] = []
        batch: list[dict[str, Any]] = []
        for position, item in enumerate(planned):
            row_id = base + 1 + position
            batch.append(
                {
                    "id": row_id,
                    "campaign_id": campaign_id,
                    "cell": item.cell.id,
                    "position": position,
                    "levels": json.dumps(dict(item.cell.levels)),
                    "applicable": not item.reason,
                    "reason": item.reason,
                }
            )
            if not item.reason:
                applicable.append(row_id)
            if len(batch) == _BATCH:
                db.execute(insert(cells), batch)
                batch = []
        if batch:
            db.execute(insert(cells), batch)
        return applicable

    def _insert_runs(
        self, db: Connection, campaign_id: int, applicable: Sequence[int], blocks: Iterable[Sequence[int]]
    ) -> None:
        sequence = 0
        batch: list[dict[str, Any]] = []
        for replicate, block in enumerate(blocks, start=1):
            for position in block:
                batch.append(
                    {
                        "campaign_id": campaign_id,
                        "cell_id": applicable[position],
                        "replicate": replicate,
                        "sequence": sequence,
                        "state": RunState.PENDING,
                    }
                )
                sequence += 1
                if len(batch) == _BATCH:
                    db.execute(insert(runs), batch)
                    batch = []
        if batch:
            db.execute(insert(runs), batch)

    def newest_campaign(self) -> int | None:
        """The id of the campaign that was submitted last."""
        with reading(self._engine) as db:
            return db.execute(select(func.max(campaigns.c.id))).scalar()

    def head(self, campaign_id: int) -> CampaignHead:
        """A campaign without its runs. Raises `SpecError` when there is none of this id."""
        with reading(self._engine) as db:
            row = self._campaign_row(db, campaign_id)
        return CampaignHead(
            id=row.id,
            name=row.name,
            state=CampaignState(row.state),
            stop_attempts=row.stop_attempts,
            campaign=from_json(Campaign, row.campaign_document),
            lab=from_json(Lab, row.lab_document),
            submitted=row.submitted,
        )

    def state(self, campaign_id: int) -> CampaignState:
        """Where a campaign stands."""
        with reading(self._engine) as db:
            return CampaignState(self._campaign_row(db, campaign_id).state)

    def set_state(self, campaign_id: int, state: CampaignState, *, stop_attempts: bool = False) -> None:
        """Change a campaign's state; `stop_attempts` asks its attempts in progress to end at their next step."""
        values: dict[str, Any] = {"state": state, "stop_attempts": stop_attempts}
        if state in (CampaignState.DONE, CampaignState.CANCELLED):
            values["ended"] = time.time()
        elif state is CampaignState.ACTIVE:
            values["ended"] = None
        with writing(self._engine) as db:
            self._campaign_row(db, campaign_id)
            db.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(**values))

    def campaigns(self) -> tuple[CampaignLine, ...]:
        """All campaigns, newest first."""
        with reading(self._engine) as db:
            rows = db.execute(select(campaigns).order_by(campaigns.c.id.desc())).all()
            counts: dict[int, dict[str, int]] = {}
            grouped = select(runs.c.campaign_id, runs.c.state, runs.c.outcome, func.count()).group_by(
                runs.c.campaign_id, runs.c.state, runs.c.outcome
            )
            for campaign_id, state, outcome, count in db.execute(grouped):
                counts.setdefault(campaign_id, {})[outcome or state] = count
        return tuple(
            CampaignLine(
                id=row.id,
                name=row.name,
                lab=row.lab,
                state=CampaignState(row.state),
                submitted=row.submitted,
                runs=counts.get(row.id, {}),
            )
            for row in rows
        )

    # Runs and attempts

    def pending_runs(self, campaign_id: int, *, limit: int) -> tuple[PendingRun, ...]:
        """The next runs of a campaign in its order of work."""
        not_cancelled = attempts.c.outcome.is_(None) | (attempts.c.outcome != Outcome.CANCELLED)
        tried = select(func.count()).where(attempts.c.run_id == runs.c.id, not_cancelled).scalar_subquery()
        query = (
            select(runs.c.id, runs.c.replicate, runs.c.sequence, cells.c.levels, tried.label("attempts"))
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(runs.c.campaign_id == campaign_id, runs.c.state == RunState.PENDING)
            .order_by(tried.label("attempts") > 0, runs.c.sequence)
            .limit(limit)
        )
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(
            PendingRun(
                id=row.id,
                cell=Cell(levels=json.loads(row.levels)),
                replicate=row.replicate,
                sequence=row.sequence,
                attempts=row.attempts,
            )
            for row in rows
        )

    def start_attempt(
        self, run_id: int, order: RunOrder, *, lab: str, resources: Iterable[str]
    ) -> AttemptHandle | None:
        """Take the leases of all resources and create the next attempt of a pending run, or do nothing and return None.

        None means: a resource is leased, the run is not pending any more, or its campaign is not active.
        """
        wanted = sorted(set(resources))
        now = time.time()
        with writing(self._engine) as db:
            run = db.execute(
                select(runs.c.campaign_id, runs.c.state, campaigns.c.state.label("campaign_state"), campaigns.c.started)
                .join(campaigns, campaigns.c.id == runs.c.campaign_id)
                .where(runs.c.id == run_id)
            ).one()
            if run.state != RunState.PENDING or run.campaign_state != CampaignState.ACTIVE:
                return None
            held = select(func.count()).where(leases.c.lab == lab, leases.c.resource.in_(wanted))
            if db.execute(held).scalar_one():
                return None
            number = db.execute(select(func.count()).where(attempts.c.run_id == run_id)).scalar_one() + 1
            token = uuid.uuid4().hex
            attempt_id = _inserted(
                db,
                insert(attempts).values(
                    run_id=run_id,
                    campaign_id=run.campaign_id,
                    number=number,
                    token=token,
                    state=AttemptState.SENT,
                    order_document=to_json(order),
                    created=now,
                ),
            )
            db.execute(
                insert(leases),
                [
                    {"lab": lab, "resource": name, "attempt_id": attempt_id, "token": token, "taken": now}
                    for name in wanted
                ],
            )
            db.execute(update(runs).where(runs.c.id == run_id).values(state=RunState.ACTIVE))
            if run.started is None:
                db.execute(update(campaigns).where(campaigns.c.id == run.campaign_id).values(started=now))
        return AttemptHandle(id=attempt_id, token=token)

    def claim(self, handle: AttemptHandle, *, worker: str) -> ClaimedAttempt | None:
        """Make an attempt that was sent this worker's, once. None when its message came twice or its token is void."""
        now = time.time()
        with writing(self._engine) as db:
            claimed = db.execute(
                update(attempts)
                .where(_held(handle, AttemptState.SENT))
                .values(state=AttemptState.CLAIMED, worker=worker, claimed=now, heartbeat=now)
            )
            if claimed.rowcount != 1:
                return None
            row = db.execute(
                select(attempts, campaigns.c.lab_document)
                .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
                .where(attempts.c.id == handle.id)
            ).one()
        return ClaimedAttempt(
            id=row.id,
            token=row.token,
            number=row.number,
            run_id=row.run_id,
            campaign_id=row.campaign_id,
            order=from_json(RunOrder, row.order_document),
            lab=from_json(Lab, row.lab_document),
        )

    def heartbeat(self, handle: AttemptHandle, *, phase: str) -> str:
        """Say that an attempt lives, and in which phase. Returns why it must end, or an empty string."""
        with writing(self._engine) as db:
            beaten = db.execute(
                update(attempts).where(_held(handle, AttemptState.CLAIMED)).values(heartbeat=time.time(), phase=phase)
            )
            if beaten.rowcount != 1:
                return "its token is void: the attempt was given up as lost"
            stop = db.execute(
                select(campaigns.c.stop_attempts)
                .join(attempts, attempts.c.campaign_id == campaigns.c.id)
                .where(attempts.c.id == handle.id)
            ).scalar_one()
        return "the campaign was interrupted" if stop else ""

    def accept(self, handle: AttemptHandle, result: AttemptResult, *, again: bool) -> bool:
        """Store the result of a claimed attempt and free its leases. False, and nothing stored, when its token is void.

        With `again` the run goes back to be tried once more; else the result becomes the run's, for good. While a VM of
        the attempt may still be there, its leases stay until `cleaned`.
        """
        now = time.time()
        with writing(self._engine) as db:
            ended = db.execute(
                update(attempts)
                .where(_held(handle, AttemptState.CLAIMED))
                .values(
                    state=AttemptState.ENDED,
                    ended=now,
                    outcome=result.detail.outcome,
                    kind=result.detail.kind,
                    result_document=to_json(replace(result, raw=())),
                )
            )
            if ended.rowcount != 1:
                return False
            run_id = db.execute(select(attempts.c.run_id).where(attempts.c.id == handle.id)).scalar_one()
            if again:
                db.execute(update(runs).where(runs.c.id == run_id).values(state=RunState.PENDING))
            else:
                db.execute(
                    update(runs)
                    .where(runs.c.id == run_id)
                    .values(state=RunState.DONE, outcome=result.detail.outcome, accepted_attempt=handle.id)
                )
            if result.raw:
                db.execute(insert(raw_outputs), [_raw_row(handle.id, output) for output in result.raw])
            left = select(func.count()).where(vms.c.attempt_id == handle.id, vms.c.state == "live")
            if not db.execute(left).scalar_one():
                db.execute(delete(leases).where(leases.c.attempt_id == handle.id))
        return True

    def lose(self, *, silent_for: float, unclaimed_for: float) -> tuple[int, ...]:
        """Give up attempts without a sign of life: void their tokens. Returns their ids.

        Their leases stay until `cleaned` says that their VMs are gone.
        """
        now = time.time()
        with writing(self._engine) as db:
            silent = and_(attempts.c.state == AttemptState.CLAIMED, attempts.c.heartbeat < now - silent_for)
            unclaimed = and_(attempts.c.state == AttemptState.SENT, attempts.c.created < now - unclaimed_for)
            dead = db.execute(select(attempts.c.id).where(silent)).scalars().all()
            unknown = db.execute(select(attempts.c.id).where(unclaimed)).scalars().all()
            _give_up(db, dead, WORKER_LOST)
            _give_up(db, unknown, MESSAGE_LOST)
        return (*dead, *unknown)

    def lose_attempts(
        self,
        attempt_ids: Sequence[int],
        why: OutcomeDetail,
        *,
        states: Sequence[AttemptState] = (AttemptState.SENT, AttemptState.CLAIMED),
    ) -> None:
        """Give up attempts of which it is known that nobody works on them any more: void their tokens.

        Those that are no longer in one of `states` are left alone. With the outcome `cancelled` an attempt doesn't count
        as one of its run's tries.
        """
        with writing(self._engine) as db:
            _give_up(db, attempt_ids, why, states=states)

    def lost_attempts(self, *, lab: str | None = None) -> tuple[int, ...]:
        """Attempts that were given up, or ended without getting rid of their VMs, and still hold leases for that."""
        query = (
            select(attempts.c.id)
            .distinct()
            .join(leases, leases.c.attempt_id == attempts.c.id)
            .where(attempts.c.state.in_([AttemptState.LOST, AttemptState.ENDED]))
        )
        if lab is not None:
            query = query.where(leases.c.lab == lab)
        with reading(self._engine) as db:
            return tuple(db.execute(query).scalars().all())

    def cleaned(self, attempt_id: int, *, again: bool) -> None:
        """A lost attempt's VMs are gone: free its leases, and send its run back or end it as a lab-error."""
        with writing(self._engine) as db:
            row = db.execute(select(attempts.c.run_id, attempts.c.state).where(attempts.c.id == attempt_id)).one()
            if row.state not in (AttemptState.LOST, AttemptState.ENDED):
                return
            db.execute(delete(leases).where(leases.c.attempt_id == attempt_id))
            if row.state == AttemptState.ENDED:
                return
            values: dict[str, Any] = {"state": RunState.PENDING}
            if not again:
                values = {"state": RunState.DONE, "outcome": Outcome.LAB_ERROR, "accepted_attempt": attempt_id}
            db.execute(update(runs).where(runs.c.id == row.run_id, runs.c.state == RunState.ACTIVE).values(**values))

    def tries(self, attempt_id: int) -> tuple[int, int]:
        """(campaign id, how many attempts the attempt's run has had, not counting cancelled ones)."""
        with reading(self._engine) as db:
            row = db.execute(select(attempts.c.run_id, attempts.c.campaign_id).where(attempts.c.id == attempt_id)).one()
            count = db.execute(
                select(func.count()).where(
                    attempts.c.run_id == row.run_id,
                    attempts.c.outcome.is_(None) | (attempts.c.outcome != Outcome.CANCELLED),
                )
            ).scalar_one()
        return row.campaign_id, count

    def last_sign_of_life(self, attempt_id: int) -> tuple[RunOrder, float]:
        """What an attempt was to do, and when its worker was last known to live (or the attempt was created)."""
        with reading(self._engine) as db:
            row = db.execute(select(attempts).where(attempts.c.id == attempt_id)).one()
        return from_json(RunOrder, row.order_document), row.heartbeat or row.created

    def active_attempts(self, campaign_id: int | None = None) -> tuple[ActiveAttempt, ...]:
        """Attempts that were sent or claimed and have not ended."""
        query = (
            select(attempts, runs.c.replicate, cells.c.levels)
            .join(runs, runs.c.id == attempts.c.run_id)
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(attempts.c.state.in_([AttemptState.SENT, AttemptState.CLAIMED]))
            .order_by(attempts.c.id)
        )
        if campaign_id is not None:
            query = query.where(attempts.c.campaign_id == campaign_id)
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(
            ActiveAttempt(
                id=row.id,
                run_id=row.run_id,
                cell=Cell(levels=json.loads(row.levels)),
                replicate=row.replicate,
                number=row.number,
                state=AttemptState(row.state),
                phase=row.phase,
                hosts=from_json(RunOrder, row.order_document).placement.hosts,
                created=row.created,
                claimed=row.claimed,
                worker=row.worker,
            )
            for row in rows
        )

    def run_counts(self, campaign_id: int) -> dict[str, int]:
        """How many runs stand where: `pending`, `active`, and the outcomes of those that are done."""
        query = (
            select(runs.c.state, runs.c.outcome, func.count())
            .where(runs.c.campaign_id == campaign_id)
            .group_by(runs.c.state, runs.c.outcome)
        )
        with reading(self._engine) as db:
            return {outcome or state: count for state, outcome, count in db.execute(query)}

    def durations(self, campaign_id: int) -> dict[str, list[float]]:
        """Wall seconds of the ended, not cancelled attempts by cell id."""
        query = (
            select(cells.c.cell, attempts.c.created, attempts.c.ended)
            .join(runs, runs.c.id == attempts.c.run_id)
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(
                attempts.c.campaign_id == campaign_id,
                attempts.c.state == AttemptState.ENDED,
                attempts.c.outcome != Outcome.CANCELLED,
            )
        )
        found: dict[str, list[float]] = {}
        with reading(self._engine) as db:
            for cell, created, ended in db.execute(query):
                found.setdefault(cell, []).append(ended - created)
        return found

    def pending_cells(self, campaign_id: int) -> dict[str, tuple[Cell, int]]:
        """Cells with runs that are not done, by cell id, with how many runs are left."""
        query = (
            select(cells.c.cell, cells.c.levels, func.count())
            .join(runs, runs.c.cell_id == cells.c.id)
            .where(runs.c.campaign_id == campaign_id, runs.c.state != RunState.DONE)
            .group_by(cells.c.cell, cells.c.levels)
        )
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return {cell: (Cell(levels=json.loads(levels)), count) for cell, levels, count in rows}

    def leases(self, lab: str) -> tuple[LeaseLine, ...]:
        """Who holds what in a lab."""
        query = (
            select(leases, campaigns.c.id.label("campaign_id"), campaigns.c.name)
            .join(attempts, attempts.c.id == leases.c.attempt_id)
            .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
            .where(leases.c.lab == lab)
        )
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(
            LeaseLine(
                resource=row.resource,
                campaign_id=row.campaign_id,
                campaign=row.name,
                attempt_id=row.attempt_id,
                taken=row.taken,
            )
            for row in rows
        )

    def span(self, campaign_id: int) -> tuple[float, float]:
        """When the first VM of a campaign was created and when its last attempt ended."""
        with reading(self._engine) as db:
            first = db.execute(select(func.min(vms.c.created)).where(vms.c.campaign_id == campaign_id)).scalar()
            last = db.execute(select(func.max(attempts.c.ended)).where(attempts.c.campaign_id == campaign_id)).scalar()
        return first or 0.0, last or 0.0

    # VMs

    def record_vm(
        self, build: Callable[[IPv4Address], VmRecord], *, first: IPv4Address, last: IPv4Address, after: int
    ) -> VmRecord:
        """Record a VM that is about to be created, with a free address of the range, searched from position `after` on.

        An address is free when no VM of the lab has it that may still exist. Raises `LabError` (`addresses`) when the
        range is used up.
        """
        size = int(last) - int(first) + 1
        with writing(self._engine) as db:
            record = build(first)
            _require_claimed(db, record.attempt_id)
            live = select(vms.c.address).where(vms.c.lab == record.lab, vms.c.state != "gone")
            taken = {IPv4Interface(address).ip for address in db.execute(live).scalars()}
            for offset in range(size):
                candidate = first + (after + offset) % size
                if candidate not in taken:
                    record = build(candidate)
                    db.execute(insert(vms).values(**record.__dict__, created=time.time()))
                    return record
        raise LabError(
            f"No free guest address between {first} and {last}.",
            kind="addresses",
            todo="Widen `guest_range` of the test network in the lab file, or resume the campaign that left its VMs behind.",
        )

    def change_vm(
        self, vm_uuid: str, *, state: str | None = None, host: str | None = None, migrated: bool = False
    ) -> None:
        """Record what became of a VM: parked, gone, on another host, migrated once more."""
        values: dict[Any, Any] = {}
        if state is not None:
            values["state"] = state
            if state == "gone":
                values["gone"] = time.time()
        if host is not None:
            values["host"] = host
        if migrated:
            values["migrations"] = vms.c.migrations + 1
        with writing(self._engine) as db:
            db.execute(update(vms).where(vms.c.uuid == vm_uuid).values(**values))

    def take_parked(self, campaign_id: int, *, host: str, role: str, shape: str, attempt_id: int) -> VmRecord | None:
        """A parked VM of the campaign that fits, made live and this attempt's; None when there is none."""
        fits = and_(
            vms.c.campaign_id == campaign_id,
            vms.c.state == "parked",
            vms.c.host == host,
            vms.c.role == role,
            vms.c.shape == shape,
        )
        with writing(self._engine) as db:
            _require_claimed(db, attempt_id)
            row = db.execute(select(vms).where(fits).limit(1)).first()
            if row is None:
                return None
            db.execute(update(vms).where(vms.c.uuid == row.uuid).values(state="live", attempt_id=attempt_id))
        return _vm(row, state="live")

    def vms_of_attempt(self, attempt_id: int) -> tuple[VmRecord, ...]:
        """VMs of an attempt that may still exist."""
        return self._vms(and_(vms.c.attempt_id == attempt_id, vms.c.state != "gone"))

    def idle_vms(self, campaign_id: int) -> tuple[VmRecord, ...]:
        """VMs of a campaign that may still exist and that no attempt in progress uses."""
        busy = select(attempts.c.id).where(attempts.c.state.in_([AttemptState.SENT, AttemptState.CLAIMED]))
        idle = (vms.c.state == "parked") | vms.c.attempt_id.not_in(busy)
        return self._vms(and_(vms.c.campaign_id == campaign_id, vms.c.state != "gone", idle))

    def vm(self, vm_uuid: str) -> VmRecord | None:
        """The record of a VM, whatever became of it."""
        found = self._vms(vms.c.uuid == vm_uuid)
        return found[0] if found else None

    def _vms(self, condition: Any) -> tuple[VmRecord, ...]:  # noqa: ANN401 - an SQL expression
        with reading(self._engine) as db:
            return tuple(_vm(row) for row in db.execute(select(vms).where(condition)).all())

    # Records

    def record(self, campaign_id: int) -> CampaignRecord:
        """A campaign with everything that a report needs, in one consistent snapshot; without raw outputs."""
        with reading(self._engine) as db:
            head = self._campaign_row(db, campaign_id)
            cell_rows = db.execute(
                select(cells).where(cells.c.campaign_id == campaign_id).order_by(cells.c.position)
            ).all()
            run_rows = db.execute(select(runs).where(runs.c.campaign_id == campaign_id).order_by(runs.c.sequence)).all()
            attempt_rows = db.execute(
                select(attempts).where(attempts.c.campaign_id == campaign_id).order_by(attempts.c.id)
            ).all()
        by_run: dict[int, list[Row[Any]]] = {}
        for row in attempt_rows:
            by_run.setdefault(row.run_id, []).append(row)
        names = {row.id: row.cell for row in cell_rows}
        return CampaignRecord(
            id=head.id,
            name=head.name,
            state=head.state,
            lab=head.lab,
            submitted=head.submitted,
            started=head.started,
            ended=head.ended,
            campaign_text=head.campaign_text,
            lab_text=head.lab_text,
            document=json.loads(head.campaign_document),
            cells=tuple(
                CellRecord(
                    id=row.cell,
                    levels=json.loads(row.levels),
                    applicable=row.applicable,
                    reason=row.reason,
                    position=row.position,
                )
                for row in cell_rows
            ),
            runs=tuple(_run_record(row, names[row.cell_id], by_run.get(row.id, [])) for row in run_rows),
            versions=json.loads(head.versions),
        )

    def raw(self, attempt_id: int) -> tuple[RawOutput, ...]:
        """The captured outputs of an attempt."""
        with reading(self._engine) as db:
            rows = db.execute(
                select(raw_outputs).where(raw_outputs.c.attempt_id == attempt_id).order_by(raw_outputs.c.id)
            ).all()
        return tuple(RawOutput(name=row.name, content=zlib.decompress(row.content)) for row in rows)

    def attempts_of_run(self, run_id: int) -> tuple[int, ...]:
        """Ids of a run's attempts, oldest first."""
        with reading(self._engine) as db:
            return tuple(
                db.execute(select(attempts.c.id).where(attempts.c.run_id == run_id).order_by(attempts.c.id)).scalars()
            )

    def _identity(self) -> str:
        with writing(self._engine) as db:
            found = db.execute(select(store_info.c.value).where(store_info.c.key == "identity")).scalar()
            if found is None:
                found = uuid.uuid4().hex
                db.execute(insert(store_info).values(key="identity", value=found))
        return found

    def _campaign_row(self, db: Connection, campaign_id: int) -> Row[Any]:
        row = db.execute(select(campaigns).where(campaigns.c.id == campaign_id)).first()
        if row is None:
            raise SpecError(
                f"There is no campaign {campaign_id} in this store.", todo="`labctl status` lists the campaigns."
            )
        return row


def open_store(state: Path, *, url: str | None = None) -> Store:
    """The store of a state directory, or of a database URL, created and migrated when needed."""
    return Store(open_engine(url or sqlite_url(state)))


def _give_up(
    db: Connection,
    attempt_ids: Sequence[int],
    why: OutcomeDetail,
    *,
    states: Sequence[AttemptState] = (AttemptState.SENT, AttemptState.CLAIMED),
) -> None:
    """Void the tokens of attempts, with a result that says why, so that reports show them too."""
    db.execute(
        update(attempts)
        .where(attempts.c.id.in_(list(attempt_ids)), attempts.c.state.in_(list(states)))
        .values(
            state=AttemptState.LOST,
            ended=time.time(),
            outcome=why.outcome,
            kind=why.kind,
            result_document=to_json(AttemptResult(detail=why)),
        )
    )


def _held(handle: AttemptHandle, state: AttemptState) -> ColumnElement[bool]:
    """The attempt of this handle, if its token is still good and it stands where it should."""
    return and_(attempts.c.id == handle.id, attempts.c.token == handle.token, attempts.c.state == state)


def _require_claimed(db: Connection, attempt_id: int) -> None:
    """Raise `AttemptCancelled` when an attempt is no longer its worker's: it must not touch the lab any more."""
    state = db.execute(select(attempts.c.state).where(attempts.c.id == attempt_id)).scalar_one()
    if state != AttemptState.CLAIMED:
        raise AttemptCancelled("The attempt was given up.", why="Its worker was silent for too long.")


def _inserted(db: Connection, statement: Any) -> int:  # noqa: ANN401 - an SQL expression
    key = db.execute(statement).inserted_primary_key
    assert key is not None
    return int(key[0])


def _raw_row(attempt_id: int, output: RawOutput) -> dict[str, Any]:
    return {
        "attempt_id": attempt_id,
        "name": output.name,
        "size": len(output.content),
        "sha256": hashlib.sha256(output.content).hexdigest(),
        "content": zlib.compress(output.content),
    }


def _vm(row: Row[Any], *, state: str | None = None) -> VmRecord:
    values = {name: getattr(row, name) for name in VmRecord.__dataclass_fields__}
    return VmRecord(**(values | ({"state": state} if state else {})))


def _run_record(row: Row[Any], cell: str, tried: Sequence[Row[Any]]) -> RunRecord:
    accepted = None
    earlier: list[AttemptResult] = []
    for attempt in tried:
        if attempt.result_document is None:
            continue
        result = from_json(AttemptResult, attempt.result_document)
        if attempt.id == row.accepted_attempt:
            accepted = result
        else:
            earlier.append(result)
    claimed = [attempt.claimed for attempt in tried if attempt.claimed]
    ended = [attempt.ended for attempt in tried if attempt.ended]
    return RunRecord(
        id=row.id,
        cell=cell,
        replicate=row.replicate,
        state=row.state,
        sequence=row.sequence,
        attempts=len(tried),
        started=min(claimed) if claimed else None,
        ended=max(ended) if ended and row.state == RunState.DONE else None,
        result=accepted,
        earlier=tuple(earlier),
    )
