"""Campaigns as they are submitted, with their cells and runs, and runs added later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from labctl import clock
from labctl.errors import SpecError
from labctl.model.campaign import Campaign, PlannedCell
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, Purpose, RunState
from labctl.spec.documents import to_json
from labctl.store.room import Room, inserted, least_share, same_content
from labctl.store.tables import campaigns, cells, documents, runs

_BATCH = 1000


class Submission(Room):
    """The part of the store that is about submitting."""

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
        with self._db.writing() as db:
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
                    versions=json.dumps(dict(versions)),
                    digest=digest,
                    purpose=purpose,
                    priority=campaign.priority,
                    share=least_share(db, lab.name),
                ),
            )
            db.execute(
                insert(documents).values(
                    campaign_id=campaign_id,
                    campaign_text=campaign_text,
                    lab_text=lab_text,
                    campaign_document=to_json(campaign),
                    lab_document=to_json(lab),
                )
            )
            applicable = _insert_cells(db, campaign_id, cells)
            _insert_runs(db, campaign_id, applicable, order)
        return campaign_id

    def refuse_second(self, digest: str) -> None:
        """Raise `SpecError` when a campaign with this content has not ended."""
        with self._db.reading() as db:
            _refuse_second(db, digest)

    def add_runs(
        self, campaign_id: int, cell_id: str, replicates: Iterable[int], *, budget: float | None = None
    ) -> int:
        """Add further runs of a cell at the end of the order of work. Replicates that are there already are left alone.
        Returns how many were added.

        None is when the campaign has ended, or when all that were added to it, these among them, would take more seconds
        than the `budget`: each as many as those of its cell did on average.
        """
        with self._db.writing() as db:
            campaign = db.execute(
                select(campaigns.c.state, campaigns.c.added).where(campaigns.c.id == campaign_id)
            ).one()
            if CampaignState(campaign.state).ended:
                return 0
            cell = db.execute(
                select(cells.c.id, cells.c.timed, cells.c.seconds).where(
                    cells.c.campaign_id == campaign_id, cells.c.cell == cell_id
                )
            ).one()
            there = set(db.execute(select(runs.c.replicate).where(runs.c.cell_id == cell.id)).scalars())
            last = db.execute(select(func.max(runs.c.sequence)).where(runs.c.campaign_id == campaign_id)).scalar() or 0
            new = [replicate for replicate in replicates if replicate not in there]
            added = campaign.added + len(new) * (cell.seconds / cell.timed if cell.timed else 0.0)
            if not new or (budget is not None and added > budget):
                return 0
            db.execute(
                insert(runs), [_run(campaign_id, cell.id, replicate, last + 1 + at) for at, replicate in enumerate(new)]
            )
            db.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(added=added))
        return len(new)


def _refuse_second(db: Connection, digest: str) -> None:
    same = same_content(db, digest)
    if same:
        raise SpecError(
            f"Campaign {same[-1].id} ({same[-1].name}) measures the same in the same lab and is {same[-1].state}. "
            "Nothing was submitted.",
            why="A second one would double the work, and the figures of neither would gain by it.",
            todo=f"Look at it with `labctl status {same[-1].id}`, or submit it a second time with --again.",
        )


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
