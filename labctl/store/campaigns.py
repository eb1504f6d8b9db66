"""Campaigns as they are listed, ranked and changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, exists, func, select, update

from labctl import clock
from labctl.model.outcome import CampaignState, Purpose, RunState
from labctl.store.room import Room, campaign_row, least_share, newest_attempt, same_content
from labctl.store.tables import campaigns, runs
from labctl.store.values import NOT_WANTED, CampaignHead, CampaignLine, QueuedCampaign
from labctl.store.withdrawal import sent_attempts, withdraw_sent

_HEAD = select(campaigns).where(campaigns.c.id == bindparam("campaign"))
_QUEUE = (
    select(campaigns.c.id, campaigns.c.lab, campaigns.c.priority, campaigns.c.share, campaigns.c.purpose,
           campaigns.c.hold)
    .where(campaigns.c.state == CampaignState.ACTIVE)
    .order_by(campaigns.c.priority.desc(), campaigns.c.share, campaigns.c.id)
)  # fmt: skip
_FINISH = (
    update(campaigns)
    .where(
        campaigns.c.id == bindparam("campaign"),
        campaigns.c.state == CampaignState.ACTIVE,
        ~exists().where(
            runs.c.campaign_id == bindparam("campaign"), runs.c.state.in_([RunState.PENDING, RunState.ACTIVE])
        ),
    )
    .values(state=CampaignState.DONE, stop_attempts=False, why="", hold="", ended=bindparam("at"))
)


class Campaigns(Room):
    """The part of the store that is about campaigns."""

    def same_content(self, digest: str) -> tuple[int, ...]:
        """Ids of the campaigns with this content that have not ended, oldest first."""
        with self._db.reading() as db:
            return tuple(row.id for row in same_content(db, digest))

    def newest_of_name(self, lab: str, name: str, purpose: Purpose) -> int | None:
        """The id of the campaign of a lab with this name and purpose that was submitted last, whatever became of it."""
        wanted = campaigns.c.lab == lab, campaigns.c.name == name, campaigns.c.purpose == purpose
        query = select(func.max(campaigns.c.id)).where(*wanted)
        with self._db.reading() as db:
            return db.execute(query).scalar()

    def newest_campaign(self) -> int | None:
        """The id of the campaign that was submitted last; labctl's own health checks are none."""
        query = select(func.max(campaigns.c.id)).where(campaigns.c.purpose != Purpose.HEALTH)
        with self._db.reading() as db:
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
        with self._db.reading() as db:
            return {row.lab: row.newest for row in db.execute(query)}

    def head(self, campaign_id: int) -> CampaignHead:
        """A campaign without its runs. Raises `SpecError` when there is none of this id."""
        with self._db.reading() as db:
            row = _head_row(db, campaign_id)
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
        with self._db.reading() as db:
            return {row.id: row.ended for row in db.execute(query.order_by(campaigns.c.ended))}

    def state(self, campaign_id: int) -> CampaignState:
        """Where a campaign stands."""
        with self._db.reading() as db:
            return CampaignState(_head_row(db, campaign_id).state)

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

        One that is no longer active begins nothing more: attempts that nobody has claimed are given back, at no try of their
        runs. `stop_attempts` asks the others to end at their next step; `why` is kept for people. One that is
        made active again begins with the share of those that are, and one that had ended also with its troubles forgiven.
        A campaign that stands in none of `only_from` is left as it is.
        """
        values: dict[str, Any] = {"state": state, "stop_attempts": stop_attempts, "why": why, "hold": ""}
        if state.ended:
            values["ended"] = clock.now()
        elif state is CampaignState.ACTIVE:
            values["ended"] = None
        with self._db.writing() as db:
            before = _head_row(db, campaign_id)
            if before.state not in only_from:
                return False
            if state is CampaignState.ACTIVE and before.state != state:
                values["share"] = max(before.share, least_share(db, before.lab))
                if CampaignState(before.state).ended:
                    values["forgiven"] = newest_attempt(campaign_id)
            if state is not CampaignState.ACTIVE:
                withdraw_sent(db, sent_attempts(db, campaign_id), NOT_WANTED)
            db.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(**values))
        return bool(before.state != state)

    def finish(self, campaign_id: int) -> bool:
        """End an active campaign all of whose runs are done. False, and nothing is changed, when it has others or is not
        active."""
        with self._db.writing() as db:
            return db.execute(_FINISH, {"campaign": campaign_id, "at": clock.now()}).rowcount == 1

    def raise_share(self, campaign_id: int, least: float) -> None:
        """Have a campaign take its turns as if it had been given so much at least (machine seconds)."""
        given_less = campaigns.c.id == campaign_id, campaigns.c.share < least
        with self._db.writing() as db:
            db.execute(update(campaigns).where(*given_less).values(share=least))

    def set_hold(self, campaign_id: int, hold: str) -> None:
        """Say what keeps an active campaign from starting runs now; empty: nothing does."""
        active = campaigns.c.id == campaign_id, campaigns.c.state == CampaignState.ACTIVE
        with self._db.writing() as db:
            db.execute(update(campaigns).where(*active).values(hold=hold))

    def set_priority(self, campaign_id: int, priority: int) -> None:
        """Change a campaign's priority."""
        with self._db.writing() as db:
            campaign_row(db, campaign_id)
            db.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(priority=priority))

    def queue(self) -> tuple[QueuedCampaign, ...]:
        """All active campaigns: those of a higher priority first, then those that were given less, then older ones."""
        with self._db.reading() as db:
            rows = db.execute(_QUEUE).all()
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
        with self._db.reading() as db:
            rows = db.execute(select(campaigns).order_by(campaigns.c.id.desc())).all()
            counts: dict[int, dict[str, int]] = {}
            grouped = select(runs.c.campaign_id, runs.c.state, runs.c.outcome, func.count()).group_by(
                runs.c.campaign_id, runs.c.state, runs.c.outcome
            )
            for campaign_id, state, outcome, count in db.execute(grouped):
                counts.setdefault(campaign_id, {})[outcome or state] = count
        return tuple(_line(row, counts.get(row.id, {})) for row in rows)


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


def _head_row(db: Connection, campaign_id: int) -> Row[Any]:
    row = db.execute(_HEAD, {"campaign": campaign_id}).first()
    return row if row is not None else campaign_row(db, campaign_id)
