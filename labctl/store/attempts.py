"""Attempts: started with their leases, claimed, kept alive, ended with a result or given up."""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, case, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from labctl import clock
from labctl.model.campaign import Cell
from labctl.model.order import RunOrder
from labctl.model.outcome import AttemptState, CampaignState, HostState, Outcome, OutcomeDetail, Purpose, RunState
from labctl.model.result import AttemptResult, RawOutput
from labctl.spec.documents import from_json, to_json
from labctl.store.database import reading, writing
from labctl.store.room import IN_PROGRESS, Room, held, inserted
from labctl.store.tables import attempts, campaigns, cells, hosts, leases, raw_outputs, runs, vms
from labctl.store.values import (
    Accepted,
    ActiveAttempt,
    After,
    AttemptHandle,
    AttemptStart,
    ClaimedAttempt,
    LeaseLine,
    PendingRun,
    Sign,
    Standing,
    Trouble,
)

_STANDING = (
    select(attempts.c.campaign_id, attempts.c.run_id, attempts.c.hosts, attempts.c.state, attempts.c.outcome,
           attempts.c.kind, runs.c.replicate, runs.c.tries, cells.c.cell, campaigns.c.purpose)
    .join(runs, runs.c.id == attempts.c.run_id)
    .join(cells, cells.c.id == runs.c.cell_id)
    .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
    .where(attempts.c.id == bindparam("attempt"))
)  # fmt: skip


class Attempts(Room):
    """The part of the store that is about runs in progress."""

    def pending_runs(self, campaign_id: int, *, limit: int) -> tuple[PendingRun, ...]:
        """The next runs of a campaign that may be started now: in its order of work, retried ones last."""
        query = (
            select(runs.c.id, runs.c.replicate, runs.c.sequence, runs.c.tries, runs.c.purpose, cells.c.levels,
                   cells.c.timed, cells.c.seconds)
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(
                runs.c.campaign_id == campaign_id,
                runs.c.state == RunState.PENDING,
                runs.c.not_before <= clock.now(),
            )
            .order_by(runs.c.retried, runs.c.sequence)
            .limit(limit)
        )  # fmt: skip
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(
            PendingRun(
                id=row.id,
                cell=Cell(levels=json.loads(row.levels)),
                replicate=row.replicate,
                sequence=row.sequence,
                attempts=row.tries,
                purpose=Purpose(row.purpose),
                seconds=row.seconds / row.timed if row.timed else None,
            )
            for row in rows
        )

    def next_not_before(self, campaign_id: int) -> float | None:
        """When the first of the pending runs that wait out a back-off may be started; None without such a run."""
        query = select(func.min(runs.c.not_before)).where(
            runs.c.campaign_id == campaign_id, runs.c.state == RunState.PENDING, runs.c.not_before > clock.now()
        )
        with reading(self._engine) as db:
            return db.execute(query).scalar()

    def start_attempts(self, lab: str, starts: Sequence[AttemptStart]) -> tuple[AttemptHandle | None, ...]:
        """For each: take the leases of all its resources and create the next attempt of its pending run, or do nothing.

        None stands for nothing: a resource is leased, the run is not pending any more, or its campaign is not active.
        All are one transaction, so that nobody sees a half of it.
        """
        with writing(self._engine) as db:
            return tuple(self._start(db, lab, item) for item in starts)

    def _start(self, db: Connection, lab: str, item: AttemptStart) -> AttemptHandle | None:
        now = clock.now()
        run = db.execute(
            select(runs.c.campaign_id, runs.c.state, campaigns.c.state.label("campaign_state"), campaigns.c.started)
            .join(campaigns, campaigns.c.id == runs.c.campaign_id)
            .where(runs.c.id == item.run_id)
        ).one()
        if run.state != RunState.PENDING or run.campaign_state != CampaignState.ACTIVE:
            return None
        wanted = sorted(item.resources)
        held_already = select(leases.c.resource).where(leases.c.lab == lab, leases.c.resource.in_(wanted)).limit(1)
        if db.execute(held_already).first() is not None:
            return None
        number = db.execute(select(func.count()).where(attempts.c.run_id == item.run_id)).scalar_one() + 1
        token = uuid.uuid4().hex
        try:
            with db.begin_nested():
                taken = db.execute(
                    update(runs)
                    .where(runs.c.id == item.run_id, runs.c.state == RunState.PENDING)
                    .values(state=RunState.ACTIVE, tries=runs.c.tries + 1)
                )
                if taken.rowcount != 1:
                    return None
                attempt_id = inserted(
                    db,
                    insert(attempts).values(
                        run_id=item.run_id,
                        campaign_id=run.campaign_id,
                        number=number,
                        token=token,
                        state=AttemptState.SENT,
                        hosts=",".join(item.order.placement.hosts),
                        estimate=item.estimate,
                        order_document=to_json(item.order),
                        created=now,
                    ),
                )
                db.execute(
                    insert(leases),
                    [
                        {
                            "lab": lab,
                            "resource": name,
                            "attempt_id": attempt_id,
                            "token": token,
                            "taken": now,
                            "expected": now + item.estimate,
                        }
                        for name in wanted
                    ],
                )
        except IntegrityError:
            # Another engine was quicker; only where transactions that write run side by side (PostgreSQL).
            return None
        machines = sum(name.startswith("machine:") for name in wanted)
        values: dict[Any, Any] = {"share": campaigns.c.share + item.estimate * machines}
        if run.started is None:
            values["started"] = now
        db.execute(update(campaigns).where(campaigns.c.id == run.campaign_id).values(values))
        return AttemptHandle(id=attempt_id, token=token)

    def claim(self, handle: AttemptHandle, *, worker: str) -> ClaimedAttempt | None:
        """Make an attempt that was sent this worker's, once. None when its message came twice or its token is void."""
        now = clock.now()
        with writing(self._engine) as db:
            claimed = db.execute(
                update(attempts)
                .where(held(handle, AttemptState.SENT))
                .values(state=AttemptState.CLAIMED, worker=worker, claimed=now, heartbeat=now, beats=1)
            )
            if claimed.rowcount != 1:
                return None
            row = db.execute(
                select(attempts.c.number, attempts.c.run_id, attempts.c.campaign_id, attempts.c.order_document)
                .where(attempts.c.id == handle.id)
            ).one()  # fmt: skip
            _, lab = self._documents_of(db, row.campaign_id)
        return ClaimedAttempt(
            id=handle.id,
            token=handle.token,
            number=row.number,
            run_id=row.run_id,
            campaign_id=row.campaign_id,
            order=from_json(RunOrder, row.order_document),
            lab=lab,
        )

    def heartbeat(self, handle: AttemptHandle, *, phase: str) -> str:
        """Say that an attempt lives, and in which phase. Returns why it must end, or an empty string."""
        with writing(self._engine) as db:
            beaten = db.execute(
                update(attempts)
                .where(held(handle, AttemptState.CLAIMED))
                .values(heartbeat=clock.now(), beats=attempts.c.beats + 1, phase=phase)
            )
            if beaten.rowcount != 1:
                return "its token is void: the attempt was given up as lost"
            return _asked_to_stop(db, handle)

    def reason_to_end(self, handle: AttemptHandle) -> str:
        """Why an attempt must not touch the lab any more; empty as long as its token is good and nobody stopped it."""
        with reading(self._engine) as db:
            found = db.execute(select(attempts.c.id).where(held(handle, AttemptState.CLAIMED))).first()
            if found is None:
                return "its token is void: the attempt was given up as lost"
            return _asked_to_stop(db, handle)

    def accept(self, handle: AttemptHandle, result: AttemptResult, after: After) -> Accepted | None:
        """Store the result of a claimed attempt and free its leases. None, and nothing stored, when its token is void.

        With `after.again` the run goes back to be tried once more; else, or when its campaign was cancelled, the result
        becomes the run's, for good. While a VM of the attempt may still be there, its leases stay until `cleaned`.
        """
        now = clock.now()
        detail = result.detail
        with writing(self._engine) as db:
            ended = db.execute(
                update(attempts)
                .where(held(handle, AttemptState.CLAIMED))
                .values(
                    state=AttemptState.ENDED,
                    ended=now,
                    outcome=detail.outcome,
                    kind=detail.kind,
                    blamed=",".join(after.blamed),
                    result_document=to_json(replace(result, raw=())),
                )
            )
            if ended.rowcount != 1:
                return None
            row = db.execute(
                select(attempts.c.run_id, attempts.c.created, runs.c.cell_id, campaigns.c.lab, campaigns.c.state)
                .join(runs, runs.c.id == attempts.c.run_id)
                .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
                .where(attempts.c.id == handle.id)
            ).one()
            if after.again and row.state != CampaignState.CANCELLED:
                _send_back(db, row.run_id, detail.outcome, not_before=after.not_before)
            else:
                db.execute(
                    update(runs)
                    .where(runs.c.id == row.run_id)
                    .values(state=RunState.DONE, outcome=detail.outcome, accepted_attempt=handle.id)
                )
            if detail.outcome in (Outcome.OK, Outcome.FAILED):
                took = max(0.0, now - row.created)
                db.execute(
                    update(cells)
                    .where(cells.c.id == row.cell_id)
                    .values(timed=cells.c.timed + 1, seconds=cells.c.seconds + took)
                )
            if result.raw:
                db.execute(insert(raw_outputs), [_raw_row(handle.id, output) for output in result.raw])
            left = select(vms.c.uuid).where(vms.c.attempt_id == handle.id, vms.c.state == "live").limit(1)
            if db.execute(left).first() is None:
                db.execute(delete(leases).where(leases.c.attempt_id == handle.id))
            return Accepted(quarantined=_judge_hosts(db, row.lab, detail, after))

    def signs(self, campaign_id: int | None = None) -> tuple[Sign, ...]:
        """A sign of life of each attempt in progress."""
        query = select(attempts.c.id, attempts.c.state, attempts.c.beats, attempts.c.worker).where(
            attempts.c.state.in_(IN_PROGRESS)
        )
        if campaign_id is not None:
            query = query.where(attempts.c.campaign_id == campaign_id)
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(
            Sign(attempt_id=row.id, state=AttemptState(row.state), beats=row.beats, worker=row.worker) for row in rows
        )

    def lose_attempts(
        self,
        attempt_ids: Sequence[int],
        why: OutcomeDetail,
        *,
        states: Sequence[AttemptState] = IN_PROGRESS,
    ) -> tuple[int, ...]:
        """Give up attempts of which it is known that nobody works on them any more: void their tokens. Returns the ids
        of those that this call gave up.

        Those that are no longer in one of `states` are left alone. Their leases stay until `cleaned` says that their
        VMs are gone. With the outcome `cancelled` an attempt doesn't count as one of its run's tries.
        """
        if not attempt_ids:
            return ()
        with writing(self._engine) as db:
            still = db.execute(
                select(attempts.c.id, attempts.c.run_id).where(
                    attempts.c.id.in_(list(attempt_ids)), attempts.c.state.in_(list(states))
                )
            ).all()
            if not still:
                return ()
            db.execute(
                update(attempts)
                .where(attempts.c.id.in_([row.id for row in still]), attempts.c.state.in_(list(states)))
                .values(
                    state=AttemptState.LOST,
                    ended=clock.now(),
                    outcome=why.outcome,
                    kind=why.kind,
                    result_document=to_json(AttemptResult(detail=why)),
                )
            )
            if why.outcome is Outcome.CANCELLED:
                _uncount(db, [row.run_id for row in still])
        return tuple(row.id for row in still)

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

    def cleaned(self, attempt_id: int, *, again: bool, not_before: float = 0.0) -> None:
        """A lost attempt's VMs are gone: free its leases, and send its run back or end it. That of a cancelled campaign
        never goes back."""
        with writing(self._engine) as db:
            row = db.execute(
                select(
                    attempts.c.run_id, attempts.c.state, attempts.c.outcome, campaigns.c.state.label("campaign_state")
                )
                .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
                .where(attempts.c.id == attempt_id)
            ).one()
            if row.state not in (AttemptState.LOST, AttemptState.ENDED):
                return
            freed = db.execute(delete(leases).where(leases.c.attempt_id == attempt_id))
            if row.state == AttemptState.ENDED or not freed.rowcount:
                return
            values: dict[str, Any] = {"state": RunState.PENDING, "not_before": not_before, "retried": case(
                (runs.c.tries > 0, True), else_=False)}  # fmt: skip
            if not again or row.campaign_state == CampaignState.CANCELLED:
                values = {"state": RunState.DONE, "outcome": row.outcome, "accepted_attempt": attempt_id}
            db.execute(update(runs).where(runs.c.id == row.run_id, runs.c.state == RunState.ACTIVE).values(**values))

    def tries(self, attempt_id: int) -> tuple[int, int]:
        """(campaign id, how many attempts the attempt's run has had, not counting cancelled ones)."""
        with reading(self._engine) as db:
            row = db.execute(
                select(attempts.c.campaign_id, runs.c.tries)
                .join(runs, runs.c.id == attempts.c.run_id)
                .where(attempts.c.id == attempt_id)
            ).one()
        return row.campaign_id, row.tries

    def standing(self, attempt_id: int) -> Standing:
        """Whose an attempt is, what it used, and how it ended, if it has."""
        with reading(self._engine) as db:
            row = db.execute(_STANDING, {"attempt": attempt_id}).one()
            campaign, lab = self._documents_of(db, row.campaign_id)
        return Standing(
            campaign_id=row.campaign_id,
            purpose=Purpose(row.purpose),
            cell=row.cell,
            run_id=row.run_id,
            replicate=row.replicate,
            tries=row.tries,
            hosts=tuple(row.hosts.split(",")) if row.hosts else (),
            state=AttemptState(row.state),
            outcome=Outcome(row.outcome) if row.outcome else None,
            kind=row.kind or "",
            campaign=campaign,
            lab=lab,
        )

    def holds_token(self, handle: AttemptHandle) -> bool:
        """Whether an attempt is still its worker's."""
        with reading(self._engine) as db:
            found = db.execute(select(attempts.c.id).where(held(handle, AttemptState.CLAIMED))).first()
        return found is not None

    def blame(self, lab: str, detail: OutcomeDetail, after: After) -> tuple[str, ...]:
        """Count a lab-error that no attempt's result told of against the blamed hosts. Returns who is quarantined by it."""
        with writing(self._engine) as db:
            return _judge_hosts(db, lab, detail, after)

    def last_sign_of_life(self, attempt_id: int) -> tuple[RunOrder, float]:
        """What an attempt was to do, and when its worker was last known to live (or the attempt was created)."""
        with reading(self._engine) as db:
            row = db.execute(select(attempts).where(attempts.c.id == attempt_id)).one()
        return from_json(RunOrder, row.order_document), row.heartbeat or row.created

    def order(self, attempt_id: int) -> RunOrder:
        """What an attempt was to do."""
        with reading(self._engine) as db:
            document = db.execute(select(attempts.c.order_document).where(attempts.c.id == attempt_id)).scalar_one()
        return from_json(RunOrder, document)

    def cell_of(self, attempt_id: int) -> Cell:
        """The cell whose run an attempt was."""
        query = (
            select(cells.c.levels)
            .join(runs, runs.c.cell_id == cells.c.id)
            .join(attempts, attempts.c.run_id == runs.c.id)
            .where(attempts.c.id == attempt_id)
        )
        with reading(self._engine) as db:
            return Cell(levels=json.loads(db.execute(query).scalar_one()))

    def troubles(self, campaign_id: int) -> tuple[Trouble, ...]:
        """How attempts of a campaign ended other than `ok` and `cancelled`, by cell, outcome and kind. What was before
        runs went back on a person's wish, or before a campaign that had ended went on, is forgiven."""
        for_good = case((runs.c.accepted_attempt == attempts.c.id, 1), else_=0)
        same = cells.c.cell, attempts.c.outcome, attempts.c.kind, attempts.c.blamed, attempts.c.hosts
        query = (
            select(*same, func.count(), func.sum(for_good), func.max(attempts.c.id))
            .join(runs, runs.c.id == attempts.c.run_id)
            .join(cells, cells.c.id == runs.c.cell_id)
            .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
            .where(
                attempts.c.campaign_id == campaign_id,
                attempts.c.outcome.in_([Outcome.FAILED, Outcome.LAB_ERROR]),
                attempts.c.id > campaigns.c.forgiven,
            )
            .group_by(*same)
        )
        found: dict[tuple[str, str, str], Trouble] = {}
        with reading(self._engine) as db:
            for cell, outcome, kind, blamed, used, count, recorded, latest in db.execute(query):
                key = cell, outcome, kind or ""
                before = found.get(key)
                found[key] = Trouble(
                    cell=cell,
                    outcome=Outcome(outcome),
                    kind=kind or "",
                    hosts=frozenset({(blamed or used).replace(",", "+")}) | (before.hosts if before else frozenset()),
                    attempts=count + (before.attempts if before else 0),
                    recorded=recorded + (before.recorded if before else 0),
                    latest=max(latest, before.latest if before else 0),
                )
        return tuple(found.values())

    def detail(self, attempt_id: int) -> OutcomeDetail:
        """How an attempt ended that has ended or was given up."""
        with reading(self._engine) as db:
            text = db.execute(select(attempts.c.result_document).where(attempts.c.id == attempt_id)).scalar_one()
        return from_json(AttemptResult, text).detail

    def cells_with_result(self, campaign_id: int) -> Mapping[str, int]:
        """How many runs ended `ok`, by cell id."""
        query = (
            select(cells.c.cell, func.count().label("runs"))
            .join(runs, runs.c.cell_id == cells.c.id)
            .where(runs.c.campaign_id == campaign_id, runs.c.state == RunState.DONE, runs.c.outcome == Outcome.OK)
            .group_by(cells.c.cell)
        )
        with reading(self._engine) as db:
            return {row.cell: row.runs for row in db.execute(query)}

    def results_of_cell(self, campaign_id: int, cell_id: str) -> tuple[AttemptResult, ...]:
        """The recorded results of a cell's measuring runs, in order of replicate."""
        query = (
            select(attempts.c.result_document)
            .join(runs, runs.c.accepted_attempt == attempts.c.id)
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(
                runs.c.campaign_id == campaign_id,
                cells.c.cell == cell_id,
                runs.c.purpose == Purpose.MEASURE,
                runs.c.state == RunState.DONE,
            )
            .order_by(runs.c.replicate)
        )
        with reading(self._engine) as db:
            return tuple(from_json(AttemptResult, text) for text in db.execute(query).scalars())

    def cell_replicates(self, campaign_id: int, cell_id: str) -> tuple[int, int]:
        """(how many measuring runs a cell has, how many of them are not done)."""
        query = (
            select(func.count(), func.sum(case((runs.c.state != RunState.DONE, 1), else_=0)))
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(
                runs.c.campaign_id == campaign_id, cells.c.cell == cell_id, runs.c.purpose == Purpose.MEASURE
            )
        )  # fmt: skip
        with reading(self._engine) as db:
            row = db.execute(query).one()
        return int(row[0]), int(row[1] or 0)

    def active_attempts(self, campaign_id: int | None = None) -> tuple[ActiveAttempt, ...]:
        """Attempts that were sent or claimed and have not ended."""
        wanted = [column for column in attempts.c if column.name not in ("order_document", "result_document")]
        query: Select[Any] = (
            select(*wanted, runs.c.replicate, cells.c.levels)
            .join(runs, runs.c.id == attempts.c.run_id)
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(attempts.c.state.in_(IN_PROGRESS))
            .order_by(attempts.c.id)
        )
        if campaign_id is not None:
            query = query.where(attempts.c.campaign_id == campaign_id)
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(_active(row) for row in rows)

    def latest_ends(self, campaign_id: int, *, limit: int) -> tuple[float, ...]:
        """When the latest attempts of a campaign ended, newest first; cancelled and lost ones are none."""
        query = (
            select(attempts.c.ended)
            .where(
                attempts.c.campaign_id == campaign_id,
                attempts.c.state == AttemptState.ENDED,
                attempts.c.outcome != Outcome.CANCELLED,
            )
            .order_by(attempts.c.id.desc())
            .limit(limit)
        )
        with reading(self._engine) as db:
            return tuple(sorted(db.execute(query).scalars(), reverse=True))

    def leases(self, lab: str | None = None) -> tuple[LeaseLine, ...]:
        """Who holds what in a lab, or in all labs."""
        query = (
            select(leases, campaigns.c.id.label("campaign_id"), campaigns.c.name)
            .join(attempts, attempts.c.id == leases.c.attempt_id)
            .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
        )
        if lab is not None:
            query = query.where(leases.c.lab == lab)
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(
            LeaseLine(
                resource=row.resource,
                campaign_id=row.campaign_id,
                campaign=row.name,
                attempt_id=row.attempt_id,
                taken=row.taken,
                expected=row.expected,
            )
            for row in rows
        )

    def attempts_of_run(self, run_id: int) -> tuple[int, ...]:
        """Ids of a run's attempts, oldest first."""
        with reading(self._engine) as db:
            return tuple(
                db.execute(select(attempts.c.id).where(attempts.c.run_id == run_id).order_by(attempts.c.id)).scalars()
            )


def _asked_to_stop(db: Connection, handle: AttemptHandle) -> str:
    stop = db.execute(
        select(campaigns.c.stop_attempts)
        .join(attempts, attempts.c.campaign_id == campaigns.c.id)
        .where(attempts.c.id == handle.id)
    ).scalar_one()
    return "the campaign was interrupted" if stop else ""


def _send_back(db: Connection, run_id: int, outcome: Outcome, *, not_before: float) -> None:
    if outcome is Outcome.CANCELLED:
        _uncount(db, [run_id])
    db.execute(
        update(runs)
        .where(runs.c.id == run_id)
        .values(state=RunState.PENDING, not_before=not_before, retried=case((runs.c.tries > 0, True), else_=False))
    )


def _uncount(db: Connection, run_ids: Iterable[int]) -> None:
    """Cancelled attempts are no tries of their runs."""
    for run_id in run_ids:
        db.execute(update(runs).where(runs.c.id == run_id, runs.c.tries > 0).values(tries=runs.c.tries - 1))


def _judge_hosts(db: Connection, lab: str, detail: OutcomeDetail, after: After) -> tuple[str, ...]:
    """Count a lab-error against the blamed hosts and forgive the cleared ones. Returns who is quarantined by it."""
    now = clock.now()
    if after.cleared:
        db.execute(
            update(hosts)
            .where(hosts.c.lab == lab, hosts.c.host.in_(after.cleared), hosts.c.strikes > 0)
            .values(strikes=0)
        )
    quarantined: list[str] = []
    for name in after.blamed:
        row = db.execute(select(hosts).where(hosts.c.lab == lab, hosts.c.host == name)).first()
        if row is None:
            db.execute(insert(hosts).values(lab=lab, host=name, state=HostState.GOOD, since=now))
        strikes = (row.strikes if row is not None else 0) + 1
        values: dict[str, Any] = {"strikes": strikes}
        good = row is None or row.state == HostState.GOOD
        if good and strikes >= after.quarantine_after:
            why = f"{strikes} lab-errors in a row, the last one: {detail.what}"
            values |= {"state": HostState.QUARANTINED, "since": now, "why": why, "checks": 0}
            values["next_check"] = after.check_at or now
            quarantined.append(name)
        db.execute(update(hosts).where(and_(hosts.c.lab == lab, hosts.c.host == name)).values(**values))
    return tuple(quarantined)


def _raw_row(attempt_id: int, output: RawOutput) -> dict[str, Any]:
    return {
        "attempt_id": attempt_id,
        "name": output.name,
        "size": len(output.content),
        "sha256": hashlib.sha256(output.content).hexdigest(),
        "content": zlib.compress(output.content),
    }


def _active(row: Row[Any]) -> ActiveAttempt:
    return ActiveAttempt(
        id=row.id,
        campaign_id=row.campaign_id,
        run_id=row.run_id,
        cell=Cell(levels=json.loads(row.levels)),
        replicate=row.replicate,
        number=row.number,
        state=AttemptState(row.state),
        phase=row.phase,
        hosts=tuple(row.hosts.split(",")) if row.hosts else (),
        created=row.created,
        claimed=row.claimed,
        estimate=row.estimate,
        worker=row.worker,
    )
