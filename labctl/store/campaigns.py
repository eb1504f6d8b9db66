"""Campaigns and their runs as they are submitted, listed, ranked and changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, ScalarSelect, Update, func, insert, select, update

from labctl import clock
from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell, PlannedCell
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, Purpose, RunState
from labctl.spec.documents import from_json, to_json
from labctl.store.database import reading, writing
from labctl.store.room import Room, campaign_row, inserted
from labctl.store.tables import attempts, campaigns, cells, runs
from labctl.store.values import CampaignHead, CampaignLine, QueuedCampaign

_BATCH = 1000


class Campaigns(Room):
    """The part of the store that is about campaigns."""

    def submit(
        self,
        campaign: Campaign,
        lab: Lab,
        *,
        campaign_text: str,
        lab_text: str,
        versions: Mapping[str, str],
        cells: Iterable[PlannedCell],
        order: Iterable[tuple[int, int, Purpose]],
        digest: str = "",
        purpose: Purpose = Purpose.MEASURE,
        once: bool = False,
    ) -> int:
        """Store a campaign with its cells and runs and return its id.

        `order` gives the runs in their order of work: position among the applicable cells, replicate (unique within
        the cell), and what the run is for. `digest` names the content, so that a second submission of it is noticed:
        with `once` it raises `SpecError` when a campaign with this content has not ended.
        """
        with writing(self._engine) as db:
            if once:
                _refuse_second(db, digest)
            campaign_id = inserted(
                db,
                insert(campaigns).values(
                    name=campaign.name,
                    lab=lab.name,
                    state=CampaignState.ACTIVE,
                    stop_attempts=False,
                    submitted=clock.now(),
                    campaign_text=campaign_text,
                    lab_text=lab_text,
                    campaign_document=to_json(campaign),
                    lab_document=to_json(lab),
                    versions=json.dumps(dict(versions)),
                    digest=digest,
                    purpose=purpose,
                    priority=campaign.priority,
                    share=_least_share(db),
                ),
            )
            applicable = _insert_cells(db, campaign_id, cells)
            _insert_runs(db, campaign_id, applicable, order)
        return campaign_id

    def same_content(self, digest: str) -> tuple[int, ...]:
        """Ids of the campaigns with this content that have not ended, oldest first."""
        with reading(self._engine) as db:
            return tuple(row.id for row in _same_content(db, digest))

    def newest_of_name(self, lab: str, name: str, purpose: Purpose) -> int | None:
        """The id of the campaign of a lab with this name and purpose that was submitted last, whatever became of it."""
        wanted = campaigns.c.lab == lab, campaigns.c.name == name, campaigns.c.purpose == purpose
        query = select(func.max(campaigns.c.id)).where(*wanted)
        with reading(self._engine) as db:
            return db.execute(query).scalar()

    def newest_campaign(self) -> int | None:
        """The id of the campaign that was submitted last; labctl's own health checks are none."""
        query = select(func.max(campaigns.c.id)).where(campaigns.c.purpose != Purpose.HEALTH)
        with reading(self._engine) as db:
            return db.execute(query).scalar()

    def labs(self) -> dict[str, int]:
        """The labs that campaigns were submitted for, each with the id of the newest one; labctl's own health checks are
        none."""
        query = (
            select(campaigns.c.lab, func.max(campaigns.c.id).label("newest"))
            .where(campaigns.c.purpose != Purpose.HEALTH)
            .group_by(campaigns.c.lab)
            .order_by(campaigns.c.lab)
        )
        with reading(self._engine) as db:
            return {row.lab: row.newest for row in db.execute(query)}

    def head(self, campaign_id: int) -> CampaignHead:
        """A campaign without its runs. Raises `SpecError` when there is none of this id."""
        with reading(self._engine) as db:
            row = _state_row(db, campaign_id)
            campaign, lab = self._documents_of(db, campaign_id)
        return CampaignHead(
            id=campaign_id,
            name=row.name,
            state=CampaignState(row.state),
            stop_attempts=row.stop_attempts,
            campaign=campaign,
            lab=lab,
            submitted=row.submitted,
            purpose=Purpose(row.purpose),
            priority=row.priority,
            why=row.why,
            hold=row.hold,
            ended=row.ended,
            forgiven=row.forgiven,
        )

    def ended_since(self, moment: float) -> dict[int, float]:
        """The campaigns that ended at or after a moment, and when, by id (epoch seconds); no health checks."""
        query = select(campaigns.c.id, campaigns.c.ended).where(
            campaigns.c.ended >= moment, campaigns.c.purpose != Purpose.HEALTH
        )
        with reading(self._engine) as db:
            return {row.id: row.ended for row in db.execute(query.order_by(campaigns.c.ended))}

    def state(self, campaign_id: int) -> CampaignState:
        """Where a campaign stands."""
        with reading(self._engine) as db:
            return CampaignState(_state_row(db, campaign_id).state)

    def set_state(
        self,
        campaign_id: int,
        state: CampaignState,
        *,
        stop_attempts: bool = False,
        why: str = "",
        only_from: Collection[CampaignState] = tuple(CampaignState),
    ) -> bool:
        """Change a campaign's state, and say whether it was another one before.

        `stop_attempts` asks its attempts in progress to end at their next step; `why` is kept for people. One that is
        made active again begins with the share of those that are, and one that had ended also with its troubles forgiven.
        A campaign that stands in none of `only_from` is left as it is.
        """
        values: dict[str, Any] = {"state": state, "stop_attempts": stop_attempts, "why": why, "hold": ""}
        if state.ended:
            values["ended"] = clock.now()
        elif state is CampaignState.ACTIVE:
            values["ended"] = None
        with writing(self._engine) as db:
            before = _state_row(db, campaign_id)
            if before.state not in only_from:
                return False
            if state is CampaignState.ACTIVE and before.state != state:
                values["share"] = max(before.share, _least_share(db))
                if CampaignState(before.state).ended:
                    values["forgiven"] = _newest_attempt(campaign_id)
            db.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(**values))
        return bool(before.state != state)

    def set_hold(self, campaign_id: int, hold: str) -> None:
        """Say what keeps an active campaign from starting runs now; empty: nothing does."""
        with writing(self._engine) as db:
            db.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(hold=hold))

    def set_priority(self, campaign_id: int, priority: int) -> None:
        """Change a campaign's priority."""
        with writing(self._engine) as db:
            campaign_row(db, campaign_id)
            db.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(priority=priority))

    def queue(self) -> tuple[QueuedCampaign, ...]:
        """All active campaigns: those of a higher priority first, then those that were given less, then older ones."""
        query = (
            select(campaigns.c.id, campaigns.c.lab, campaigns.c.priority, campaigns.c.share, campaigns.c.purpose,
                   campaigns.c.hold)
            .where(campaigns.c.state == CampaignState.ACTIVE)
            .order_by(campaigns.c.priority.desc(), campaigns.c.share, campaigns.c.id)
        )  # fmt: skip
        with reading(self._engine) as db:
            rows = db.execute(query).all()
        return tuple(
            QueuedCampaign(
                id=row.id,
                lab=row.lab,
                priority=row.priority,
                share=row.share,
                purpose=Purpose(row.purpose),
                hold=row.hold,
            )
            for row in rows
        )

    def campaigns(self) -> tuple[CampaignLine, ...]:
        """All campaigns, newest first; also labctl's own health checks."""
        with reading(self._engine) as db:
            rows = db.execute(select(campaigns).order_by(campaigns.c.id.desc())).all()
            counts: dict[int, dict[str, int]] = {}
            grouped = select(runs.c.campaign_id, runs.c.state, runs.c.outcome, func.count()).group_by(
                runs.c.campaign_id, runs.c.state, runs.c.outcome
            )
            for campaign_id, state, outcome, count in db.execute(grouped):
                counts.setdefault(campaign_id, {})[outcome or state] = count
        return tuple(_line(row, counts.get(row.id, {})) for row in rows)

    def run_counts(self, campaign_id: int) -> dict[str, int]:
        """How many runs stand where: `pending`, `active`, and the outcomes of those that are done."""
        query = (
            select(runs.c.state, runs.c.outcome, func.count())
            .where(runs.c.campaign_id == campaign_id)
            .group_by(runs.c.state, runs.c.outcome)
        )
        with reading(self._engine) as db:
            return {outcome or state: count for state, outcome, count in db.execute(query)}

    def has_open_runs(self, campaign_id: int) -> bool:
        """Whether any run of the campaign is pending or active."""
        query = (
            select(runs.c.id)
            .where(runs.c.campaign_id == campaign_id, runs.c.state.in_([RunState.PENDING, RunState.ACTIVE]))
            .limit(1)
        )
        with reading(self._engine) as db:
            return db.execute(query).first() is not None

    def add_runs(self, campaign_id: int, cell_id: str, replicates: Iterable[int]) -> int:
        """Add further runs of a cell at the end of the order of work. Replicates that are there already are left alone.
        Returns how many were added."""
        with writing(self._engine) as db:
            row = db.execute(
                select(cells.c.id).where(cells.c.campaign_id == campaign_id, cells.c.cell == cell_id)
            ).scalar_one()
            there = set(db.execute(select(runs.c.replicate).where(runs.c.cell_id == row)).scalars())
            last = db.execute(select(func.max(runs.c.sequence)).where(runs.c.campaign_id == campaign_id)).scalar() or 0
            new = [replicate for replicate in replicates if replicate not in there]
            if new:
                db.execute(
                    insert(runs),
                    [_run(campaign_id, row, replicate, last + 1 + at) for at, replicate in enumerate(new)],
                )
        return len(new)

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
        with writing(self._engine) as db:
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
        with writing(self._engine) as db:
            campaign_row(db, campaign_id)
            back = db.execute(_back(runs.c.outcome.in_(outcomes), *done)).rowcount
            ended = db.execute(reasons).all() if unrun else ()
            wanted = [row.id for row in ended if from_json(OutcomeDetail, row.detail).kind in unrun]
            for first in range(0, len(wanted), _BATCH):
                back += db.execute(_back(runs.c.id.in_(wanted[first : first + _BATCH]))).rowcount
            if back:
                forgive = update(campaigns).where(campaigns.c.id == campaign_id)
                db.execute(forgive.values(forgiven=_newest_attempt(campaign_id)))
        return back

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

    def durations(self, campaign_id: int) -> dict[str, tuple[int, float]]:
        """(how many, mean seconds) of the attempts with a figure or a failure, by cell id."""
        query = select(cells.c.cell, cells.c.timed, cells.c.seconds).where(
            cells.c.campaign_id == campaign_id, cells.c.timed > 0
        )
        with reading(self._engine) as db:
            return {row.cell: (row.timed, row.seconds / row.timed) for row in db.execute(query)}


def _newest_attempt(campaign_id: int) -> ScalarSelect[int]:
    """The id of a campaign's newest attempt, 0 without one."""
    newest = select(func.coalesce(func.max(attempts.c.id), 0)).where(attempts.c.campaign_id == campaign_id)
    return newest.scalar_subquery()


def _same_content(db: Connection, digest: str) -> list[Any]:
    """Campaigns with this content that have not ended, oldest first."""
    query = select(campaigns.c.id, campaigns.c.name, campaigns.c.state).where(campaigns.c.digest == digest)
    return [row for row in db.execute(query.order_by(campaigns.c.id)) if not CampaignState(row.state).ended]


def _refuse_second(db: Connection, digest: str) -> None:
    same = _same_content(db, digest)
    if same:
        raise SpecError(
            f"Campaign {same[-1].id} ({same[-1].name}) measures the same in the same lab and is {same[-1].state}. "
            "Nothing was submitted.",
            why="A second one would double the work, and the figures of neither would gain by it.",
            todo=f"Look at it with `labctl status {same[-1].id}`, or submit it a second time with --again.",
        )


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


def _state_row(db: Connection, campaign_id: int) -> Row[Any]:
    """A campaign's row without its documents."""
    wanted = [column for column in campaigns.c if not column.name.endswith(("_text", "_document"))]
    row = db.execute(select(*wanted).where(campaigns.c.id == campaign_id)).first()
    return row if row is not None else campaign_row(db, campaign_id)


def _least_share(db: Connection) -> float:
    """Where a campaign begins among the active ones: it is neither made up for the past nor put behind."""
    least = select(func.min(campaigns.c.share)).where(
        campaigns.c.state == CampaignState.ACTIVE, campaigns.c.purpose != Purpose.HEALTH
    )
    return float(db.execute(least).scalar() or 0.0)


def _insert_cells(db: Connection, campaign_id: int, planned: Iterable[PlannedCell]) -> list[int]:
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
    db: Connection, campaign_id: int, applicable: Sequence[int], order: Iterable[tuple[int, int, Purpose]]
) -> None:
    batch: list[dict[str, Any]] = []
    for sequence, (position, replicate, purpose) in enumerate(order):
        batch.append(_run(campaign_id, applicable[position], replicate, sequence, purpose))
        if len(batch) == _BATCH:
            db.execute(insert(runs), batch)
            batch = []
    if batch:
        db.execute(insert(runs), batch)


def _run(
    campaign_id: int, cell_row: int, replicate: int, sequence: int, purpose: Purpose = Purpose.MEASURE
) -> dict[str, Any]:
    return {
        "campaign_id": campaign_id,
        "cell_id": cell_row,
        "replicate": replicate,
        "sequence": sequence,
        "state": RunState.PENDING,
        "purpose": purpose,
    }


def _line(row: Row[Any], counts: Mapping[str, int]) -> CampaignLine:
    return CampaignLine(
        id=row.id,
        name=row.name,
        lab=row.lab,
        state=CampaignState(row.state),
        submitted=row.submitted,
        priority=row.priority,
        purpose=Purpose(row.purpose),
        why=row.why,
        hold=row.hold,
        runs=counts,
    )
