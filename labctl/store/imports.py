"""Campaigns that were never run here: outputs made by hand, stored as cells, runs and results like any others."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from sqlalchemy import Connection, insert, select

from labctl import clock
from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState, CampaignState, Purpose, RunState
from labctl.model.result import AttemptResult
from labctl.spec.documents import to_json
from labctl.store.room import Room, inserted
from labctl.store.tables import attempts, campaigns, cells, documents, events, raw_outputs, runs


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """One run with its result. Times are seconds since the Unix epoch."""

    cell: Cell
    replicate: int
    hosts: tuple[str, ...]
    started: float
    ended: float
    result: AttemptResult


class Imports(Room):
    """The part of the store that takes campaigns from elsewhere."""

    def import_campaign(
        self,
        campaign: Campaign,
        lab: Lab,
        found: Sequence[ImportedRun],
        *,
        text: str,
        versions: Mapping[str, str],
        digest: str,
        what: str,
        again: bool = False,
    ) -> int:
        """Store a campaign that is done, with all its runs, in one transaction, and return its id.

        `text` is the file that describes it, `what` says in a sentence where it comes from. Raises `SpecError` when one
        with this `digest` is there, unless it is to be taken `again`.
        """
        with self._db.writing() as db:
            if not again:
                _refuse_second(db, digest)
            campaign_id = inserted(
                db,
                insert(campaigns).values(
                    name=campaign.name,
                    lab=lab.name,
                    state=CampaignState.DONE,
                    stop_attempts=False,
                    submitted=clock.now(),
                    started=min(run.started for run in found),
                    ended=max(run.ended for run in found),
                    versions=json.dumps(dict(versions)),
                    digest=digest,
                    purpose=Purpose.IMPORTED,
                ),
            )
            db.execute(
                insert(documents).values(
                    campaign_id=campaign_id,
                    campaign_text=text,
                    lab_text="",
                    campaign_document=to_json(campaign),
                    lab_document=to_json(lab),
                )
            )
            rows = _insert_cells(db, campaign_id, [run.cell for run in found])
            for sequence, run in enumerate(found):
                _insert_run(db, campaign_id, rows[run.cell.id], run, sequence)
            event = {"scope": f"campaign-{campaign_id}", "key": "imported", "campaign_id": campaign_id, "told": True}
            db.execute(insert(events).values(**event, kind="imported", what=what, at=clock.now()))
        return campaign_id


def _refuse_second(db: Connection, digest: str) -> None:
    there = select(campaigns.c.id).where(campaigns.c.digest == digest, campaigns.c.purpose == Purpose.IMPORTED)
    found = db.execute(there.order_by(campaigns.c.id)).scalars().all()
    if found:
        raise SpecError(
            f"These outputs were imported already, as campaign {found[-1]}. Nothing was imported.",
            todo=f"Look at it with `labctl report {found[-1]}`, or import them a second time with --again.",
        )


def _insert_cells(db: Connection, campaign_id: int, named: Sequence[Cell]) -> dict[str, int]:
    """Insert each cell once. Returns their row ids by their own."""
    rows: dict[str, int] = {}
    for cell in named:
        if cell.id not in rows:
            values = {"levels": json.dumps(dict(cell.levels)), "applicable": True, "position": len(rows)}
            rows[cell.id] = inserted(db, insert(cells).values(campaign_id=campaign_id, cell=cell.id, **values))
    return rows


def _insert_run(db: Connection, campaign_id: int, cell_row: int, run: ImportedRun, sequence: int) -> None:
    result, detail = run.result, run.result.detail
    run_id = inserted(
        db,
        insert(runs).values(
            campaign_id=campaign_id,
            cell_id=cell_row,
            replicate=run.replicate,
            sequence=sequence,
            state=RunState.DONE,
            outcome=detail.outcome,
            tries=1,
        ),
    )
    attempt_id = inserted(
        db,
        insert(attempts).values(
            run_id=run_id,
            campaign_id=campaign_id,
            number=1,
            token="",
            state=AttemptState.ENDED,
            hosts=",".join(run.hosts),
            order_document="{}",
            worker="",
            created=run.started,
            claimed=run.started,
            ended=run.ended,
            outcome=detail.outcome,
            kind=detail.kind,
            result_document=to_json(replace(result, raw=())),
        ),
    )
    db.execute(runs.update().where(runs.c.id == run_id).values(accepted_attempt=attempt_id))
    for output in result.raw:
        content = zlib.compress(output.content)
        size, digest = len(output.content), sha256(output.content).hexdigest()
        db.execute(
            insert(raw_outputs).values(
                attempt_id=attempt_id, name=output.name, size=size, sha256=digest, content=content
            )
        )
