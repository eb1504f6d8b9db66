"""How attempts end: with a result that becomes the run's, with the run going back, or given up as lost."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, insert, select, update

from labctl import clock
from labctl.model.outcome import AttemptState, CampaignState, HostState, Outcome, OutcomeDetail, RunState
from labctl.model.result import AttemptResult, RawOutput
from labctl.spec.documents import to_json
from labctl.store.room import IN_PROGRESS, Room, held, shown
from labctl.store.tables import OPEN, adjustments, attempts, campaigns, cells, hosts, leases, raw_outputs, runs, vms
from labctl.store.values import Accepted, After, AttemptHandle
from labctl.store.withdrawal import uncount

_END = (
    update(attempts)
    .where(held(AttemptState.CLAIMED))
    .values(
        state=AttemptState.ENDED,
        ended=bindparam("at"),
        outcome=bindparam("with_outcome"),
        kind=bindparam("of_kind"),
        blamed=bindparam("hosts_blamed"),
        result_document=bindparam("document"),
    )
    .returning(attempts.c.run_id, attempts.c.campaign_id, attempts.c.created)
)
_STATE_OF_CAMPAIGN = select(campaigns.c.state).where(campaigns.c.id == bindparam("campaign"))
_RECORD = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(
        state=RunState.DONE,
        outcome=bindparam("with_outcome"),
        accepted_attempt=bindparam("attempt"),
        tries=runs.c.tries - bindparam("uncounted"),
    )
)
_SEND_BACK = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(
        state=RunState.PENDING,
        not_before=bindparam("earliest"),
        tries=runs.c.tries - bindparam("uncounted"),
        retried=runs.c.tries > bindparam("uncounted"),
    )
)
_LEARN = (
    update(cells)
    .where(cells.c.id == select(runs.c.cell_id).where(runs.c.id == bindparam("run")).scalar_subquery())
    .values(timed=cells.c.timed + 1, seconds=cells.c.seconds + bindparam("took"))
)
_KEEP_RAW = insert(raw_outputs)
_FREE_IF_CLEAN = delete(leases).where(
    leases.c.attempt_id == bindparam("attempt"),
    ~exists().where(vms.c.attempt_id == bindparam("attempt"), vms.c.state == "live"),
    ~exists().where(adjustments.c.attempt_id == bindparam("attempt"), OPEN),
)
_FREE = delete(leases).where(leases.c.attempt_id == bindparam("attempt"))
_FORGIVE = (
    update(hosts)
    .where(hosts.c.lab == bindparam("of_lab"), hosts.c.host == bindparam("of_host"), hosts.c.strikes > 0)
    .values(strikes=0)
)
_LOST = (
    select(attempts.c.run_id, attempts.c.state, attempts.c.outcome, campaigns.c.state.label("campaign_state"))
    .join(campaigns, campaigns.c.id == attempts.c.campaign_id)
    .where(attempts.c.id == bindparam("attempt"))
)
_NEWER = exists().where(attempts.c.run_id == runs.c.id, attempts.c.id > bindparam("attempt"))
_WAITING_FOR = select(runs.c.id).where(runs.c.id == bindparam("run"), runs.c.state == RunState.ACTIVE, ~_NEWER)
"""The run of a lost attempt, if it still waits for what becomes of it."""


class Endings(Room):
    """The part of the store that is about how attempts end."""

    def accept(self, handle: AttemptHandle, result: AttemptResult, after: After) -> Accepted | None:
        """Store the result of a claimed attempt and free its leases. None, and nothing stored, when its token is void.

        With `after.again` the run goes back to be tried once more; else, or when its campaign was cancelled, the result
        becomes the run's, for good. While a VM of the attempt may still be there, its leases stay until `cleaned`.
        """
        now, detail = clock.now(), result.detail
        ended = shown(handle) | {
            "at": now,
            "with_outcome": detail.outcome,
            "of_kind": detail.kind,
            "hosts_blamed": ",".join(after.blamed),
            "document": to_json(replace(result, raw=())),
        }
        raw = [_raw_row(handle.id, output) for output in result.raw]
        with self._db.writing() as db:
            row = db.execute(_END, ended).first()
            if row is None:
                return None
            # A cancelled attempt is no try of its run.
            uncounted = int(detail.outcome is Outcome.CANCELLED)
            if after.again and _goes_on(db, row.campaign_id):
                _send_back(db, row.run_id, after.not_before, uncounted=uncounted)
            else:
                _record(db, row.run_id, detail.outcome, handle.id, uncounted=uncounted)
            if detail.outcome in (Outcome.OK, Outcome.FAILED):
                db.execute(_LEARN, {"run": row.run_id, "took": _seconds(result, created=row.created, ended=now)})
            if raw:
                db.execute(_KEEP_RAW, raw)
            db.execute(_FREE_IF_CLEAN, {"attempt": handle.id})
            _, lab = self._documents_of(db, row.campaign_id)
            return Accepted(quarantined=_judge_hosts(db, lab.name, detail, after))

    def lose_attempts(
        self,
        attempt_ids: Sequence[int],
        why: OutcomeDetail,
        *,
        states: Sequence[AttemptState] = IN_PROGRESS,
    ) -> tuple[int, ...]:
        """Give up attempts of which it is known that nobody works on them any more: void their tokens. Returns the ids
        of those that this call gave up.

        Those that are no longer in one of `states` are left alone. Their leases stay until `cleaned` says that their
        VMs are gone. With the outcome `cancelled` an attempt doesn't count as one of its run's tries, and what its campaign
        was given for it is given back.
        """
        if not attempt_ids:
            return ()
        lose = (
            update(attempts)
            .where(attempts.c.id.in_(list(attempt_ids)), attempts.c.state.in_(list(states)))
            .values(
                state=AttemptState.LOST,
                ended=clock.now(),
                outcome=why.outcome,
                kind=why.kind,
                result_document=to_json(AttemptResult(detail=why)),
            )
            .returning(attempts.c.id)
        )
        with self._db.writing() as db:
            lost = tuple(sorted(db.execute(lose).scalars()))
            if lost and why.outcome is Outcome.CANCELLED:
                uncount(db, lost)
        return lost

    def lost_attempts(self, *, lab: str | None = None) -> tuple[int, ...]:
        """Attempts that were given up, or ended and left VMs or adjustments behind, and still hold leases for that."""
        query = (
            select(attempts.c.id)
            .distinct()
            .join(leases, leases.c.attempt_id == attempts.c.id)
            .where(attempts.c.state.in_([AttemptState.LOST, AttemptState.ENDED]))
        )
        if lab is not None:
            query = query.where(leases.c.lab == lab)
        with self._db.reading() as db:
            return tuple(db.execute(query).scalars().all())

    def cleaned(self, attempt_id: int, *, again: bool, not_before: float = 0.0) -> None:
        """A lost attempt's VMs are gone: free its leases, and send its run back or end it. That of a cancelled campaign
        never goes back."""
        with self._db.writing() as db:
            row = db.execute(_LOST, {"attempt": attempt_id}).one()
            if row.state not in (AttemptState.LOST, AttemptState.ENDED):
                return
            db.execute(_FREE, {"attempt": attempt_id})
            waiting = db.execute(_WAITING_FOR, {"run": row.run_id, "attempt": attempt_id}).first()
            if row.state == AttemptState.ENDED or waiting is None:
                return
            if again and row.campaign_state != CampaignState.CANCELLED:
                _send_back(db, row.run_id, not_before)
            else:
                _record(db, row.run_id, Outcome(row.outcome), attempt_id)

    def blame(self, lab: str, detail: OutcomeDetail, after: After) -> tuple[str, ...]:
        """Count a lab-error that no attempt's result told of against the blamed hosts. Returns who is quarantined by it."""
        with self._db.writing() as db:
            return _judge_hosts(db, lab, detail, after)


def _goes_on(db: Connection, campaign_id: int) -> bool:
    return bool(db.execute(_STATE_OF_CAMPAIGN, {"campaign": campaign_id}).scalar_one() != CampaignState.CANCELLED)


def _send_back(db: Connection, run_id: int, not_before: float, *, uncounted: int = 0) -> None:
    db.execute(_SEND_BACK, {"run": run_id, "earliest": not_before, "uncounted": uncounted})


def _record(db: Connection, run_id: int, outcome: Outcome, attempt_id: int, *, uncounted: int = 0) -> None:
    db.execute(_RECORD, {"run": run_id, "with_outcome": outcome, "attempt": attempt_id, "uncounted": uncounted})


def _seconds(result: AttemptResult, *, created: float, ended: float) -> float:
    """How long an attempt has kept its hosts. By the clock of its phases when it tells of them: wall clocks are stepped."""
    return sum(seconds for _, seconds in result.phases) or max(0.0, ended - created)


def _judge_hosts(db: Connection, lab: str, detail: OutcomeDetail, after: After) -> tuple[str, ...]:
    """Count a lab-error against the blamed hosts and forgive the cleared ones. Returns who is quarantined by it."""
    if after.cleared:
        db.execute(_FORGIVE, [{"of_lab": lab, "of_host": name} for name in after.cleared])
    return tuple(name for name in after.blamed if _strike(db, lab, name, detail, after))


def _strike(db: Connection, lab: str, name: str, detail: OutcomeDetail, after: After) -> bool:
    """Count a lab-error against a host. True when it is quarantined by it."""
    now, this = clock.now(), (hosts.c.lab == lab, hosts.c.host == name)
    row = db.execute(select(hosts).where(*this)).first()
    if row is None:
        db.execute(insert(hosts).values(lab=lab, host=name, state=HostState.GOOD, since=now))
    strikes = (row.strikes if row is not None else 0) + 1
    values: dict[str, Any] = {"strikes": strikes}
    enough = strikes >= after.quarantine_after and (row is None or row.state == HostState.GOOD)
    if enough:
        why = f"{strikes} lab-errors in a row, the last one: {detail.what}"
        values |= {"state": HostState.QUARANTINED, "since": now, "why": why, "checks": 0}
        values["next_check"] = after.check_at or now
    db.execute(update(hosts).where(*this).values(**values))
    return enough


def _raw_row(attempt_id: int, output: RawOutput) -> dict[str, Any]:
    return {
        "attempt_id": attempt_id,
        "name": output.name,
        "size": len(output.content),
        "sha256": hashlib.sha256(output.content).hexdigest(),
        "content": zlib.compress(output.content),
    }
