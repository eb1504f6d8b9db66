"""What the parts of the store share: the database, and small helpers of SQL.

Statements that every run needs are made once, as constants of their modules, with names for what changes (`bindparam`):
making one costs several times what it costs to carry it out.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, ScalarSelect, and_, bindparam, func, select

from labctl.errors import AttemptCancelled, SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState, CampaignState, Purpose
from labctl.spec.documents import from_json
from labctl.store.database import Database
from labctl.store.tables import attempts, campaigns, documents
from labctl.store.values import AttemptHandle

IN_PROGRESS = (AttemptState.SENT, AttemptState.CLAIMED)
_KEPT_DOCUMENTS = 64

_DOCUMENTS = select(documents.c.campaign_document, documents.c.lab_document).where(
    documents.c.campaign_id == bindparam("campaign")
)
_CAMPAIGN = select(campaigns).where(campaigns.c.id == bindparam("campaign"))
_STATE_OF_ATTEMPT = select(attempts.c.state).where(attempts.c.id == bindparam("attempt"))


class Room:
    """A part of the store. Campaign and lab documents never change once stored, so they are read once a process."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._documents: dict[int, tuple[Campaign, Lab]] = {}

    def _documents_of(self, db: Connection, campaign_id: int) -> tuple[Campaign, Lab]:
        found = self._documents.get(campaign_id)
        if found is None:
            row = db.execute(_DOCUMENTS, {"campaign": campaign_id}).one()
            found = from_json(Campaign, row.campaign_document), from_json(Lab, row.lab_document)
            if len(self._documents) >= _KEPT_DOCUMENTS:
                self._documents.clear()
            self._documents[campaign_id] = found
        return found


def campaign_row(db: Connection, campaign_id: int) -> Row[Any]:
    """The row of a campaign, or `SpecError`."""
    row = db.execute(_CAMPAIGN, {"campaign": campaign_id}).first()
    if row is None:
        raise SpecError(
            f"There is no campaign {campaign_id} in this store.", todo="`labctl status` lists the campaigns."
        )
    return row


def held(state: AttemptState) -> ColumnElement[bool]:
    """The attempt that `shown` names, if its token is still good and it stands where it should."""
    return and_(
        attempts.c.id == bindparam("of_attempt"), attempts.c.token == bindparam("by_token"), attempts.c.state == state
    )


def shown(handle: AttemptHandle) -> dict[str, Any]:
    """What a worker shows of its attempt, for statements with `held`."""
    return {"of_attempt": handle.id, "by_token": handle.token}


def require_claimed(db: Connection, attempt_id: int) -> None:
    """Raise `AttemptCancelled` when an attempt is no longer its worker's: it must not touch the lab any more."""
    if db.execute(_STATE_OF_ATTEMPT, {"attempt": attempt_id}).scalar_one() != AttemptState.CLAIMED:
        raise AttemptCancelled("The attempt was given up.", why="Its worker was silent for too long.")


def inserted(db: Connection, statement: Any) -> int:  # noqa: ANN401 - an SQL expression
    """Insert one row and return its id."""
    key = db.execute(statement).inserted_primary_key
    assert key is not None
    return int(key[0])


def newest_attempt(campaign_id: int) -> ScalarSelect[int]:
    """The id of a campaign's newest attempt, 0 without one, as part of a statement."""
    newest = select(func.coalesce(func.max(attempts.c.id), 0)).where(attempts.c.campaign_id == campaign_id)
    return newest.scalar_subquery()


def same_content(db: Connection, digest: str) -> list[Any]:
    """Campaigns with this content that have not ended, oldest first."""
    query = select(campaigns.c.id, campaigns.c.name, campaigns.c.state).where(campaigns.c.digest == digest)
    return [row for row in db.execute(query.order_by(campaigns.c.id)) if not CampaignState(row.state).ended]


def least_share(db: Connection, lab: str) -> float:
    """Where a campaign begins among the active ones of its lab: it is neither made up for the past nor put behind."""
    least = select(func.min(campaigns.c.share)).where(
        campaigns.c.lab == lab, campaigns.c.state == CampaignState.ACTIVE, campaigns.c.purpose != Purpose.HEALTH
    )
    return float(db.execute(least).scalar() or 0.0)
