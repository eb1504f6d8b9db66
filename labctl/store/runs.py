"""Runs: which are next, how many stand where, how long they take, ended without being run and sent back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from sqlalchemy import ColumnElement, Connection, Update, bindparam, case, func, or_, select, update

from labctl import clock
from labctl.model.campaign import Cell
from labctl.model.outcome import Outcome, OutcomeDetail, Purpose, RunState
from labctl.spec.documents import from_json, to_json
from labctl.store.room import Room, campaign_row, newest_attempt
from labctl.store.tables import BACKING_OFF, campaigns, cells, runs
from labctl.store.values import PendingRun

_BATCH = 1000

_PENDING = (
    select(runs.c.id, runs.c.replicate, runs.c.sequence, runs.c.tries, runs.c.purpose, cells.c.levels,
           cells.c.timed, cells.c.seconds)
    .join(cells, cells.c.id == runs.c.cell_id)
    .where(
        runs.c.campaign_id == bindparam("campaign"),
        runs.c.state == RunState.PENDING,
        or_(runs.c.not_before <= bindparam("now"), runs.c.not_before > bindparam("too_far")),
    )
    .order_by(runs.c.retried, runs.c.sequence)
    .limit(bindparam("limit"))
)  # fmt: skip
_BACK_OFF_ENDS = select(func.min(runs.c.not_before)).where(
    runs.c.campaign_id == bindparam("campaign"),
    runs.c.state == RunState.PENDING,
    BACKING_OFF,
    runs.c.not_before > bindparam("now"),
    runs.c.not_before <= bindparam("too_far"),
)
_OPEN = (
    select(runs.c.id)
    .where(runs.c.campaign_id == bindparam("campaign"), runs.c.state.in_([RunState.PENDING, RunState.ACTIVE]))
    .limit(1)
)


class Runs(Room):
    """The part of the store that is about runs."""

    def pending_runs(self, campaign_id: int, *, limit: int) -> tuple[PendingRun, ...]:
        """The next runs of a campaign that may be started now: in its order of work, retried ones last."""
        with self._db.reading() as db:
            rows = db.execute(_PENDING, self._moment(db, campaign_id) | {"limit": limit}).all()
        return tuple(
            PendingRun(
                id=row.id,
                cell=_cell(row.levels),
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
        with self._db.reading() as db:
            return db.execute(_BACK_OFF_ENDS, self._moment(db, campaign_id)).scalar()

    def _moment(self, db: Connection, campaign_id: int) -> dict[str, float]:
        """Now. A run of the campaign that is not to be started before a moment `too_far` ahead got that from a wall clock
        that was set back since, and may be started."""
        now, (campaign, _) = clock.now(), self._documents_of(db, campaign_id)
        return {"campaign": campaign_id, "now": now, "too_far": now + campaign.longest_back_off}

    def run_counts(self, campaign_id: int) -> dict[str, int]:
        """How many runs stand where: `pending`, `active`, and the outcomes of those that are done."""
        query = (
            select(runs.c.state, runs.c.outcome, func.count())
            .where(runs.c.campaign_id == campaign_id)
            .group_by(runs.c.state, runs.c.outcome)
        )
        with self._db.reading() as db:
            return {outcome or state: count for state, outcome, count in db.execute(query)}

    def has_open_runs(self, campaign_id: int) -> bool:
        """Whether any run of the campaign is pending or active."""
        with self._db.reading() as db:
            return db.execute(_OPEN, {"campaign": campaign_id}).first() is not None

    def end_pending(self, campaign_id: int, why: OutcomeDetail, *, run_ids: Sequence[int] | None = None,
                    cell_id: str | None = None) -> int:  # fmt: skip
        """End pending runs without an attempt, with the reason: all of the campaign, of one cell, or of `run_ids`.
        Returns how many."""
        condition = [runs.c.campaign_id == campaign_id, runs.c.state == RunState.PENDING]
        if cell_id is not None:
            of_cell = select(cells.c.id).where(cells.c.campaign_id == campaign_id, cells.c.cell == cell_id)
            condition.append(runs.c.cell_id.in_(of_cell))
        if run_ids is not None:
            condition.append(runs.c.id.in_(list(run_ids)))
        with self._db.writing() as db:
            ended = db.execute(
                update(runs).where(*condition).values(state=RunState.DONE, outcome=why.outcome, detail=to_json(why))
            )
        return ended.rowcount

    def reopen(self, campaign_id: int, outcomes: Collection[Outcome], *, unrun: Collection[str] = ()) -> int:
        """Send runs that ended with one of these outcomes back, with all their tries; earlier attempts stay in the
        record, but are no `troubles` any more. Those that were ended without an attempt go back also when the kind of
        their reason is one of `unrun`. Returns how many."""
        done = runs.c.campaign_id == campaign_id, runs.c.state == RunState.DONE
        reasons = select(runs.c.id, runs.c.detail).where(*done, runs.c.detail.is_not(None))
        with self._db.writing() as db:
            campaign_row(db, campaign_id)
            back = db.execute(_back(runs.c.outcome.in_(outcomes), *done)).rowcount
            ended = db.execute(reasons).all() if unrun else ()
            wanted = [row.id for row in ended if from_json(OutcomeDetail, row.detail).kind in unrun]
            for first in range(0, len(wanted), _BATCH):
                back += db.execute(_back(runs.c.id.in_(wanted[first : first + _BATCH]))).rowcount
            if back:
                forgive = update(campaigns).where(campaigns.c.id == campaign_id)
                db.execute(forgive.values(forgiven=newest_attempt(campaign_id)))
        return back

    def pending_cells(self, campaign_id: int) -> dict[str, tuple[Cell, int]]:
        """Cells with runs that are not done, by cell id, with how many runs are left."""
        query = (
            select(cells.c.cell, cells.c.levels, func.count())
            .join(runs, runs.c.cell_id == cells.c.id)
            .where(runs.c.campaign_id == campaign_id, runs.c.state != RunState.DONE)
            .group_by(cells.c.cell, cells.c.levels)
        )
        with self._db.reading() as db:
            rows = db.execute(query).all()
        return {cell: (Cell(levels=json.loads(levels)), count) for cell, levels, count in rows}

    def durations(self, campaign_id: int) -> dict[str, tuple[int, float]]:
        """(how many, mean seconds) of the attempts with a figure or a failure, by cell id."""
        query = select(cells.c.cell, cells.c.timed, cells.c.seconds).where(
            cells.c.campaign_id == campaign_id, cells.c.timed > 0
        )
        with self._db.reading() as db:
            return {row.cell: (row.timed, row.seconds / row.timed) for row in db.execute(query)}

    def timed_cells(self, campaign_id: int, *, limit: int) -> tuple[tuple[Cell, float], ...]:
        """Some of the cells that had an attempt with a figure or a failure, with the mean seconds of those."""
        query = select(cells.c.levels, cells.c.timed, cells.c.seconds).where(
            cells.c.campaign_id == campaign_id, cells.c.timed > 0
        )
        with self._db.reading() as db:
            rows = db.execute(query.limit(limit)).all()
        return tuple((Cell(levels=json.loads(row.levels)), row.seconds / row.timed) for row in rows)

    def cells_with_result(self, campaign_id: int) -> Mapping[str, int]:
        """How many runs ended `ok`, by cell id."""
        query = (
            select(cells.c.cell, func.count().label("runs"))
            .join(runs, runs.c.cell_id == cells.c.id)
            .where(runs.c.campaign_id == campaign_id, runs.c.state == RunState.DONE, runs.c.outcome == Outcome.OK)
            .group_by(cells.c.cell)
        )
        with self._db.reading() as db:
            return {row.cell: row.runs for row in db.execute(query)}

    def cell_replicates(self, campaign_id: int, cell_id: str) -> tuple[int, int]:
        """(how many measuring runs a cell has, how many of them are not done)."""
        query = (
            select(func.count(), func.sum(case((runs.c.state != RunState.DONE, 1), else_=0)))
            .join(cells, cells.c.id == runs.c.cell_id)
            .where(
                runs.c.campaign_id == campaign_id, cells.c.cell == cell_id, runs.c.purpose == Purpose.MEASURE
            )
        )  # fmt: skip
        with self._db.reading() as db:
            row = db.execute(query).one()
        return int(row[0]), int(row[1] or 0)


@lru_cache(maxsize=4096)
def _cell(levels: str) -> Cell:
    """A cell from its text; the engine reads the same ones again and again."""
    return Cell(levels=json.loads(levels))


def _back(*which: ColumnElement[bool]) -> Update:
    """Runs that are done go back, as if they had not been tried."""
    return (
        update(runs)
        .where(*which)
        .values(
            state=RunState.PENDING,
            outcome=None,
            accepted_attempt=None,
            detail=None,
            tries=0,
            retried=False,
            not_before=0.0,
        )
    )
