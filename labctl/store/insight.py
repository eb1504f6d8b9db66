"""Attempts looked at: in progress, what they did and how they ended."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row, Select, bindparam, case, func, select

from labctl.model.campaign import Cell
from labctl.model.order import RunOrder
from labctl.model.outcome import AttemptState, Outcome, OutcomeDetail, Purpose, RunState
from labctl.model.result import AttemptResult
from labctl.spec.documents import from_json
from labctl.store.room import IN_PROGRESS, Room
from labctl.store.tables import attempts, campaigns, cells, leases, runs
from labctl.store.values import ActiveAttempt, Leased, LeaseLine, Standing, Trouble

_STANDING = (
    select(attempts.c.campaign_id, attempts.c.run_id, attempts.c.hosts, attempts.c.state, attempts.c.outcome,
           attempts.c.kind, runs.c.replicate, runs.c.tries, cells.c.cell, campaigns.c.purpose)
    .join(runs, runs.c.id == attempts.c.run_id)
    .join(cells, cells.c.id == runs.c.cell_id)
    .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
    .where(attempts.c.id == bindparam("attempt"))
)  # fmt: skip
_TRIES = (
    select(attempts.c.campaign_id, runs.c.tries)
    .join(runs, runs.c.id == attempts.c.run_id)
    .where(attempts.c.id == bindparam("attempt"))
)
_LEASES = (
    select(leases, campaigns.c.id.label("campaign_id"), campaigns.c.name)
    .join(attempts, attempts.c.id == leases.c.attempt_id)
    .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
)
_LEASES_OF_LAB = _LEASES.where(leases.c.lab == bindparam("of_lab"))
_LEASED = (
    select(leases.c.resource, attempts.c.campaign_id, leases.c.expected, attempts.c.state)
    .join(attempts, attempts.c.id == leases.c.attempt_id)
    .where(leases.c.lab == bindparam("of_lab"))
)


class Insight(Room):
    """The part of the store that is about looking at attempts."""

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
        with self._db.reading() as db:
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
        with self._db.reading() as db:
            return tuple(sorted(db.execute(query).scalars(), reverse=True))

    def leases(self, lab: str | None = None) -> tuple[LeaseLine, ...]:
        """Who holds what in a lab, or in all labs."""
        with self._db.reading() as db:
            rows = (db.execute(_LEASES) if lab is None else db.execute(_LEASES_OF_LAB, {"of_lab": lab})).all()
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

    def leased(self, lab: str) -> dict[str, Leased]:
        """Everything that is leased in a lab, by name. Costs less than `leases`."""
        with self._db.reading() as db:
            rows = db.execute(_LEASED, {"of_lab": lab}).all()
        return {name: Leased(campaign, expected, state in IN_PROGRESS) for name, campaign, expected, state in rows}

    def attempts_of_run(self, run_id: int) -> tuple[int, ...]:
        """Ids of a run's attempts, oldest first."""
        with self._db.reading() as db:
            return tuple(
                db.execute(select(attempts.c.id).where(attempts.c.run_id == run_id).order_by(attempts.c.id)).scalars()
            )

    def tries(self, attempt_id: int) -> tuple[int, int]:
        """(campaign id, how many attempts the attempt's run has had, not counting cancelled ones)."""
        with self._db.reading() as db:
            row = db.execute(_TRIES, {"attempt": attempt_id}).one()
        return row.campaign_id, row.tries

    def standing(self, attempt_id: int) -> Standing:
        """Whose an attempt is, what it used, and how it ended, if it has."""
        with self._db.reading() as db:
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

    def has_attempt(self, attempt_id: int) -> bool:
        """Whether this store ever had an attempt of this id."""
        with self._db.reading() as db:
            return db.execute(select(attempts.c.id).where(attempts.c.id == attempt_id)).first() is not None

    def knows_attempt(self, campaign_id: int, attempt_id: int) -> bool:
        """Whether a campaign of this store ever had this attempt."""
        mine = attempts.c.id == attempt_id, attempts.c.campaign_id == campaign_id
        with self._db.reading() as db:
            return db.execute(select(attempts.c.id).where(*mine)).first() is not None

    def last_sign_of_life(self, attempt_id: int) -> tuple[RunOrder, float]:
        """What an attempt was to do, and when its worker was last known to live (or the attempt was created)."""
        with self._db.reading() as db:
            row = db.execute(select(attempts).where(attempts.c.id == attempt_id)).one()
        return from_json(RunOrder, row.order_document), row.heartbeat or row.created

    def order(self, attempt_id: int) -> RunOrder:
        """What an attempt was to do."""
        with self._db.reading() as db:
            document = db.execute(select(attempts.c.order_document).where(attempts.c.id == attempt_id)).scalar_one()
        return from_json(RunOrder, document)

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
        with self._db.reading() as db:
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
        with self._db.reading() as db:
            text = db.execute(select(attempts.c.result_document).where(attempts.c.id == attempt_id)).scalar_one()
        return from_json(AttemptResult, text).detail

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
        with self._db.reading() as db:
            return tuple(from_json(AttemptResult, text) for text in db.execute(query).scalars())


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
