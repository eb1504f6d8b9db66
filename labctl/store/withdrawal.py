"""Attempts given back before anybody has begun them, and what a cancelled attempt gives back."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, func, select, update

from labctl import clock
from labctl.model.outcome import AttemptState, CampaignState, OutcomeDetail, RunState
from labctl.model.result import AttemptResult
from labctl.spec.documents import to_json
from labctl.store.tables import attempts, campaigns, leases, runs

_THESE = attempts.c.id.in_(bindparam("these", expanding=True))
_SENT = select(attempts.c.id).where(
    attempts.c.state == AttemptState.SENT, attempts.c.campaign_id == bindparam("campaign")
)
_GIVE_UP = (
    update(attempts)
    .where(_THESE, attempts.c.state == AttemptState.SENT)
    .values(
        state=AttemptState.LOST,
        ended=bindparam("at"),
        outcome=bindparam("with_outcome"),
        kind=bindparam("of_kind"),
        result_document=bindparam("document"),
    )
    .returning(attempts.c.id, attempts.c.run_id, attempts.c.campaign_id)
)
_FREE = delete(leases).where(leases.c.attempt_id.in_(bindparam("these", expanding=True)))
_UNCOUNT = update(runs).where(runs.c.id.in_(select(attempts.c.run_id).where(_THESE))).values(tries=runs.c.tries - 1)
_GIVEN = (
    select(attempts.c.campaign_id, func.sum(attempts.c.estimate).label("seconds"))
    .join(leases, leases.c.attempt_id == attempts.c.id)
    .where(_THESE, leases.c.resource.startswith("machine:"))
    .group_by(attempts.c.campaign_id)
)
"""The machine seconds that campaigns were given for attempts which still have their leases."""
_TAKE_SHARE = (
    update(campaigns).where(campaigns.c.id == bindparam("campaign")).values(share=campaigns.c.share - bindparam("less"))
)
_STATE = select(campaigns.c.state).where(campaigns.c.id == bindparam("campaign"))
_SEND_BACK = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(state=RunState.PENDING, not_before=0.0, retried=runs.c.tries > 0)
)
_RECORD = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(state=RunState.DONE, outcome=bindparam("with_outcome"), accepted_attempt=bindparam("attempt"))
)


def sent_attempts(db: Connection, campaign_id: int) -> tuple[int, ...]:
    """Ids of the attempts of a campaign that nobody has claimed yet."""
    return tuple(db.execute(_SENT, {"campaign": campaign_id}).scalars())


def withdraw_sent(db: Connection, attempt_ids: Sequence[int], why: OutcomeDetail) -> None:
    """Give back those of the attempts that nobody has claimed: nothing of them was begun, so that their hosts are free at
    once and their runs wait again, at no try. The run of a campaign that was cancelled ends instead."""
    if not attempt_ids:
        return
    given_up = db.execute(
        _GIVE_UP,
        {
            "these": list(attempt_ids),
            "at": clock.now(),
            "with_outcome": why.outcome,
            "of_kind": why.kind,
            "document": to_json(AttemptResult(detail=why)),
        },
    ).all()
    if not given_up:
        return
    ids = [row.id for row in given_up]
    uncount(db, ids)
    db.execute(_FREE, {"these": ids})
    for row in given_up:
        if db.execute(_STATE, {"campaign": row.campaign_id}).scalar_one() == CampaignState.CANCELLED:
            db.execute(_RECORD, {"run": row.run_id, "with_outcome": why.outcome, "attempt": row.id})
        else:
            db.execute(_SEND_BACK, {"run": row.run_id})


def uncount(db: Connection, attempt_ids: Sequence[int]) -> None:
    """Make attempts that still have their leases no tries of their runs, and nothing that their campaigns were given."""
    these = {"these": list(attempt_ids)}
    db.execute(_UNCOUNT, these)
    less = [{"campaign": row.campaign_id, "less": row.seconds} for row in db.execute(_GIVEN, these)]
    if less:
        db.execute(_TAKE_SHARE, less)
