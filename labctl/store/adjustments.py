"""Adjustments: settings of hosts, recorded with what they were before they are changed, until they are restored.

An adjustment belongs to one attempt. While the attempt is in progress only its worker restores it; afterwards whoever has
taken it, one at a time. An attempt that changes a setting which another one has left changed takes that adjustment over:
what the setting was at first stays on record, and what the earlier attempt has set is never taken for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, insert, or_, select, update

from labctl import clock
from labctl.errors import LabError
from labctl.store.room import IN_PROGRESS, Room, require_claimed
from labctl.store.tables import OPEN, adjustments, attempts
from labctl.store.values import Adjustment, Change

TAKEN_SECONDS = 300.0
"""For how long somebody who has taken an adjustment may be about to restore it. Restoring has a much shorter deadline, so
who has not said by then what came of it is dead."""

_RECORD = insert(adjustments)
_FIND = select(adjustments).where(
    adjustments.c.lab == bindparam("of_lab"),
    adjustments.c.host == bindparam("of_host"),
    adjustments.c.adapter == bindparam("of_adapter"),
    adjustments.c.name == bindparam("of_name"),
    OPEN,
)
_TAKE_OVER = (
    update(adjustments)
    .where(adjustments.c.id == bindparam("adjustment"))
    .values(attempt_id=bindparam("by_attempt"), asked=bindparam("to"), taken=None, why="")
)
_IS_IDLE = adjustments.c.attempt_id.not_in(select(attempts.c.id).where(attempts.c.state.in_(IN_PROGRESS)))
_OPEN_ONE = and_(adjustments.c.id == bindparam("adjustment"), adjustments.c.attempt_id == bindparam("of_attempt"), OPEN)
_TAKE = (
    update(adjustments)
    .where(_OPEN_ONE, _IS_IDLE, or_(adjustments.c.taken.is_(None), adjustments.c.taken < bindparam("long_ago")))
    .values(taken=bindparam("now"))
)
_CLOSE = update(adjustments).where(_OPEN_ONE).values(restored=bindparam("now"), taken=None, why="")
_EXPLAIN = update(adjustments).where(_OPEN_ONE).values(taken=None, why=bindparam("because"))


class Adjustments(Room):
    """The part of the store that is about settings of hosts which are to be restored."""

    def record_adjustments(
        self, lab: str, attempt_id: int, changes: Sequence[Change], *, durable: bool = True
    ) -> tuple[Adjustment, ...]:
        """Record settings that an attempt is about to change, all of them or none. A setting that is open already becomes
        this attempt's, and keeps what it was at first.

        `durable` is as for `record_vm`. Raises `AttemptCancelled` when the attempt was given up, and `LabError`
        (`settings-busy`) while somebody else is restoring one of the settings, or another attempt in progress has it.
        """
        with self._db.writing(durable=durable) as db:
            require_claimed(db, attempt_id)
            for change in changes:
                _record(db, lab, attempt_id, change)
        return self.adjustments_of(attempt_id)

    def adjustments_of(self, attempt_id: int) -> tuple[Adjustment, ...]:
        """The open adjustments of an attempt, oldest first."""
        return self._adjustments(and_(adjustments.c.attempt_id == attempt_id, OPEN))

    def open_adjustments(self, lab: str | None = None, *, host: str | None = None) -> tuple[Adjustment, ...]:
        """All open adjustments of a lab, or of all labs; of one host, or of all."""
        return self._adjustments(and_(OPEN, *_of(lab, host)))

    def idle_adjustments(self, lab: str, *, host: str | None = None) -> tuple[Adjustment, ...]:
        """Open adjustments of a lab, or of one host, whose attempt is no longer in progress: to be restored by anyone."""
        return self._adjustments(and_(OPEN, _IS_IDLE, *_of(lab, host)))

    def take_adjustment(self, adjustment: Adjustment) -> bool:
        """Be the one who restores what an attempt has left. False when somebody else is, when it has been done, or when
        an attempt in progress has the setting now."""
        now = clock.now()
        asked = _named(adjustment) | {"now": now, "long_ago": now - TAKEN_SECONDS}
        with self._db.writing() as db:
            return db.execute(_TAKE, asked).rowcount == 1

    def close_adjustment(self, adjustment: Adjustment) -> None:
        """The setting is what it was before. Nothing is changed when another attempt has it by now."""
        with self._db.writing() as db:
            db.execute(_CLOSE, _named(adjustment) | {"now": clock.now()})

    def explain_adjustment(self, adjustment: Adjustment, *, why: str) -> None:
        """The setting could not be restored, for this reason; others may try again."""
        with self._db.writing() as db:
            db.execute(_EXPLAIN, _named(adjustment) | {"because": why})

    def _adjustments(self, condition: Any) -> tuple[Adjustment, ...]:  # noqa: ANN401 - an SQL expression
        query = select(adjustments).where(condition).order_by(adjustments.c.id)
        with self._db.reading() as db:
            return tuple(_adjustment(row) for row in db.execute(query).all())


def _record(db: Connection, lab: str, attempt_id: int, change: Change) -> None:
    key = {"of_lab": lab, "of_host": change.host, "of_adapter": change.adapter, "of_name": change.name}
    found = db.execute(_FIND, key).first()
    if found is None:
        row = change.__dict__ | {"lab": lab, "attempt_id": attempt_id, "recorded": clock.now()}
        db.execute(_RECORD, row)
        return
    if found.attempt_id != attempt_id:
        _require_idle(db, found)
    db.execute(_TAKE_OVER, {"adjustment": found.id, "by_attempt": attempt_id, "to": change.asked})


def _require_idle(db: Connection, found: Row[Any]) -> None:
    """Raise when the setting is another attempt's, or is just being restored."""
    idle = db.execute(select(adjustments.c.id).where(adjustments.c.id == found.id, _IS_IDLE)).first() is not None
    if idle and (found.taken is None or found.taken < clock.now() - TAKEN_SECONDS):
        return
    raise LabError(
        f"{found.name} of host {found.host} can't be changed now.",
        kind="settings-busy",
        why="It is being restored to what it was before an earlier attempt."
        if idle
        else f"Attempt {found.attempt_id} has changed it and is in progress.",
        host=found.host,
    )


def _of(lab: str | None, host: str | None) -> Iterable[Any]:
    if lab is not None:
        yield adjustments.c.lab == lab
    if host is not None:
        yield adjustments.c.host == host


def _named(adjustment: Adjustment) -> dict[str, Any]:
    return {"adjustment": adjustment.id, "of_attempt": adjustment.attempt_id}


def _adjustment(row: Row[Any]) -> Adjustment:
    return Adjustment(**{name: getattr(row, name) for name in Adjustment.__dataclass_fields__})
