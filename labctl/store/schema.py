"""The revision of a store's tables: told cheaply, brought to the newest one, refused when it can't be ours."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from importlib import metadata, resources

from sqlalchemy import Connection, Row, insert, inspect, select, update
from sqlalchemy.exc import OperationalError, ProgrammingError

from labctl.errors import LabError
from labctl.store.tables import store_info

REVISIONS = ("0001", "0002", "0003")
"""All revisions that this program knows, oldest first, as the migrations in `labctl/store/migrations` name them."""
NEWEST = REVISIONS[-1]

IDENTITY = "identity"
"""Key in `store_info`: what tells a store from all others."""
PROGRAM = "labctl"
"""Key in `store_info`: the version of labctl that brought the tables to their revision."""

_LOOK = "SELECT version_num, (SELECT value FROM store_info WHERE key = 'identity') AS identity FROM alembic_version"


@dataclass(frozen=True, kw_only=True)
class Stand:
    """Where a store stands."""

    revision: str
    identity: str


def stand(db: Connection) -> Stand | None:
    """Where the store stands, for one query; None when that needs a closer look (`bring_up`)."""
    try:
        rows: list[Row[tuple[str, str | None]]] = list(db.exec_driver_sql(_LOOK).all())
    except (OperationalError, ProgrammingError):
        return None
    if len(rows) != 1 or rows[0].identity is None:
        return None
    return Stand(revision=rows[0].version_num, identity=rows[0].identity)


def bring_up(db: Connection, name: str) -> Stand:
    """Make or migrate the tables, in a transaction that nobody else writes beside. `name` is for people.

    Raises `LabError`: `store-newer` when a newer labctl has migrated the store, `store` when the database is somebody
    else's.
    """
    tables = set(inspect(db).get_table_names())
    if tables and store_info.name not in tables:
        raise LabError(
            f"The database {name} is not a store of labctl.",
            kind="store",
            why=f"It has tables of something else: {', '.join(sorted(tables)[:5])}.",
            todo="Name an empty database, or one that labctl has made.",
        )
    if tables:
        _refuse_newer(db, name)
    _upgrade(db)
    return Stand(revision=NEWEST, identity=_keep(db, IDENTITY, uuid.uuid4().hex, anew=False))


def refuse_newer(db: Connection, found: Stand, name: str) -> None:
    """Raise `LabError` (`store-newer`) when the tables have a revision that this program doesn't know."""
    if found.revision not in REVISIONS:
        raise _newer(db, found.revision, name)


def _refuse_newer(db: Connection, name: str) -> None:
    revisions = db.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    unknown = [revision for revision in revisions if revision not in REVISIONS]
    if unknown:
        raise _newer(db, unknown[0], name)


def _newer(db: Connection, revision: str, name: str) -> LabError:
    by = db.execute(select(store_info.c.value).where(store_info.c.key == PROGRAM)).scalar()
    return LabError(
        f"The store {name} is newer than this labctl.",
        kind="store-newer",
        why=f"Its tables have revision {revision}{f', made by labctl {by}' if by else ''}; "
        f"labctl {metadata.version('labctl')} knows revisions up to {NEWEST}.",
        todo="Use the newer labctl on this machine too, or another store (--state, --store). Tables are never taken back.",
    )


def _upgrade(db: Connection) -> None:
    from alembic import command  # it is big, and most openings don't need it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(resources.files("labctl.store") / "migrations"))
    config.attributes["connection"] = db
    command.upgrade(config, NEWEST)
    _keep(db, PROGRAM, metadata.version("labctl"), anew=True)


def _keep(db: Connection, key: str, value: str, *, anew: bool) -> str:
    """Keep a value in `store_info`, unless there is one and `anew` is false. Returns what is there then."""
    found: str | None = db.execute(select(store_info.c.value).where(store_info.c.key == key)).scalar()
    if found is None:
        db.execute(insert(store_info).values(key=key, value=value))
    elif anew:
        db.execute(update(store_info).where(store_info.c.key == key).values(value=value))
    else:
        return found
    return value
