"""Hosts as they have behaved, the processes that work, and what people want to hear of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, func, insert, select, update

from labctl import clock
from labctl.model.outcome import HostState
from labctl.store.room import Room
from labctl.store.tables import events, hosts, workers
from labctl.store.values import Event, HostRecord, WorkerRecord

_BEAT = (
    update(workers)
    .where(workers.c.name == bindparam("of_worker"))
    .values(beats=workers.c.beats + 1, seen=bindparam("now"), doing=bindparam("what"))
)


class Hosts(Room):
    """The part of the store that is about the state of hosts."""

    def hosts(self, lab: str | None = None) -> tuple[HostRecord, ...]:
        """What is kept of the hosts of a lab, or of all labs; one that never had a lab-error may have no record."""
        query = select(hosts).order_by(hosts.c.lab, hosts.c.host)
        if lab is not None:
            query = query.where(hosts.c.lab == lab)
        with self._db.reading() as db:
            rows = db.execute(query).all()
        return tuple(_host(row) for row in rows)

    def set_host(
        self,
        lab: str,
        host: str,
        state: HostState,
        *,
        why: str = "",
        next_check: float = 0.0,
        only_from: Collection[HostState] = tuple(HostState),
    ) -> bool:
        """Change a host's state, by a person or after a health check; not when it stands in none of `only_from`. Says
        whether it did. A good host begins with no strikes and no failed checks."""
        values: dict[str, Any] = {"state": state, "why": why, "since": clock.now(), "next_check": next_check}
        if state is HostState.GOOD:
            values |= {"strikes": 0, "checks": 0}
        with self._db.writing() as db:
            _require_host(db, lab, host)
            meant = and_(_is(lab, host), hosts.c.state.in_(only_from))
            return db.execute(update(hosts).where(meant).values(**values)).rowcount == 1

    def check_failed(self, lab: str, host: str, *, next_check: float, out_after: int, why: str) -> HostState:
        """A health check of a quarantined host failed: the next one is due at `next_check` (epoch seconds), or with
        `out_after` failures in a row the host is out. Returns its state."""
        with self._db.writing() as db:
            _require_host(db, lab, host)
            row = db.execute(select(hosts).where(_is(lab, host))).one()
            checks = row.checks + 1
            values: dict[str, Any] = {"checks": checks, "next_check": next_check, "why": why}
            if row.state == HostState.QUARANTINED and checks >= out_after:
                values |= {"state": HostState.OUT, "since": clock.now()}
            db.execute(update(hosts).where(_is(lab, host)).values(**values))
        return HostState(values.get("state", row.state))

    def delay_check(self, lab: str, host: str, *, expected: float, until: float) -> bool:
        """Put the next health check of a quarantined host off, if it is still due at `expected`: of several engines only
        one gets True and makes the check."""
        due = and_(_is(lab, host), hosts.c.state == HostState.QUARANTINED, hosts.c.next_check == expected)
        with self._db.writing() as db:
            return db.execute(update(hosts).where(due).values(next_check=until)).rowcount == 1


class Workers(Room):
    """The part of the store in which processes that work say what they do."""

    def register_worker(self, record: WorkerRecord) -> None:
        """Say that a process has started to work."""
        values = record.__dict__ | {"queues": ",".join(record.queues), "seen": record.started}
        with self._db.writing() as db:
            db.execute(delete(workers).where(workers.c.name == record.name))
            db.execute(insert(workers).values(**values))

    def beat_worker(self, name: str, *, doing: str) -> bool:
        """Say that a process lives, and what it does. False when it is no longer registered."""
        with self._db.writing(alone=False) as db:
            return db.execute(_BEAT, {"of_worker": name, "now": clock.now(), "what": doing}).rowcount == 1

    def remove_worker(self, name: str) -> None:
        """Say that a process has ended, or forget one that is gone."""
        with self._db.writing() as db:
            db.execute(delete(workers).where(workers.c.name == name))

    def workers(self) -> tuple[WorkerRecord, ...]:
        """All processes that said that they work and not that they ended."""
        with self._db.reading() as db:
            rows = db.execute(select(workers).order_by(workers.c.name)).all()
        return tuple(_worker(row) for row in rows)


class Events(Room):
    """The part of the store that is about what people want to hear of."""

    def tell(self, event: Event) -> bool:
        """Keep an event, to be told once. False when there is one of its scope and key already."""
        values = {name: value for name, value in event.__dict__.items() if name != "id"}
        known = select(events.c.id).where(events.c.scope == event.scope, events.c.key == event.key)
        with self._db.writing() as db:
            if db.execute(known).first() is not None:
                return False
            db.execute(insert(events).values(**values, told=False))
        return True

    def has_event(self, scope: str, key: str) -> bool:
        """Whether there is an event of this scope and key."""
        known = select(events.c.id).where(events.c.scope == scope, events.c.key == key)
        with self._db.reading() as db:
            return db.execute(known).first() is not None

    def untold(self, *, limit: int = 100) -> tuple[Event, ...]:
        """Events that nobody has been told of, oldest first."""
        return self._events(events.c.told.is_(False), limit=limit)

    def take_event(self, event_id: int) -> bool:
        """Make an event told. Of several that try only one gets True, and tells it."""
        with self._db.writing() as db:
            taken = db.execute(
                update(events).where(events.c.id == event_id, events.c.told.is_(False)).values(told=True)
            )
        return taken.rowcount == 1

    def events(self, campaign_id: int) -> tuple[Event, ...]:
        """What happened in a campaign, oldest first."""
        return self._events(events.c.campaign_id == campaign_id)

    def events_after(self, event_id: int, *, limit: int = 100) -> tuple[Event, ...]:
        """What happened in any campaign or lab after this event, oldest first."""
        return self._events(events.c.id > event_id, limit=limit)

    def newest_event(self) -> int:
        """The id of the newest event; 0 when there is none."""
        with self._db.reading() as db:
            return int(db.execute(select(func.coalesce(func.max(events.c.id), 0))).scalar_one())

    def _events(self, condition: Any, *, limit: int | None = None) -> tuple[Event, ...]:  # noqa: ANN401
        query = select(events).where(condition).order_by(events.c.id).limit(limit)
        with self._db.reading() as db:
            rows = db.execute(query).all()
        return tuple(Event(**{name: getattr(row, name) for name in Event.__dataclass_fields__}) for row in rows)


def _is(lab: str, host: str) -> Any:  # noqa: ANN401 - an SQL expression
    return and_(hosts.c.lab == lab, hosts.c.host == host)


def _require_host(db: Connection, lab: str, host: str) -> None:
    if db.execute(select(hosts.c.host).where(_is(lab, host))).first() is None:
        db.execute(insert(hosts).values(lab=lab, host=host, state=HostState.GOOD, since=clock.now()))


def _host(row: Row[Any]) -> HostRecord:
    values = {name: getattr(row, name) for name in HostRecord.__dataclass_fields__}
    return HostRecord(**(values | {"state": HostState(row.state)}))


def _worker(row: Row[Any]) -> WorkerRecord:
    values = {name: getattr(row, name) for name in WorkerRecord.__dataclass_fields__}
    return WorkerRecord(**(values | {"queues": tuple(row.queues.split(",")) if row.queues else ()}))
