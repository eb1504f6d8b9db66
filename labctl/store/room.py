"""What the parts of the store share: the engine, and small helpers of SQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, and_, select

from labctl.errors import AttemptCancelled, SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState
from labctl.spec.documents import from_json
from labctl.store.tables import attempts, campaigns
from labctl.store.values import AttemptHandle

IN_PROGRESS = (AttemptState.SENT, AttemptState.CLAIMED)
_KEPT_DOCUMENTS = 64


class Room:
    """A part of the store. Campaign and lab documents never change once stored, so they are read once a process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._documents: dict[int, tuple[Campaign, Lab]] = {}

    def _documents_of(self, db: Connection, campaign_id: int) -> tuple[Campaign, Lab]:
        found = self._documents.get(campaign_id)
        if found is None:
            row = db.execute(
                select(campaigns.c.campaign_document, campaigns.c.lab_document).where(campaigns.c.id == campaign_id)
            ).one()
            found = from_json(Campaign, row.campaign_document), from_json(Lab, row.lab_document)
            if len(self._documents) >= _KEPT_DOCUMENTS:
                self._documents.clear()
            self._documents[campaign_id] = found
        return found


def campaign_row(db: Connection, campaign_id: int) -> Row[Any]:
    """The row of a campaign, or `SpecError`."""
    row = db.execute(select(campaigns).where(campaigns.c.id == campaign_id)).first()
    if row is None:
        raise SpecError(
            f"There is no campaign {campaign_id} in this store.", todo="`labctl status` lists the campaigns."
        )
    return row


def held(handle: AttemptHandle, state: AttemptState) -> ColumnElement[bool]:
    """The attempt of this handle, if its token is still good and it stands where it should."""
    return and_(attempts.c.id == handle.id, attempts.c.token == handle.token, attempts.c.state == state)


def require_claimed(db: Connection, attempt_id: int) -> None:
    """Raise `AttemptCancelled` when an attempt is no longer its worker's: it must not touch the lab any more."""
    state = db.execute(select(attempts.c.state).where(attempts.c.id == attempt_id)).scalar_one()
    if state != AttemptState.CLAIMED:
        raise AttemptCancelled("The attempt was given up.", why="Its worker was silent for too long.")


def inserted(db: Connection, statement: Any) -> int:  # noqa: ANN401 - an SQL expression
    """Insert one row and return its id."""
    key = db.execute(statement).inserted_primary_key
    assert key is not None
    return int(key[0])
