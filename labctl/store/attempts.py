"""Attempts in progress: started with their leases, claimed by a worker, kept alive."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, exists, func, insert, or_, select, update

from labctl import clock
from labctl.model.order import RunOrder
from labctl.model.outcome import AttemptState, CampaignState, RunState
from labctl.spec.documents import from_json, to_json
from labctl.store.room import IN_PROGRESS, Room, held, shown
from labctl.store.tables import attempts, campaigns, leases, runs
from labctl.store.values import NOT_WANTED, AttemptHandle, AttemptStart, ClaimedAttempt, Sign
from labctl.store.withdrawal import withdraw_sent

_WANTED = (
    select(runs.c.id, runs.c.campaign_id, runs.c.state, campaigns.c.state.label("campaign_state"))
    .join(campaigns, campaigns.c.id == runs.c.campaign_id)
    .where(runs.c.id.in_(bindparam("runs", expanding=True)))
)
"""Asked for nothing else: with conditions on states SQLite goes through all pending runs of the campaign instead."""
_HELD = select(leases.c.resource).where(
    leases.c.lab == bindparam("lab"), leases.c.resource.in_(bindparam("resources", expanding=True))
)
_NUMBERS = (
    select(attempts.c.run_id, func.max(attempts.c.number).label("number"))
    .where(attempts.c.run_id.in_(bindparam("runs", expanding=True)))
    .group_by(attempts.c.run_id)
)
_NEWEST = select(func.coalesce(func.max(attempts.c.id), 0))
_MAKE_ACTIVE = (
    update(runs)
    .where(runs.c.id.in_(bindparam("runs", expanding=True)), runs.c.state == RunState.PENDING)
    .values(state=RunState.ACTIVE, tries=runs.c.tries + 1)
)
_CREATE = insert(attempts)
_LEASE = insert(leases)
_GIVE_SHARE = (
    update(campaigns)
    .where(campaigns.c.id == bindparam("campaign"))
    .values(
        share=campaigns.c.share + bindparam("more"),
        started=func.coalesce(campaigns.c.started, bindparam("first_start")),
    )
)
_CLAIM = (
    update(attempts)
    .where(
        held(AttemptState.SENT),
        or_(attempts.c.claim_by.is_(None), attempts.c.claim_by >= bindparam("at")),
        exists().where(campaigns.c.id == attempts.c.campaign_id, campaigns.c.state == CampaignState.ACTIVE),
    )
    .values(
        state=AttemptState.CLAIMED,
        worker=bindparam("by_worker"),
        claimed=bindparam("at"),
        heartbeat=bindparam("at"),
        beats=1,
    )
    .returning(attempts.c.number, attempts.c.run_id, attempts.c.campaign_id, attempts.c.order_document)
)
_STILL_SENT = select(attempts.c.id).where(held(AttemptState.SENT))
_BEAT = (
    update(attempts)
    .where(held(AttemptState.CLAIMED))
    .values(heartbeat=bindparam("at"), beats=attempts.c.beats + 1, phase=bindparam("in_phase"))
)
_STOP_WANTED = (
    select(campaigns.c.stop_attempts)
    .join(attempts, attempts.c.campaign_id == campaigns.c.id)
    .where(held(AttemptState.CLAIMED))
)
_SIGNS = select(attempts.c.id, attempts.c.state, attempts.c.beats, attempts.c.worker).where(
    attempts.c.state.in_(IN_PROGRESS)
)

_VOID = "its token is void: the attempt was given up as lost"


class Attempts(Room):
    """The part of the store that is about attempts in progress."""

    def start_attempts(self, lab: str, starts: Sequence[AttemptStart]) -> tuple[AttemptHandle | None, ...]:
        """For each: take the leases of all its resources and create the next attempt of its pending run, or do nothing.

        None stands for nothing: a resource is leased, the run is not pending any more, or its campaign is not active.
        All are one transaction, so that nobody sees a half of it.
        """
        if not starts:
            return ()
        with self._db.writing() as db:
            chosen = _choose(db, lab, starts)
            handles = _create(db, lab, [starts[at] for at in chosen], tuple(chosen.values())) if chosen else []
        found = dict(zip(chosen, handles, strict=True))
        return tuple(found.get(at) for at in range(len(starts)))

    def claim(self, handle: AttemptHandle, *, worker: str) -> ClaimedAttempt | None:
        """Make an attempt that was sent this worker's, once. None when its message came twice or its token is void.

        None is also when its campaign is no longer active, or it would not end before the window closes any more: the
        attempt is given back then, at no try of its run.
        """
        with self._db.writing(alone=False) as db:
            row = db.execute(_CLAIM, shown(handle) | {"by_worker": worker, "at": clock.now()}).first()
            if row is not None:
                _, lab = self._documents_of(db, row.campaign_id)
        if row is None:
            self._give_back(handle)
            return None
        return ClaimedAttempt(
            id=handle.id,
            token=handle.token,
            number=row.number,
            run_id=row.run_id,
            campaign_id=row.campaign_id,
            order=from_json(RunOrder, row.order_document),
            lab=lab,
        )

    def _give_back(self, handle: AttemptHandle) -> None:
        """Its message has been used up, so nobody else will claim it."""
        with self._db.writing() as db:
            withdraw_sent(db, db.execute(_STILL_SENT, shown(handle)).scalars().all(), NOT_WANTED)

    def heartbeat(self, handle: AttemptHandle, *, phase: str) -> str:
        """Say that an attempt lives, and in which phase. Returns why it must end, or an empty string."""
        with self._db.writing(alone=False) as db:
            beaten = db.execute(_BEAT, shown(handle) | {"at": clock.now(), "in_phase": phase})
            return _reason_to_end(db, handle) if beaten.rowcount == 1 else _VOID

    def holds_token(self, handle: AttemptHandle) -> bool:
        """Whether an attempt is still its worker's."""
        with self._db.reading() as db:
            return db.execute(_STOP_WANTED, shown(handle)).first() is not None

    def signs(self, campaign_id: int | None = None) -> tuple[Sign, ...]:
        """A sign of life of each attempt in progress."""
        query = _SIGNS if campaign_id is None else _SIGNS.where(attempts.c.campaign_id == campaign_id)
        with self._db.reading() as db:
            rows = db.execute(query).all()
        return tuple(
            Sign(attempt_id=row.id, state=AttemptState(row.state), beats=row.beats, worker=row.worker) for row in rows
        )


def _choose(db: Connection, lab: str, starts: Sequence[AttemptStart]) -> dict[int, int]:
    """Which of them can be started side by side, as positions, with the ids of their campaigns; earlier ones first."""
    wanted = set().union(*(item.resources for item in starts))
    taken = set(db.execute(_HELD, {"lab": lab, "resources": sorted(wanted)}).scalars())
    rows = db.execute(_WANTED, {"runs": [item.run_id for item in starts]}).all()
    startable = RunState.PENDING, CampaignState.ACTIVE
    campaign_of = {row.id: row.campaign_id for row in rows if (row.state, row.campaign_state) == startable}
    chosen: dict[int, int] = {}
    for at, item in enumerate(starts):
        if item.run_id in campaign_of and not item.resources & taken:
            chosen[at] = campaign_of.pop(item.run_id)
            taken |= item.resources
    return chosen


def _create(
    db: Connection, lab: str, starts: Sequence[AttemptStart], campaign_ids: Sequence[int]
) -> list[AttemptHandle]:
    """Create attempts of runs that can be started, and take their leases. Ids are given here: nobody else writes now."""
    now = clock.now()
    run_ids = [item.run_id for item in starts]
    numbers = {row.run_id: row.number for row in db.execute(_NUMBERS, {"runs": run_ids})}
    newest: int = db.execute(_NEWEST).scalar_one()
    handles = [AttemptHandle(id=newest + 1 + at, token=uuid.uuid4().hex) for at in range(len(starts))]
    db.execute(_MAKE_ACTIVE, {"runs": run_ids})
    db.execute(
        _CREATE,
        [
            {
                "id": handle.id,
                "run_id": item.run_id,
                "campaign_id": campaign_id,
                "number": numbers.get(item.run_id, 0) + 1,
                "token": handle.token,
                "state": AttemptState.SENT,
                "hosts": ",".join(item.order.placement.hosts),
                "estimate": item.estimate,
                "claim_by": item.claim_by,
                "order_document": to_json(item.order),
                "created": now,
            }
            for item, handle, campaign_id in zip(starts, handles, campaign_ids, strict=True)
        ],
    )
    db.execute(
        _LEASE,
        [
            {
                "lab": lab,
                "resource": name,
                "attempt_id": handle.id,
                "token": handle.token,
                "taken": now,
                "expected": now + item.estimate,
            }
            for item, handle in zip(starts, handles, strict=True)
            for name in sorted(item.resources)
        ],
    )
    _give_share(db, starts, campaign_ids, now)
    return handles


def _give_share(db: Connection, starts: Sequence[AttemptStart], campaign_ids: Sequence[int], now: float) -> None:
    """Count the machine seconds that campaigns are given by these starts."""
    more: dict[int, float] = {}
    for item, campaign_id in zip(starts, campaign_ids, strict=True):
        machines = sum(name.startswith("machine:") for name in item.resources)
        more[campaign_id] = more.get(campaign_id, 0.0) + item.estimate * machines
    db.execute(
        _GIVE_SHARE,
        [{"campaign": campaign_id, "more": given, "first_start": now} for campaign_id, given in more.items()],
    )


def _reason_to_end(db: Connection, handle: AttemptHandle) -> str:
    stop = db.execute(_STOP_WANTED, shown(handle)).first()
    if stop is None:
        return _VOID
    return "the campaign was interrupted" if stop.stop_attempts else ""
