"""Records: a whole campaign for reports, raw outputs, and keeping house."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, func, select, update

from labctl import clock
from labctl.model.outcome import OutcomeDetail, Purpose, RunState
from labctl.model.result import AttemptResult, CampaignRecord, CellRecord, EventRecord, RawOutput, RunRecord
from labctl.spec.documents import from_json
from labctl.store.room import Room, campaign_row
from labctl.store.tables import attempts, campaigns, cells, documents, events, raw_outputs, runs
from labctl.store.values import Contents


class Records(Room):
    """The part of the store that reports read, and that keeps it small."""

    def record(self, campaign_id: int) -> CampaignRecord:
        """A campaign with everything that a report needs, in one consistent snapshot; without raw outputs."""
        with self._db.reading() as db:
            head = campaign_row(db, campaign_id)
            files = db.execute(select(documents).where(documents.c.campaign_id == campaign_id)).one()
            cell_rows = db.execute(
                select(cells).where(cells.c.campaign_id == campaign_id).order_by(cells.c.position)
            ).all()
            run_rows = db.execute(select(runs).where(runs.c.campaign_id == campaign_id).order_by(runs.c.sequence)).all()
            attempt_rows = db.execute(
                select(attempts).where(attempts.c.campaign_id == campaign_id).order_by(attempts.c.id)
            ).all()
            event_rows = db.execute(_events_of(head)).all()
        by_run: dict[int, list[Row[Any]]] = {}
        for row in attempt_rows:
            by_run.setdefault(row.run_id, []).append(row)
        names = {row.id: row.cell for row in cell_rows}
        return CampaignRecord(
            id=head.id,
            name=head.name,
            state=head.state,
            why=head.why,
            lab=head.lab,
            submitted=head.submitted,
            started=head.started,
            ended=head.ended,
            campaign_text=files.campaign_text,
            lab_text=files.lab_text,
            document=json.loads(files.campaign_document),
            lab_document=json.loads(files.lab_document),
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
            events=tuple(EventRecord(at=row.at, kind=row.kind, what=row.what) for row in event_rows),
        )

    def raw(self, attempt_id: int) -> tuple[RawOutput, ...]:
        """The captured outputs of an attempt that have not been pruned."""
        kept = raw_outputs.c.attempt_id == attempt_id, raw_outputs.c.content.is_not(None)
        with self._db.reading() as db:
            rows = db.execute(select(raw_outputs).where(*kept).order_by(raw_outputs.c.id)).all()
        return tuple(RawOutput(name=row.name, content=zlib.decompress(row.content)) for row in rows)

    def prune_raw(self, *, older_than: float, limit: int = 1000) -> tuple[int, int]:
        """Forget the content of raw outputs of attempts that ended before `older_than` (epoch seconds); their names, sizes
        and hashes stay. Returns how many, and how many bytes they were stored in.

        At most `limit` of them, so that nobody waits long for the store: it is called until nothing is left.
        """
        old = raw_outputs.c.attempt_id.in_(select(attempts.c.id).where(attempts.c.ended < older_than))
        there = old & raw_outputs.c.content.is_not(None)
        size = func.length(raw_outputs.c.content)
        with self._db.writing() as db:
            rows = db.execute(select(raw_outputs.c.id, size.label("size")).where(there).limit(limit))
            sizes = {row.id: int(row.size) for row in rows}
            if sizes:
                forget = update(raw_outputs).where(raw_outputs.c.id.in_(sizes))
                db.execute(forget.values(content=None, pruned=clock.now()))
        return len(sizes), sum(sizes.values())

    def contents(self) -> Contents:
        """How much is in the store."""
        numbers = {table.name: select(func.count()).select_from(table) for table in (campaigns, runs, attempts)}
        kept = select(func.count(), func.coalesce(func.sum(func.length(raw_outputs.c.content)), 0)).where(
            raw_outputs.c.content.is_not(None)
        )
        forgotten = select(func.count()).where(raw_outputs.c.content.is_(None))
        with self._db.reading() as db:
            raw, raw_bytes = db.execute(kept).one()
            return Contents(
                **{name: db.execute(number).scalar_one() for name, number in numbers.items()},
                raw=raw,
                raw_bytes=int(raw_bytes),
                forgotten=db.execute(forgotten).scalar_one(),
            )

    def reclaimable(self) -> tuple[int, int]:
        """(bytes that `vacuum` would give back, bytes of the whole database); (0, 0) where the server sees to it."""
        if not self._db.is_sqlite:
            return 0, 0
        with self._db.reading() as db:
            free, pages, size = (
                int(db.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("freelist_count", "page_count", "page_size")
            )
        return free * size, pages * size

    def vacuum(self) -> None:
        """Give the space of what was forgotten back to the file system. Writers wait meanwhile, and it needs as much space
        again as the database has. A database server sees to it by itself."""
        self._db.vacuum()


def _events_of(head: Row[Any]) -> Select[Any]:
    """What happened in a campaign, and in its lab between its submission and its end."""
    in_lab = (events.c.scope == f"lab-{head.lab}") & (events.c.at >= head.submitted)
    if head.ended is not None:
        in_lab &= events.c.at <= head.ended
    return select(events).where((events.c.campaign_id == head.id) | in_lab).order_by(events.c.at, events.c.id)


def _run_record(row: Row[Any], cell: str, tried: Sequence[Row[Any]]) -> RunRecord:
    accepted, used = None, ""
    earlier: list[AttemptResult] = []
    for attempt in tried:
        if attempt.result_document is None:
            continue
        result = from_json(AttemptResult, attempt.result_document)
        if attempt.id == row.accepted_attempt:
            accepted, used = result, attempt.hosts
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
        purpose=Purpose(row.purpose),
        attempts=len(tried),
        started=min(claimed) if claimed else None,
        ended=max(ended) if ended and row.state == RunState.DONE else None,
        result=accepted,
        earlier=tuple(earlier),
        hosts=tuple(used.split(",")) if used else (),
        unrun=from_json(OutcomeDetail, row.detail) if row.detail else None,
    )
